"""Finding records by their time: an index leads to a batch, in which records are looked at."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ottla.model import LeaderEpoch, Offset, TimestampMs
from ottla.records.batch import HIDES_SOME, check_stored, decompressed_bytes_max
from ottla.records.record_slices import first_since
from ottla.storage.log_core import LogCore
from ottla.storage.segment import SealedSegment, Segment, walk


class TimedOffset(NamedTuple):
    """A record found by its time."""

    offset: Offset
    timestamp_ms: TimestampMs
    leader_epoch: LeaderEpoch


class TimeSearch:
    """The part of a log that finds records by their time."""

    def __init__(self, core: LogCore) -> None:
        self._core = core

    def first_since(self, timestamp_ms: TimestampMs) -> TimedOffset | None:
        """The first record whose timestamp is not before `timestamp_ms`."""
        return self._core.readable(partial(self._first_since, timestamp_ms))

    def newest(self) -> TimedOffset | None:
        """The first record that has the largest timestamp of the whole log."""
        return self._core.readable(self._newest)

    def _first_since(self, timestamp_ms: TimestampMs) -> TimedOffset | None:
        segments, start_offset = self._core.segments, self._core.start_offset
        for segment in segments.all():
            if segment.end_offset <= start_offset:
                continue
            if isinstance(segment, SealedSegment):
                if segments.max_timestamp_of(segment) < timestamp_ms:
                    continue
                segments.open(segment)
            relative_offset = segment.indexes.by_time.below(timestamp_ms) + 1
            start = max(Offset(segment.base_offset + relative_offset), start_offset)
            found = self._search(segment, start, timestamp_ms)
            if found is not None:
                return found
        return None

    def _newest(self) -> TimedOffset | None:
        segments, start_offset = self._core.segments, self._core.start_offset
        timestamp_ms = segments.active.indexes.max_timestamp_ms
        best: Segment = segments.active
        for segment in reversed(segments.sealed):
            if segments.max_timestamp_of(segment) >= timestamp_ms:
                timestamp_ms, best = segments.max_timestamp_of(segment), segment
        if timestamp_ms < 0 or segments.active.end_offset == start_offset:
            return None
        segments.open(best)
        at = segments.find(best, Offset(best.base_offset + best.indexes.max_timestamp_at))
        return self._search(best, max(at.base_offset, start_offset), timestamp_ms)

    def _search(
        self, segment: Segment, start: Offset, timestamp_ms: TimestampMs
    ) -> TimedOffset | None:
        """The first record of an open segment, from `start` on, that is not older."""
        if start >= segment.end_offset:
            return None
        bytes_max = decompressed_bytes_max(self._core.config.max_message_bytes)
        first = self._core.segments.find(segment, start)
        for position, header in walk(segment.file, first.position, segment.size_bytes):
            if header.max_timestamp_ms < timestamp_ms:
                continue
            batch = segment.file.read(position, header.size_bytes)
            check_stored(batch)
            look = _first_shown_since() if header.attributes & HIDES_SOME else first_since
            found = look(batch, start, timestamp_ms, decompressed_bytes_max=bytes_max)
            epoch = LeaderEpoch(header.leader_epoch)
            if found is not None:
                return TimedOffset(*found, epoch)
            if header.base_offset >= start:
                # Its envelope lied about its time. The next may lie as well: do not open all.
                timestamp = TimestampMs(header.max_timestamp_ms)
                return TimedOffset(header.last_offset, timestamp, epoch)
        return None


def _first_shown_since() -> Callable[..., tuple[Offset, TimestampMs] | None]:
    from ottla.records.hidden_records import first_shown_since  # noqa: PLC0415

    return first_shown_since
