"""Compaction of a log, seen from the log: what can be compacted, and how copies are swapped in.

The pass itself runs on a worker's thread (`compaction_pass`), the methods here on the owner's.
"""

from collections.abc import Iterator

from ottla.config import INT64_MAX
from ottla.model import NO_TIMESTAMP, Offset, TimestampMs
from ottla.records.batch import FIRST_OFFSET, decompressed_bytes_max
from ottla.storage.checkpoints import CheckpointDamaged, encode_checkpoint, read_checkpoint
from ottla.storage.compaction import (
    CLEAN_OFFSET_FILE,
    Cleanable,
    CleanedSegment,
    LiveProducer,
    SegmentFacts,
    cleanable,
)
from ottla.storage.compaction_pass import Pass
from ottla.storage.files import within
from ottla.storage.index import AbortedTransaction
from ottla.storage.log_core import LogCore
from ottla.storage.segment import SealedSegment
from ottla.storage.small_file import Replacement, SmallFile
from ottla.storage.swap import Swap, remove_cleaned


class LogCleaning:
    """The part of a log that compaction works with."""

    def __init__(self, core: LogCore, *, is_compacted: bool) -> None:
        """With `is_compacted`, a pass has been finished here before."""
        self._core = core
        path = within(core.directory, CLEAN_OFFSET_FILE)
        self._clean_offset_file: SmallFile[bytes] = SmallFile(core.files, path, bytes)
        # Compaction has seen all keys below.
        self.clean_offset = self._read_clean_offset() if is_compacted else FIRST_OFFSET

    @property
    def dirty_bytes(self) -> int:
        """Bytes of the sealed segments whose keys compaction has not seen."""
        sealed = self._core.segments.sealed
        return sum(one.size_bytes for one in sealed if one.end_offset > self.clean_offset)

    def cleanable(self, limit: Offset, now_ms: TimestampMs) -> Cleanable:
        """The part that a pass could compact below `limit`: decided, durable and sealed."""
        core = self._core
        dirty_start = max(self.clean_offset, core.segments.first_base)
        # Positions of damage are stored, and must stay as they are.
        if core.damages.ranges or core.offline_reason is not None:
            return Cleanable(dirty_start, dirty_start, 0, 0, False)
        oldest_ms = NO_TIMESTAMP
        if core.config.max_compaction_lag_ms < INT64_MAX and dirty_start < core.end_offset:
            oldest_ms = TimestampMs(core.segments.header_at(dirty_start).max_timestamp_ms)
            is_overdue = 0 < oldest_ms <= now_ms - core.config.max_compaction_lag_ms
            if is_overdue and dirty_start >= core.segments.active.base_offset:
                core.roll(now_ms)
                core.listener.note_crowded(core.tp)
        # A flush may be about to store a segment's indexes; replaced, its successor would get them.
        unstored = (one.segment.base_offset for one in core.segments.unstored)
        limit = min(limit, core.durable_offset, *unstored)
        facts = map(self._facts, core.segments.sealed)
        return cleanable(facts, dirty_start, limit, core.config, now_ms, oldest_ms)

    def begin(self, part: Cleanable, now_ms: TimestampMs, memory_bytes_max: int) -> Pass:
        """A pass that compacts `part` of this log on a worker's thread."""
        core, config = self._core, self._core.config
        assert part.end <= core.durable_offset, (
            f"{core.tp}: compaction behind {core.durable_offset}"
        )
        wanted = [segment for segment in core.segments.sealed if segment.base_offset < part.end]
        return Pass(
            tp=core.tp,
            directory=core.directory,
            timeline=core.timeline,
            segments=tuple(map(self._facts, wanted)),
            dirty_start=part.dirty_start,
            end=part.end,
            aborted=tuple(self._all_aborted()),
            producers={
                producer_id: LiveProducer(
                    producer.epoch, frozenset(batch.base_offset for batch in producer.batches)
                )
                for producer_id, producer in core.producers.items()
            },
            now_ms=now_ms,
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes_max=config.segment_bytes,
            index_interval_bytes=config.index_interval_bytes,
            decompressed_bytes_max=decompressed_bytes_max(config.max_message_bytes),
            memory_bytes_max=memory_bytes_max,
        )

    def end(self, work: Pass) -> Replacement[bytes] | None:
        """Every segment of a pass has been swapped in; returns the file that remembers it."""
        if work.timeline != self._core.timeline or self._core.offline_reason is not None:
            return None
        self.clean_offset = work.end
        return self._clean_offset_file.begin(encode_checkpoint([str(work.end)]))

    def has_changed(self, work: Pass) -> bool:
        """True if the log has been cut since the pass began: what it reads may be half a batch."""
        return work.timeline != self._core.timeline

    # Swapping

    def begin_swap(self, work: Pass, cleaned: CleanedSegment) -> Swap | None:
        """Prepare to put a compacted segment in its place; None if the log has changed there."""
        core = self._core
        if core.is_gone:
            return None
        old = core.segments.same_as([fact[:3] for fact in cleaned.replaced])
        if work.timeline != core.timeline or not old or core.damages.ranges:
            remove_cleaned(core.files, core.directory)
            return None
        new = SealedSegment(
            core.directory, cleaned.base_offset, cleaned.end_offset, cleaned.size_bytes
        )
        new.max_timestamp_ms = cleaned.max_timestamp_ms
        return core.segments.begin_swap(old, new)

    def end_swap(self, swap: Swap) -> None:
        """The swap has been carried out: from now on the new segment is read."""
        core = self._core
        if core.segments.end_swap(swap):
            core.hints.clear()
            old_bytes = sum(segment.size_bytes for segment in swap.old)
            core.size_bytes += swap.new.size_bytes - old_bytes

    def finish_swap(self) -> None:
        """Carry out a swap that is under way, now: the log's files are about to change."""
        swap = self._core.segments.finish_swap()
        if swap is not None:
            self.end_swap(swap)

    def give_up(self) -> None:
        """The log is about to be deleted: no worker may touch its files any more."""
        self._core.segments.give_up_swap()
        self._clean_offset_file.give_up()

    # How far compaction came

    def begin_lowering(self, offset: Offset) -> Replacement[bytes] | None:
        """The file to write before the log is cut at `offset`; None if it need not change."""
        if self.clean_offset <= offset:
            return None
        self.clean_offset = offset
        return self._clean_offset_file.begin(encode_checkpoint([str(offset)]))

    def _read_clean_offset(self) -> Offset:
        """The stored clean offset; 0, and everything is read again, if that is not known."""
        try:
            lines = read_checkpoint(self._core.files, self._core.directory / CLEAN_OFFSET_FILE)
        except CheckpointDamaged:
            lines = None
        clean_offset = Offset(int(lines[0])) if lines else FIRST_OFFSET
        return clean_offset if clean_offset <= self._core.end_offset else FIRST_OFFSET

    def _facts(self, segment: SealedSegment) -> SegmentFacts:
        return SegmentFacts(
            segment.base_offset,
            segment.end_offset,
            segment.size_bytes,
            self._core.segments.newest_ms_of(segment),
        )

    def _all_aborted(self) -> Iterator[AbortedTransaction]:
        """Every aborted transaction of the log; segments that are not open stay so."""
        for segment in self._core.segments.all():
            yield from self._core.segments.aborted_of(segment)
