"""Bounds from filters on topic, partition, offset and timestamp, for batch reads."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from ottla.client.client import Client
from ottla.client.partitions import list_offsets
from ottla.model import Offset, TimestampMs, TopicPartition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBounds:
    """Bounds of all wanted records; None means unbounded."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int = 0
    offset_end: int | None = None
    since_ms: TimestampMs | None = None

    async def apply(
        self,
        client: Client,
        start: dict[TopicPartition, Offset],
        end: dict[TopicPartition, Offset],
    ) -> tuple[dict[TopicPartition, Offset], dict[TopicPartition, Offset]]:
        """The start and end offsets between which wanted records can be."""
        tps = [tp for tp in end if self._may_hold(tp)]
        firsts = dict[TopicPartition, Offset | None](start)
        if self.since_ms is not None and tps:
            firsts = await list_offsets(client, dict.fromkeys(tps, self.since_ms))
        starts, ends = dict[TopicPartition, Offset](), dict[TopicPartition, Offset]()
        for tp in tps:
            first = firsts.get(tp)
            if first is None:
                continue  # every record is older
            ends[tp] = end[tp] if self.offset_end is None else Offset(min(end[tp], self.offset_end))
            starts[tp] = Offset(min(max(start[tp], first, self.offset_min), ends[tp]))
        return starts, ends

    def _may_hold(self, tp: TopicPartition) -> bool:
        return (self.topics is None or tp.topic in self.topics) and (
            self.partitions is None or tp.partition in self.partitions
        )


def bounds_of_filters(filters: Iterable[Filter]) -> RecordBounds:
    """The bounds of all filters together; filters on other columns are ignored.

    Of timestamps only the lower bound is used: timestamps need not rise with offsets, but all
    records before the first one not older than a timestamp are older.
    """
    found = RecordBounds()
    for one in filters:
        column = getattr(one, "attribute", ())
        if column == ("topic",):
            found = _by_topic(found, one)
        elif column == ("partition",):
            found = _by_partition(found, one)
        elif column == ("offset",):
            found = _by_offset(found, one)
        elif column == ("timestamp",):
            found = _by_time(found, one)
    return found


def _by_topic(found: RecordBounds, one: Filter) -> RecordBounds:
    match one:
        case EqualTo(value=str(name)):
            names = {name}
        case In(value=list() | tuple() as several):
            names = set(several)
        case _:
            return found
    kept = names if found.topics is None else found.topics & names
    return replace(found, topics=frozenset(kept))


def _by_partition(found: RecordBounds, one: Filter) -> RecordBounds:
    match one:
        case EqualTo(value=int(number)):
            numbers = {number}
        case In(value=list() | tuple() as several):
            numbers = set(several)
        case _:
            return found
    kept = numbers if found.partitions is None else found.partitions & numbers
    return replace(found, partitions=frozenset(kept))


def _by_offset(found: RecordBounds, one: Filter) -> RecordBounds:
    first, end = found.offset_min, found.offset_end
    match one:
        case EqualTo(value=int(number)):
            first, end = max(first, number), _least(end, number + 1)
        case GreaterThan(value=int(number)):
            first = max(first, number + 1)
        case GreaterThanOrEqual(value=int(number)):
            first = max(first, number)
        case LessThan(value=int(number)):
            end = _least(end, number)
        case LessThanOrEqual(value=int(number)):
            end = _least(end, number + 1)
        case _:
            return found
    return replace(found, offset_min=first, offset_end=end)


def _by_time(found: RecordBounds, one: Filter) -> RecordBounds:
    match one:
        case EqualTo(value=datetime() as at) | GreaterThan(value=datetime() as at):
            pass
        case GreaterThanOrEqual(value=datetime() as at):
            pass
        case _:
            return found
    if at.tzinfo is None:
        return found  # without a time zone its instant is unknown
    since_ms = max(0, (at - _EPOCH) // timedelta(milliseconds=1))
    return replace(found, since_ms=TimestampMs(max(since_ms, found.since_ms or 0)))


def _least(end: int | None, other: int) -> int:
    return other if end is None else max(0, min(end, other))
