"""Damage on a log's disk: found when records are read, remembered, and never served."""

from typing import Final

from ottla.errors import CorruptBatch, StorageFailed
from ottla.model import LeaderEpoch, Offset, Position
from ottla.storage.damages import CorruptRange, Damage
from ottla.storage.epoch_scan import EpochScan
from ottla.storage.epochs import EpochEnd
from ottla.storage.log_core import NOT_SAVED, LogCore
from ottla.storage.segment import CheckedPart, SealedSegment, Segment, write_indexes
from ottla.storage.verification import check_ahead, lead_over

_CHECKS_MAX: Final = 100  # damages that are found on the way to one offset


class LogRepair:
    """The part of a log that checks what was on disk before it was opened."""

    def __init__(self, core: LogCore) -> None:
        self._core = core

    def has_segment(self, segment: Segment) -> bool:
        """True if the segment is part of the log as it was read: neither sealed nor compacted
        since, and not about to be cut."""
        segments = self._core.segments
        if self._core.cut is not None:
            return False
        return segment in segments.all() and not segments.is_swapped(segment)

    def note_damages(self, segment: Segment, damages: list[Damage]) -> list[CorruptRange]:
        """Stop serving these parts of a segment; return those that were not known.

        Remembered for as long as they are there, also after a restart.
        """
        core = self._core
        if not self.has_segment(segment):
            return []
        base = segment.base_offset
        found = (
            CorruptRange(one.start_offset, one.end_offset, base, one.position) for one in damages
        )
        core.hints.clear()
        core.segments.open(segment)
        lead_over(segment, damages)
        try:
            new = core.damages.add(found)
            if isinstance(segment, SealedSegment):
                core.segments.store_indexes()
                write_indexes(core.files, core.directory, base, segment.indexes)
            else:
                core.saved_end = NOT_SAVED  # to be stored with the next checkpoint
        except OSError as error:
            core.tolerate_full_disk(error)
            return []
        for damage in new:
            core.listener.note_damaged(core.tp, damage)
        return new

    def check_ahead(
        self, segment: Segment, start: Offset, position: Position | None, bytes_max: int
    ) -> CheckedPart | None:
        """Check, once, what lay on disk when the log was opened; note what is damaged.

        Returns the part that may be served, None when there is no limit.
        """
        damages = self._core.damages
        for _ in range(_CHECKS_MAX):
            known = damages.next_in(segment.base_offset, start)
            stop = known.position if known is not None else None
            checked, found = check_ahead(segment, start, position, bytes_max, stop)
            if not found:
                return checked
            self.note_damages(segment, found)
            damages.refuse(start)
            position = None
        raise CorruptBatch(f"too much is damaged around offset {start} on this broker's disk")

    def epoch_end(self, epoch: LeaderEpoch) -> EpochEnd:
        """The end of `epoch` in this log (KIP-279); (-1, -1) when nothing is known of it.

        Replicas truncate by this offset, so it is checked against the batches around it. If these
        are of other epochs, all are read again; StorageFailed while a worker does that.
        """
        core = self._core
        end = core.epochs.end_of(epoch, core.end_offset)
        if not self._is_true(end):
            if core.listener.note_epochs_wrong(core.tp):
                raise StorageFailed(f"{core.tp}: its epochs are read off its batches: try again")
            scan = self.begin_epoch_scan()
            while not scan.run_next(core.files, _go_on):
                pass
            self.end_epoch_scan(scan)
            end = core.epochs.end_of(epoch, core.end_offset)
        return end

    def begin_epoch_scan(self) -> EpochScan:
        """The work that reads all epochs off the batches, for any thread."""
        core = self._core
        segments = [(one.base_offset, one.size_bytes) for one in core.segments.all()]
        return EpochScan(core.directory, segments, core.end_offset, core.timeline)

    def end_epoch_scan(self, scan: EpochScan) -> None:
        """Believe what was found, and what was noted since, unless the log was cut meanwhile."""
        core, found = self._core, scan.epochs
        if scan.timeline != core.timeline or core.is_gone:
            return
        for epoch, start_offset in core.epochs.entries():
            if start_offset >= scan.end_offset:
                found.note(epoch, start_offset)
        found.truncate_start(core.start_offset)
        core.epochs = found

    def _is_true(self, end: EpochEnd) -> bool:
        """True when a batch of another epoch begins at the end of this one."""
        core = self._core
        if not core.start_offset < end.end_offset < core.end_offset:
            return True
        before = core.segments.header_at(Offset(end.end_offset - 1))
        behind = core.segments.header_at(end.end_offset)
        # Compaction keeps the first batch of an epoch, but not the last of the one before.
        is_gone = before.base_offset >= end.end_offset
        return (is_gone or before.leader_epoch <= end.epoch) and (
            end.epoch < behind.leader_epoch == core.epochs.at(end.end_offset)
        )


def _go_on() -> None:
    return
