"""The start of a log: segments that retention or DeleteRecords lets go."""

from itertools import takewhile

from ottla.errors import OffsetOutOfRange, StorageFailed
from ottla.model import Offset, TimestampMs
from ottla.records.batch import FIRST_OFFSET
from ottla.storage.log_core import LogCore
from ottla.storage.retention import SegmentFacts, expired_count, is_too_old
from ottla.storage.segment import SEAL, SealedSegment, Segment, file_name


class LogRetention:
    """The part of a log that moves its start."""

    def __init__(self, core: LogCore) -> None:
        self._core = core

    def delete_old_segments(self, now_ms: TimestampMs, below: Offset, exempt_bytes: int = 0) -> int:
        """Delete the segments that retention no longer keeps; return how many.

        Only those that end at or before `below`: what is above the high watermark may be all that
        is left of a record that is being committed. `exempt_bytes` do not count for the log's size.
        """
        return self._delete_first(self._expired_count(now_ms, below, exempt_bytes))

    def expired_end(self, now_ms: TimestampMs, below: Offset, exempt_bytes: int) -> Offset:
        """The end of the last segment that `delete_old_segments` would delete; or the start."""
        core = self._core
        count = self._expired_count(now_ms, below, exempt_bytes)
        return core.segments.sealed[count - 1].end_offset if count else core.start_offset

    def _expired_count(self, now_ms: TimestampMs, below: Offset, exempt_bytes: int) -> int:
        core = self._core
        if core.offline_reason is not None:
            return 0
        if (
            "delete" in core.config.cleanup_policy
            and core.segments.active.size_bytes
            and is_too_old(self._time_of(core.segments.active), core.config, now_ms)
        ):
            core.roll(now_ms)
        committed = takewhile(lambda one: one.end_offset <= below, core.segments.sealed)
        facts = map(self._facts, committed)
        counted_bytes = max(core.size_bytes - exempt_bytes, 0)
        return expired_count(facts, counted_bytes, core.start_offset, core.config, now_ms)

    def advance_start(self, offset: Offset) -> None:
        """Delete the records below `offset` (DeleteRecords); segments follow when they can."""
        core = self._core
        if core.offline_reason is not None:
            raise StorageFailed(core.offline_reason)
        if not core.start_offset <= offset <= core.end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is outside {core.start_offset} to {core.end_offset}"
            )
        core.start_offset = offset
        passed = sum(1 for segment in core.segments.sealed if segment.end_offset <= offset)
        self._delete_first(passed)
        self._forget_before_start()

    def forget_lost(self, start: Offset, end: Offset) -> None:
        """Remove the seals of segments that were lost between these offsets."""
        core = self._core
        for base in [one for one in core.lost_seals if start <= one < end]:
            core.lost_seals.remove(base)
            core.files.unlink(core.directory / file_name(base, SEAL))

    def _facts(self, segment: SealedSegment) -> SegmentFacts:
        return SegmentFacts(segment.end_offset, segment.size_bytes, self._time_of(segment))

    def _time_of(self, segment: Segment) -> TimestampMs:
        """The time that retention counts from; -1 if that is left to the segment behind it.

        Compaction can leave a segment without records, in a file that it has just written.
        """
        segments = self._core.segments
        if "compact" not in self._core.config.cleanup_policy:
            return segments.newest_ms_of(segment)
        if isinstance(segment, SealedSegment):
            return segments.max_timestamp_of(segment)
        return segment.indexes.max_timestamp_ms

    def _delete_first(self, count: int) -> int:
        core = self._core
        deleted = core.segments.delete_first(count, core.listener.discard)
        if deleted:
            core.size_bytes -= sum(segment.size_bytes for segment in deleted)
            core.start_offset = max(core.start_offset, core.segments.first_base)
            assert core.start_offset <= core.end_offset, f"{core.tp}: start behind the end"
            self._forget_before_start()
        return len(deleted)

    def _forget_before_start(self) -> None:
        core = self._core
        core.listener.note_start(core.tp)
        core.hints.clear()
        core.epochs.truncate_start(core.start_offset)
        core.damages.forget_below(core.start_offset)
        self.forget_lost(FIRST_OFFSET, core.segments.first_base)
        core.snapshots.remove_below(core.segments.first_base)
