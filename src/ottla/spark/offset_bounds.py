"""Options that say at which offsets a read starts and ends: by edge, offset, time or group."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ottla.model import Offset, TimestampMs, TopicPartition
from ottla.spark.option_reader import OptionReader, OptionRefused, parse_time_ms, parsed

EARLIEST_OFFSET: Final = Offset(-2)  # in place of an offset, as in Spark's JSON
LATEST_OFFSET: Final = Offset(-1)
START_NAMES: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
END_NAMES: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")


class Edge(StrEnum):
    """The earliest or the latest offset of every partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition; -2 means earliest and -1 latest."""

    offsets: Mapping[TopicPartition, Offset]


@dataclass(frozen=True, slots=True)
class FromTime:
    """The first record not older than a timestamp, in every partition."""

    timestamp_ms: TimestampMs


@dataclass(frozen=True, slots=True)
class FromTimes:
    """A timestamp for each partition."""

    timestamps: Mapping[TopicPartition, TimestampMs]


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """The committed offsets of a consumer group; the earliest where it has committed none."""

    group: str


Bound = Edge | AtOffsets | FromTime | FromTimes | GroupOffsets


def parse_start(options: OptionReader, is_stream: bool, now_ms: TimestampMs) -> Bound:
    default = Edge.LATEST if is_stream else Edge.EARLIEST
    bound = _bound(options, START_NAMES, default, now_ms)
    if not is_stream:
        _refuse_edge(bound, Edge.LATEST, LATEST_OFFSET, "startingOffsets", "a batch would be empty")
    return bound


def parse_end(options: OptionReader, is_stream: bool, now_ms: TimestampMs) -> Bound:
    given = options.given(END_NAMES)
    if is_stream and given:
        raise OptionRefused(f"{given[0]} is for batch reads: a stream has no end")
    if (options.text("endingOffsets") or "").lower() == "group":
        raise OptionRefused(
            "endingOffsets=group is not supported: only startingOffsets can be group"
        )
    bound = _bound(options, END_NAMES, Edge.LATEST, now_ms)
    _refuse_edge(bound, Edge.EARLIEST, EARLIEST_OFFSET, "endingOffsets", "no record is before it")
    return bound


def _refuse_edge(bound: Bound, edge: Edge, offset: Offset, name: str, reason: str) -> None:
    if bound is edge or (isinstance(bound, AtOffsets) and offset in bound.offsets.values()):
        raise OptionRefused(f"{name} cannot be {edge} ({offset}) here: {reason}")


def _bound(
    options: OptionReader, names: tuple[str, str, str], default: Edge, now_ms: TimestampMs
) -> Bound:
    """A start or an end: one time, times by partition, or offsets, in this precedence."""
    time_name, times_name, offsets_name = names
    time = options.text(time_name)
    if time is not None:
        return FromTime(parsed(time_name, lambda text: parse_time_ms(text, now_ms), time))
    if options.text(times_name) is not None:
        return FromTimes(
            {
                tp: parsed(times_name, lambda text: parse_time_ms(text, now_ms), str(at))
                for tp, at in _by_partition(options, times_name).items()
            }
        )
    text = options.text(offsets_name)
    if text is None:
        return default
    if text.lower() in tuple(Edge):
        return Edge(text.lower())
    if text.lower() == "group":
        group = named_group(options)
        if group is None:
            raise OptionRefused(f"{offsets_name}=group needs commitGroup or kafka.group.id")
        return GroupOffsets(group)
    return AtOffsets(
        {tp: _offset(offsets_name, at) for tp, at in _by_partition(options, offsets_name).items()}
    )


def named_group(options: OptionReader) -> str | None:
    return options.text("commitGroup") or options.text("kafka.group.id") or None


def _offset(name: str, at: object) -> Offset:
    if isinstance(at, bool) or not isinstance(at, int) or at < EARLIEST_OFFSET:
        raise OptionRefused(f"{name}: {at!r} is not an offset, nor -2 (earliest) or -1 (latest)")
    return Offset(at)


def _by_partition(options: OptionReader, name: str) -> dict[TopicPartition, object]:
    found = dict[TopicPartition, object]()
    for topic, partitions in options.json_object(name).items():
        if not isinstance(partitions, dict):
            raise OptionRefused(
                f'{name}: for {topic} write {{"0":42}}, an offset or time by partition'
            )
        for number, at in partitions.items():
            if not number.isdigit():
                raise OptionRefused(f"{name}: {number!r} is not a partition of {topic}")
            found[TopicPartition(topic, int(number))] = at
    return found
