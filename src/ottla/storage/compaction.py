"""Planning of compaction, which keeps the last record of every key: which log, which segments.

Pure. `compaction_pass` does the copying that is planned here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.config import INT32_MAX, TopicConfig
from ottla.model import NO_TIMESTAMP, Offset, TimestampMs

CLEAN_OFFSET_FILE: Final = "cleaner-offset-checkpoint"

# Segments that become one, all of which stay open until it is there.
_MERGED_MAX: Final = 64
_EMPTIED_MAX: Final = 16


class SegmentFacts(NamedTuple):
    """The facts about a sealed segment that planning needs."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    max_timestamp_ms: TimestampMs


class Cleanable(NamedTuple):
    """The part of a log that a pass would read for keys, and the bytes it would look at."""

    dirty_start: Offset
    end: Offset
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool  # a record has waited for longer than max.compaction.lag.ms

    @property
    def dirty_ratio(self) -> float:
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0


def cleanable(
    sealed: Iterable[SegmentFacts],
    dirty_start: Offset,
    limit: Offset,
    config: TopicConfig,
    now_ms: TimestampMs,
    oldest_ms: TimestampMs = NO_TIMESTAMP,
) -> Cleanable:
    """The sealed segments that lie wholly below `limit` and are not too young.

    `oldest_ms` is the time of the first dirty record, if it is known.
    """
    clean_bytes = dirty_bytes = 0
    end = dirty_start
    is_overdue = 0 < oldest_ms <= now_ms - config.max_compaction_lag_ms
    for segment in sealed:
        if segment.end_offset <= dirty_start:
            clean_bytes += segment.size_bytes
            continue
        age_ms = now_ms - segment.max_timestamp_ms
        is_young = 0 < config.min_compaction_lag_ms > age_ms
        if segment.end_offset > limit or is_young:
            break
        dirty_bytes += segment.size_bytes
        end = segment.end_offset
    return Cleanable(dirty_start, end, clean_bytes, dirty_bytes, is_overdue)


def is_worth_it(part: Cleanable, config: TopicConfig) -> bool:
    """True when a pass over this part should begin."""
    if not part.dirty_bytes:
        return False
    return part.is_overdue or part.dirty_ratio >= config.min_cleanable_dirty_ratio


def dirtiest(parts: Sequence[Cleanable]) -> int:
    """The index of the log to compact first; overdue ones go before all others."""
    return max(range(len(parts)), key=lambda at: (parts[at].is_overdue, parts[at].dirty_ratio))


def fits(group: Sequence[SegmentFacts], left_bytes: int, next_: SegmentFacts, max_: int) -> bool:
    """True when a segment may join those of which `left_bytes` are left, even if it stays whole.

    Small ones are merged up to a number, emptied ones only a few at a time.
    """
    if not group:
        return True
    if len(group) >= _MERGED_MAX:
        return False
    if next_.end_offset - group[0].base_offset > INT32_MAX:
        return False
    if sum(one.size_bytes for one in group) + next_.size_bytes <= max_:
        return True
    return len(group) < _EMPTIED_MAX and left_bytes + next_.size_bytes <= max_


class LiveProducer(NamedTuple):
    """The state of a producer that its batches in the log have to keep readable."""

    epoch: int
    base_offsets: frozenset[Offset]


@dataclass(slots=True)
class Counts:
    """Totals of a pass."""

    read_bytes: int = 0
    written_bytes: int = 0
    kept_records: int = 0
    dropped_records: int = 0
    dropped_tombstones: int = 0

    def add(self, other: "Counts") -> None:
        self.read_bytes += other.read_bytes
        self.written_bytes += other.written_bytes
        self.kept_records += other.kept_records
        self.dropped_records += other.dropped_records
        self.dropped_tombstones += other.dropped_tombstones


class CleanedSegment(NamedTuple):
    """A segment that waits, whole and on disk, to replace those it was made from."""

    replaced: tuple[SegmentFacts, ...]
    size_bytes: int
    max_timestamp_ms: TimestampMs

    @property
    def base_offset(self) -> Offset:
        return self.replaced[0].base_offset

    @property
    def end_offset(self) -> Offset:
        return self.replaced[-1].end_offset
