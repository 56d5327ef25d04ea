"""Finding records by their time: an index leads to a batch, in which records are looked at."""

from collections.abc import Callable
from typing import NamedTuple

from ottla.model import LeaderEpoch, Offset, TimestampMs
from ottla.records.batch import HIDES_SOME, check_stored
from ottla.records.record_slices import first_since
from ottla.storage.segment import SealedSegment, Segment, walk
from ottla.storage.segments import Segments


class TimedOffset(NamedTuple):
    """A record found by its time."""

    offset: Offset
    timestamp_ms: TimestampMs
    leader_epoch: LeaderEpoch


def offset_for_time(
    segments: Segments,
    start_offset: Offset,
    timestamp_ms: TimestampMs,
    *,
    decompressed_bytes_max: int,
) -> TimedOffset | None:
    """The first record from `start_offset` on whose timestamp is not before `timestamp_ms`."""
    for segment in segments.all():
        if segment.end_offset <= start_offset:
            continue
        if isinstance(segment, SealedSegment):
            if segments.max_timestamp_of(segment) < timestamp_ms:
                continue
            segments.open(segment)
        relative_offset = segment.indexes.by_time.below(timestamp_ms) + 1
        start = max(Offset(segment.base_offset + relative_offset), start_offset)
        found = _first_since(segments, segment, start, timestamp_ms, decompressed_bytes_max)
        if found is not None:
            return found
    return None


def max_timestamp(
    segments: Segments, start_offset: Offset, *, decompressed_bytes_max: int
) -> TimedOffset | None:
    """The first record that has the largest timestamp of all."""
    timestamp_ms = segments.active.indexes.max_timestamp_ms
    best: Segment = segments.active
    for segment in reversed(segments.sealed):
        if segments.max_timestamp_of(segment) >= timestamp_ms:
            timestamp_ms, best = segments.max_timestamp_of(segment), segment
    if timestamp_ms < 0 or segments.active.end_offset == start_offset:
        return None
    segments.open(best)
    at = segments.find(best, Offset(best.base_offset + best.indexes.max_timestamp_at))
    start = max(at.base_offset, start_offset)
    return _first_since(segments, best, start, timestamp_ms, decompressed_bytes_max)


def _first_since(
    segments: Segments,
    segment: Segment,
    start: Offset,
    timestamp_ms: TimestampMs,
    decompressed_bytes_max: int,
) -> TimedOffset | None:
    if start >= segment.end_offset:
        return None
    first = segments.find(segment, start)
    for position, header in walk(segment.file, first.position, segment.size_bytes):
        if header.max_timestamp_ms < timestamp_ms:
            continue
        batch = segment.file.read(position, header.size_bytes)
        check_stored(batch)
        look = _first_shown_since() if header.attributes & HIDES_SOME else first_since
        found = look(batch, start, timestamp_ms, decompressed_bytes_max=decompressed_bytes_max)
        epoch = LeaderEpoch(header.leader_epoch)
        if found is not None:
            return TimedOffset(*found, epoch)
        if header.base_offset >= start:
            # Its envelope lied about its time. The next may lie as well: do not open all.
            return TimedOffset(header.last_offset, TimestampMs(header.max_timestamp_ms), epoch)
    return None


def _first_shown_since() -> Callable[..., tuple[Offset, TimestampMs] | None]:
    from ottla.records.hidden_records import first_shown_since  # noqa: PLC0415

    return first_shown_since
