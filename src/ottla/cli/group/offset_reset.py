"""Where a group's offsets go when they are reset: a plan first, then the commit."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ottla.client.client import Client
from ottla.client.partitions import EARLIEST, LATEST, list_offsets
from ottla.client.positions import AtOffset, AtTime, Edge
from ottla.model import Offset, TopicPartition


class Current(Enum):
    """Where the group is now, which makes an offset of an end that was never committed."""

    CURRENT = "current"


@dataclass(frozen=True, slots=True)
class Shift:
    """So many records on, or back if negative."""

    count: int


Target = Edge | AtOffset | AtTime | Shift | Current


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """What a plan rests on; `at_time` is None when every record is older, or no time is asked."""

    start: Offset
    end: Offset
    committed: Offset | None
    at_time: Offset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """One line of a plan; without a `new` offset the partition stays as it is."""

    tp: TopicPartition
    current: Offset | None
    new: Offset | None
    note: str

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "current_offset": self.current,
            "new_offset": self.new,
            "note": self.note or None,
        }


def plan_reset(target: Target, facts: Mapping[TopicPartition, PartitionFacts]) -> list[Reset]:
    """What is to be committed for each partition: always an offset that its log has."""
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
    """The offset that was asked for, whether or not the log has it; or why there is none."""
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
                return None, "nothing is committed that could be shifted"
            return Offset(fact.committed + count), ""
        case Current.CURRENT:
            if fact.committed is None:
                return fact.end, "nothing was committed"
            return fact.committed, ""


async def gather_facts(
    client: Client,
    target: Target,
    tps: list[TopicPartition],
    committed: Mapping[TopicPartition, Offset],
) -> dict[TopicPartition, PartitionFacts]:
    """The logs as they are now."""
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
