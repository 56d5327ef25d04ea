"""Cutting the end of a log off: a new leader never had it."""

from itertools import chain, count

from ottla.model import NO_UUID, Offset, TimestampMs
from ottla.records.batch import FIRST_OFFSET
from ottla.storage.damages import CORRUPT_FILE
from ottla.storage.epochs import Epochs
from ottla.storage.log_cleaning import LogCleaning
from ottla.storage.log_core import LogCore
from ottla.storage.log_files import STRAY
from ottla.storage.log_flush import LogFlush
from ottla.storage.log_retention import LogRetention
from ottla.storage.log_states import NotedState
from ottla.storage.recovery_scan import EVERYTHING
from ottla.storage.segment import (
    ABORTED_INDEX,
    LOG,
    SEAL,
    SEGMENT_SUFFIXES,
    Segment,
    file_name,
    write_indexes,
)


class LogTruncation:
    """The part of a log that moves its end back."""

    def __init__(
        self, core: LogCore, flushing: LogFlush, cleaning: LogCleaning, retention: LogRetention
    ) -> None:
        self._core = core
        self._flushing = flushing
        self._cleaning = cleaning
        self._retention = retention

    def truncate(self, to_offset: Offset, now_ms: TimestampMs) -> None:
        """Forget everything from `to_offset` on. A batch that holds `to_offset` goes as a whole."""
        core = self._core
        if to_offset >= core.end_offset:
            return
        self._settle()
        if to_offset <= core.segments.first_base:
            self.restart_at(to_offset, now_ms)
            return
        segment, size_bytes, end_offset = self._last_kept(to_offset)
        self._lower_durable(end_offset)
        core.files.unlink(core.directory / file_name(segment.base_offset, SEAL))
        self._retention.forget_lost(segment.base_offset, EVERYTHING)
        self._flushing.forget_save()
        active = core.segments.active
        write_indexes(core.files, core.directory, active.base_offset, active.indexes)
        for behind in reversed(core.segments.all()):
            if behind.base_offset > segment.base_offset:
                self._unlink_segment(behind.base_offset)
        core.files.sync_dir(core.directory)  # or a seal would call a loss what is cut now
        segment.file.truncate(size_bytes)
        segment.file.sync()
        self._reopen(end_offset, now_ms)

    def set_damaged_aside(self, now_ms: TimestampMs) -> list[str]:
        """Cut the log before its first damage; return the names that what is cut off has now.

        Cut between two segments, so that none is changed: they are kept as they are, also the
        intact ones behind the damage, under names that no start reads.
        """
        core = self._core
        cut_at = self._before_damage()
        self._settle()
        self._lower_durable(min(cut_at, core.durable_offset))
        taken = set(core.files.names(core.directory))
        kept = [
            self._keep_aside(one.base_offset, taken)
            for one in reversed(core.segments.all())
            if one.base_offset >= cut_at and one.size_bytes
        ]
        core.files.sync_dir(core.directory)
        if cut_at <= core.segments.first_base:
            self.restart_at(cut_at, now_ms)
        else:
            self.truncate(cut_at, now_ms)
            core.epochs.truncate_end(core.end_offset)
        assert not core.damages.ranges, f"{core.tp}: still damaged at {core.damages.ranges}"
        return kept

    def _before_damage(self) -> Offset:
        """The start of the first damaged segment, or of what was lost behind an intact one."""
        core = self._core
        first = min(core.damages.ranges)
        if first.start_offset < core.segments.first_base:
            return first.start_offset
        segment = core.segments.of(first.segment_base)
        if first.position >= segment.size_bytes:
            return first.start_offset
        return segment.base_offset

    def _keep_aside(self, base_offset: Offset, taken: set[str]) -> str:
        name = file_name(base_offset, LOG)
        numbered = (f"{name}{STRAY}.{number}" for number in count(1))
        aside = next(one for one in chain([name + STRAY], numbered) if one not in taken)
        self._core.files.rename(self._core.directory / name, self._core.directory / aside)
        return aside

    def restart_at(self, offset: Offset, now_ms: TimestampMs) -> None:
        """Forget everything and begin again, empty, at `offset`."""
        core = self._core
        self._settle()
        self._lower_durable(min(offset, core.segments.first_base))
        for segment in reversed(core.segments.all()):
            self._unlink_segment(segment.base_offset)
        core.snapshots.remove_all()
        self._retention.forget_lost(FIRST_OFFSET, EVERYTHING)
        core.epochs = Epochs()
        core.files.unlink(core.directory / CORRUPT_FILE)
        core.start_offset = offset
        self._reopen(offset, now_ms)
        assert core.start_offset == core.end_offset == offset, f"{core.tp}: not empty at {offset}"

    def _settle(self) -> None:
        """Have every file under its name, now, and no worker on any of them."""
        self._cleaning.finish_swap()
        self._core.segments.store_indexes()

    def _last_kept(self, to_offset: Offset) -> tuple[Segment, int, Offset]:
        """The segment that a log cut at `to_offset` ends in, its size then, and the log's end."""
        segments = self._core.segments
        for damage in self._core.damages.ranges:
            if damage.start_offset <= to_offset <= damage.end_offset:
                segment = segments.of(damage.segment_base)
                if segment.base_offset == to_offset > segments.first_base:
                    break  # the segment goes as a whole
                return segment, damage.position, damage.start_offset
        segment = segments.of(Offset(to_offset - 1))
        if to_offset >= segment.end_offset:
            return segment, segment.size_bytes, segment.end_offset
        first_gone = segments.find(segment, to_offset)
        return segment, first_gone.position, first_gone.base_offset

    def _lower_durable(self, offset: Offset) -> None:
        """First of all the recovery point on disk must not promise what is about to go."""
        core = self._core
        core.timeline += 1
        for file in core.unsynced:
            file.sync()
        core.unsynced.clear()
        core.durable_offset = min(core.durable_offset, offset)
        assert core.durable_offset <= core.end_offset, f"{core.tp}: durable behind the end"
        self._cleaning.lower_clean_offset(offset)
        if core.checkpointed_offset > core.durable_offset:
            core.listener.before_truncate(core.tp)

    def _unlink_segment(self, base_offset: Offset) -> None:
        for suffix in SEGMENT_SUFFIXES:
            self._core.files.unlink(self._core.directory / file_name(base_offset, suffix))

    def _reopen(self, end_offset: Offset, now_ms: TimestampMs) -> None:
        core = self._core
        core.snapshots.remove_above(end_offset)
        core.files.sync_dir(core.directory)
        noted = NotedState(NO_UUID, core.epochs.encode(), b"")
        core.adopt(core.recover(EVERYTHING, now_ms, noted=noted))
        active = core.segments.active
        if not active.indexes.aborted:  # the file may hold some that were cut off as well
            core.files.unlink(core.directory / file_name(active.base_offset, ABORTED_INDEX))
        core.start_offset = min(core.start_offset, core.end_offset)
