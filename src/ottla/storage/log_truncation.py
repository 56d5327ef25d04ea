"""Cutting the end of a log off: a new leader never had it.

Like a flush: `begin` returns the work, any thread runs it, and `end` goes on with what is left, on
the owner's thread. In between the log has no files, and refuses everything.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from ottla.errors import StorageFailed
from ottla.model import NO_OFFSET, NO_UUID, Offset, TimestampMs
from ottla.storage.epochs import Epochs
from ottla.storage.log_cleaning import LogCleaning
from ottla.storage.log_core import LogCore
from ottla.storage.log_cut import Cut, KeptEnd, Removed, cut_all, cut_end, keep_aside, reopen
from ottla.storage.log_flush import LogFlush
from ottla.storage.log_states import NotedState
from ottla.storage.recovery import recover
from ottla.storage.recovery_scan import EVERYTHING
from ottla.storage.segment import Segment

Found = TypeVar("Found")
Step = Callable[[], object]


class LogTruncation:
    """The part of a log that moves its end back."""

    def __init__(self, core: LogCore, flushing: LogFlush, cleaning: LogCleaning) -> None:
        self._core = core
        self._flushing = flushing
        self._cleaning = cleaning

    @property
    def is_under_way(self) -> bool:
        """True from the begin of a cut to its end: nothing can be read or written."""
        return self._core.cut is not None

    @property
    def is_wanted(self) -> bool:
        """True if a cut is under way, and the log has neither been deleted nor gone offline."""
        return self.is_under_way and not self._core.is_gone

    # In three parts

    def begin(self, to_offset: Offset, now_ms: TimestampMs) -> Cut | None:
        """Begin to forget everything from `to_offset` on; None if the log ends before that.

        A batch that holds `to_offset` goes as a whole. StorageFailed while another cut is under
        way, or a compacted segment takes its place: that does not take long.
        """
        core = self._core
        self._check()
        if to_offset >= core.end_offset:
            return None
        if to_offset <= core.segments.first_base:
            return self._begin_empty(to_offset, now_ms, [])
        return self._begin_shorter(to_offset, now_ms, [])

    def begin_restart(self, offset: Offset, now_ms: TimestampMs) -> Cut:
        """Begin to forget everything, and to be empty at `offset`; refused as in `begin`."""
        self._check()
        return self._begin_empty(offset, now_ms, [])

    def begin_setting_aside(self, now_ms: TimestampMs) -> Cut:
        """Begin to cut the log before its first damage; refused as in `begin`.

        Cut between two segments, so that none is changed: they are kept as they are, also the
        intact ones behind the damage, under names that no start reads. The cut knows them.
        """
        core = self._core
        self._check()
        cut_at = self._core.readable(self._before_damage)
        bases = [
            one.base_offset
            for one in reversed(core.segments.all())
            if one.base_offset >= cut_at and one.size_bytes
        ]
        kept_names: list[str] = []
        aside = partial(keep_aside, core.files, core.directory, bases, kept_names)
        is_empty = cut_at <= core.segments.first_base
        begin = self._begin_empty if is_empty else self._begin_shorter
        cut = begin(cut_at, now_ms, [aside])
        cut.kept_names = kept_names
        return cut

    def end(self, cut: Cut) -> None:
        """Go on with what a cut has left, unless the log was deleted or went offline meanwhile."""
        core = self._core
        assert core.cut is cut, f"{core.tp}: another cut is under way"
        cut.leftover = core.segments.take_files()
        core.unsynced.clear()
        if not core.take_back():
            return
        assert cut.recovered is not None, f"{core.tp}: the cut has not been run"
        if cut.clean_offset is not None:
            cut.clean_offset.end()
        core.adopt(cut.recovered)
        core.start_offset = min(core.start_offset, core.end_offset)
        empty_at = cut.start_offset
        assert empty_at is None or empty_at == core.start_offset == core.end_offset, (
            f"{core.tp}: not empty at {empty_at}"
        )

    def give_up(self, cut: Cut) -> None:
        """Leave the log as it was. Only of a cut that no thread has begun to run."""
        core = self._core
        assert core.cut is cut, f"{core.tp}: another cut is under way"
        assert not cut.has_begun, f"{core.tp}: its files have been changed"
        cut.is_given_up = True
        if core.take_back():
            core.open_files.note(core)
            core.note_durable(cut.durable_before)

    def settle(self) -> None:
        """End the cut that is under way if it has been run, or else give it up; at a stop.

        Raises what it has failed with. The thread that was to run it has stopped.
        """
        cut = self._core.cut
        if cut is None:
            return
        if cut.problem is not None:
            raise cut.problem
        if cut.has_begun:
            self.end(cut)
        else:
            self.give_up(cut)

    # At once

    def truncate(self, to_offset: Offset, now_ms: TimestampMs) -> None:
        """Forget everything from `to_offset` on. A batch that holds `to_offset` goes as a whole."""
        self._cleaning.finish_swap()
        cut = self.begin(to_offset, now_ms)
        if cut is not None:
            self._finish(cut)

    def restart_at(self, offset: Offset, now_ms: TimestampMs) -> None:
        """Forget everything and begin again, empty, at `offset`."""
        self._cleaning.finish_swap()
        self._finish(self.begin_restart(offset, now_ms))

    def set_damaged_aside(self, now_ms: TimestampMs) -> list[str]:
        """Cut the log before its first damage; return the names that what is cut off has now."""
        self._cleaning.finish_swap()
        cut = self.begin_setting_aside(now_ms)
        self._finish(cut)
        core = self._core
        assert not core.damages.ranges, f"{core.tp}: still damaged at {core.damages.ranges}"
        return cut.kept_names

    def _finish(self, cut: Cut) -> None:
        core = self._core
        if cut.needs_checkpoint:
            try:
                core.listener.before_truncate(core.tp)
            except OSError:
                self.give_up(cut)
                raise
        try:
            cut.run()
        except OSError as error:
            core.fail(error)
            self.end(cut)
            raise
        self.end(cut)
        cut.leftover.clear()

    # Deciding

    def _check(self) -> None:
        core = self._core
        if core.offline_reason is not None:
            raise StorageFailed(core.offline_reason)
        if core.segments.is_swapping:
            raise StorageFailed(f"{core.tp}: a compacted segment takes its place")

    def _begin_shorter(self, to_offset: Offset, now_ms: TimestampMs, before: Sequence[Step]) -> Cut:
        """Begin to cut the log behind its first segment. The steps `before` come first."""
        core = self._core
        segments = core.segments
        segment, size_bytes, end_offset = self._core.readable(partial(self._last_kept, to_offset))
        base = segment.base_offset
        kept = KeptEnd(base, size_bytes, None if core.is_synced else segment.file)
        removed = Removed(
            [one.base_offset for one in reversed(segments.all()) if one.base_offset > base],
            [base, *(one for one in core.lost_seals if one >= base)],
            core.snapshots.above(end_offset),
        )
        active = (segments.active.base_offset, segments.active.indexes)
        change = partial(cut_end, core.files, core.directory, kept, removed, active)
        return self._begin([*before, change], None, end_offset, now_ms)

    def _begin_empty(self, offset: Offset, now_ms: TimestampMs, before: Sequence[Step]) -> Cut:
        """Begin to forget the whole log. The steps `before` come first."""
        core = self._core
        bases = [one.base_offset for one in reversed(core.segments.all())]
        removed = Removed(bases, list(core.lost_seals), core.snapshots.above(NO_OFFSET))
        change = partial(cut_all, core.files, core.directory, removed)
        return self._begin([*before, change], offset, offset, now_ms)

    def _begin(
        self,
        steps: Sequence[Step],
        start_offset: Offset | None,
        end_offset: Offset,
        now_ms: TimestampMs,
    ) -> Cut:
        """Lend the log's files to a cut. It begins with what is not on disk yet."""
        core = self._core
        is_synced, durable_before = core.is_synced, core.durable_offset
        lowered = end_offset
        start, epochs = core.start_offset, core.epochs
        if start_offset is not None:
            lowered = min(end_offset, core.segments.first_base)
            start, epochs = start_offset, Epochs()
        clean_offset = self._cleaning.begin_lowering(lowered)
        settling: list[Step] = [one.errand.run for one in core.segments.unstored]
        settling += [file.sync for file in core.unsynced]
        settling += [] if clean_offset is None else [clean_offset.run]
        core.timeline += 1
        core.durable_offset = min(core.durable_offset, lowered)
        assert core.durable_offset <= core.end_offset, f"{core.tp}: durable behind the end"
        self._flushing.forget_save()
        noted = NotedState(NO_UUID, epochs.encode(), b"")
        opening = partial(
            recover,
            core.files,
            core.directory,
            start_offset=start,
            recovery_point=EVERYTHING,
            interval_bytes=core.config.index_interval_bytes,
            now_ms=now_ms,
            noted=noted,
        )
        cut = Cut(
            steps=[*settling, *steps],
            reopen=partial(reopen, core.files, core.directory, opening, start),
            start_offset=start_offset,
            end_offset=end_offset,
            end_before=core.end_offset,
            truncated_count=max(core.end_offset - max(end_offset, core.start_offset), 0),
            durable_before=durable_before,
            clean_offset=clean_offset,
            needs_checkpoint=core.checkpointed_offset > core.durable_offset,
        )
        if is_synced:
            core.segments.release()
        core.lend(cut)
        return cut

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
