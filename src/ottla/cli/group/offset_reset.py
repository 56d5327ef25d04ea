"""Resets of a group's offsets: the target, and a plan that a commit follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ottla.client.client import Client
from ottla.client.partitions import list_offsets
from ottla.client.positions import (
    AtOffset,
    AtTime,
    Edge,
    parse_duration_ms,
    parse_time,
    time_before,
)
from ottla.errors import UsageRefused
from ottla.model import Offset, TimestampMs, TopicPartition
from ottla.protocol.messages.offsets import EARLIEST, LATEST


class Current(Enum):
    """The committed offset, or the end of the log if there is none."""

    CURRENT = "current"


@dataclass(frozen=True, slots=True)
class Shift:
    """Forward by `count` offsets, back if negative."""

    count: int


Target = Edge | AtOffset | AtTime | Shift | Current


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """The state of a partition; `at_time` is None if every record is older, or without time."""

    start: Offset
    end: Offset
    committed: Offset | None
    at_time: Offset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A line of a plan; without a `new` offset the partition is unchanged."""

    tp: TopicPartition
    current: Offset | None
    new: Offset | None
    note: str

    def as_json(self) -> dict[str, Any]:
        """The fields of the JSON output."""
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "current_offset": self.current,
            "new_offset": self.new,
            "note": self.note or None,
        }


def choose_target(
    now_ms: TimestampMs,
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: str | None,
    by_duration: str | None,
    shift_by: int | None,
    to_current: bool,
) -> Target:
    """The target of a reset: exactly one of the options must be given."""
    targets = list[Target]()
    if to_earliest:
        targets.append(Edge.BEGINNING)
    if to_latest:
        targets.append(Edge.END)
    if to_offset is not None:
        targets.append(AtOffset(Offset(to_offset)))
    if to_time is not None:
        targets.append(AtTime(parse_time(to_time)))
    if by_duration is not None:
        targets.append(AtTime(time_before(now_ms, parse_duration_ms(by_duration))))
    if shift_by is not None:
        targets.append(Shift(shift_by))
    if to_current:
        targets.append(Current.CURRENT)
    if len(targets) != 1:
        raise UsageRefused(
            "give exactly one of --to-earliest, --to-latest, --to-offset, --to-time,"
            " --by-duration, --shift-by or --to-current"
        )
    return targets[0]


def plan_reset(target: Target, facts: Mapping[TopicPartition, PartitionFacts]) -> list[Reset]:
    """The offset to commit for each partition, always inside its log."""
    return [_plan_partition(target, tp, fact) for tp, fact in sorted(facts.items())]


def _plan_partition(target: Target, tp: TopicPartition, fact: PartitionFacts) -> Reset:
    wanted, note = _wanted(target, fact)
    if wanted is None:
        return Reset(tp=tp, current=fact.committed, new=None, note=note)
    new = Offset(max(fact.start, min(wanted, fact.end)))
    if new != wanted:
        end = f"begins at {fact.start}" if wanted < fact.start else f"ends at {fact.end}"
        note = f"not {wanted}: the log {end}"
    return Reset(tp=tp, current=fact.committed, new=new, note=note)


def _wanted(target: Target, fact: PartitionFacts) -> tuple[Offset | None, str]:
    """The requested offset, even if out of range; or None and the reason."""
    match target:
        case Edge.BEGINNING:
            return fact.start, ""
        case Edge.END:
            return fact.end, ""
        case AtOffset(offset):
            return offset, ""
        case AtTime():
            if fact.at_time is None:
                return fact.end, "every record is older"
            return fact.at_time, ""
        case Shift(count):
            if fact.committed is None:
                return None, "no committed offset to shift"
            return Offset(fact.committed + count), ""
        case Current.CURRENT:
            if fact.committed is None:
                return fact.end, "no offset was committed"
            return fact.committed, ""


async def gather_facts(
    client: Client,
    target: Target,
    tps: list[TopicPartition],
    committed: Mapping[TopicPartition, Offset],
) -> dict[TopicPartition, PartitionFacts]:
    """The current state of the partitions."""
    starts = await list_offsets(client, dict.fromkeys(tps, EARLIEST))
    ends = await list_offsets(client, dict.fromkeys(tps, LATEST))
    at_time: dict[TopicPartition, Offset | None] = {}
    if isinstance(target, AtTime):
        at_time = await list_offsets(client, dict.fromkeys(tps, int(target.timestamp_ms)))
    return {
        tp: PartitionFacts(
            start=starts[tp] or Offset(0),
            end=ends[tp] or Offset(0),
            committed=committed.get(tp),
            at_time=at_time.get(tp),
        )
        for tp in tps
    }
