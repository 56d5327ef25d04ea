"""Making a log durable, and saving what shortens the next start.

`LogFlush.begin` returns the work, any thread runs it, and `LogFlush.end` notes on the owner's
thread that it is done.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ottla.model import Offset, Position
from ottla.storage.files import CROWDED_ERRNOS, FULL_DISK_ERRNOS, File, Files
from ottla.storage.index import aborted_crc
from ottla.storage.log_core import LogCore
from ottla.storage.log_states import LogState, fits
from ottla.storage.names import SAVING
from ottla.storage.segment import index_contents
from ottla.storage.segments import Unstored


@dataclass(slots=True)
class Saved:
    """A state for the checkpoint, or files if that would be large.

    The files are indexes, written by the thread that flushes. The owner then gives them their
    names, and stores the snapshot of producers.
    """

    state: bytes = b""
    contents: dict[str, bytes] = field(default_factory=dict)  # by path
    snapshot: bytes = b""
    is_written: bool = False

    def write(self, files: Files, *, is_syncing: bool = True) -> None:
        """Write the files. A full disk is no reason to stop: a start then takes longer."""
        try:
            for path, content in self.contents.items():
                file = files.create(path + SAVING)  # a roll may write its own at the same time
                file.append(content)
                if is_syncing:
                    file.sync()
        except OSError as error:
            if error.errno not in FULL_DISK_ERRNOS | CROWDED_ERRNOS:
                raise
            self.give_up(files)
            return
        self.is_written = True

    def give_up(self, files: Files) -> None:
        for path in self.contents:
            files.unlink(path + SAVING)

    def take_names(self, files: Files) -> None:
        for path in self.contents:
            files.rename(path + SAVING, path)


class FlushWork(NamedTuple):
    """The files to sync for everything below `end_offset` to be durable.

    Made on the owner's thread by `LogFlush.begin`, run on any, and ended on the owner's thread.
    """

    flushing: "LogFlush"
    unstored: tuple[Unstored, ...]
    sealed_files: tuple[File, ...]
    active_file: File | None  # None when all of it is on disk
    active_base: Offset
    directory: Path | None  # whose names are not yet on disk
    end_offset: Offset
    timeline: int
    segments_created: int
    saved: Saved | None  # requested with `LogFlush.save`

    @property
    def has_names(self) -> bool:
        """True when files take their names at the end of this work."""
        return bool(self.unstored) or (self.saved is not None and not self.saved.state)

    def run(self, files: Files, *, is_synced: bool = False) -> None:
        """Sync. Older files first: what is durable has no holes.

        With `is_synced`, all that had been written when this was made, and what is `saved`, is on
        disk already.
        """
        try:
            self._run(files, is_synced=is_synced)
        except FileNotFoundError:
            if not self.flushing.is_gone:  # else it has been deleted, names and all
                raise

    def _run(self, files: Files, *, is_synced: bool) -> None:
        for one in self.unstored:
            one.errand.run()
        if is_synced:
            return
        if self.saved is not None:
            self.saved.write(files)
        for file in self.sealed_files:
            file.sync()
        if self.active_file is not None:
            self.active_file.sync()
        if self.directory is not None:
            files.sync_dir(self.directory)


class LogFlush:
    """The part of a log that brings it to disk."""

    def __init__(self, core: LogCore) -> None:
        self._core = core
        self._segments_synced = 0  # whose names are on disk
        self._is_save_wanted = False

    @property
    def state(self) -> bytes:
        """The state that a start goes on from, for the checkpoint; empty if files have it."""
        return self._core.state

    @property
    def checkpointed_offset(self) -> Offset:
        """The recovery point that may be on disk."""
        return self._core.checkpointed_offset

    @property
    def is_gone(self) -> bool:
        """True if the log was deleted, or its disk failed."""
        return self._core.is_gone

    @property
    def wants_flush(self) -> bool:
        """True when anything waits to be made durable."""
        return self._is_save_wanted or self._core.wants_sync

    @property
    def wants_sync(self) -> bool:
        """True when records have been written and are not on disk."""
        return self._core.wants_sync

    def begin(self, *, is_saving: bool = True) -> FlushWork | None:
        """The work that makes durable what was appended so far; None when all of it is.

        Without `is_saving`, what `save` requested is left to the next flush.
        """
        core = self._core
        segments, end_offset = core.segments, core.end_offset
        is_written = core.durable_offset != end_offset
        if core.offline_reason is not None or not (
            is_written or segments.unstored or self._is_save_wanted
        ):
            return None
        assert core.durable_offset <= end_offset, f"{core.tp}: durable behind the end"
        active = segments.active
        core.remember(end_offset, active, Position(active.size_bytes))
        has_new_names = core.segments_created != self._segments_synced
        return FlushWork(
            flushing=self,
            unstored=tuple(segments.unstored),
            sealed_files=tuple(core.unsynced),
            active_file=active.file if is_written else None,
            active_base=active.base_offset,
            directory=core.directory if has_new_names else None,
            end_offset=end_offset,
            timeline=core.timeline,
            segments_created=core.segments_created,
            saved=self._begin_save() if is_saving and self._is_save_wanted else None,
        )

    def end(self, work: FlushWork) -> None:
        """Everything that `work` covers is on disk, unless the log was truncated meanwhile."""
        core = self._core
        if work.saved is not None:
            self._end_save(work, work.saved)
        if work.timeline != core.timeline:
            return
        if work.sealed_files:
            core.unsynced = [file for file in core.unsynced if file not in work.sealed_files]
        self._segments_synced = max(self._segments_synced, work.segments_created)
        if work.unstored:
            core.segments.note_stored(work.unstored)
        core.note_durable(work.end_offset)

    def flush(self) -> None:
        """Make everything appended so far durable, and wait for it."""
        work = self.begin()
        if work is None:
            return
        try:
            work.run(self._core.files)
        except OSError as error:
            raise self._core.fail(error) from error
        self.end(work)

    def save(self) -> None:
        """Prepare what shortens the next start for a checkpoint: now, or with the next flush."""
        core = self._core
        if core.offline_reason is not None or core.saved_end == (core.timeline, core.end_offset):
            return
        core.saved_end = (core.timeline, core.end_offset)
        if not core.wants_sync and self._is_small:
            core.state = self._encode_state()
        else:
            self._is_save_wanted = True

    def forget_save(self) -> None:
        """The log is being truncated: the state that `save` requested is no longer its state."""
        self._is_save_wanted = False

    def note_checkpoint(self, offset: Offset) -> None:
        """From now on a checkpoint on disk may say that everything below `offset` is durable."""
        core = self._core
        assert offset <= core.durable_offset, f"{core.tp}: {offset} is not synced"
        self._core.checkpointed_offset = max(self._core.checkpointed_offset, offset)

    def _begin_save(self) -> Saved:
        self._is_save_wanted = False
        active = self._core.segments.active
        if self._is_small:
            return Saved(self._encode_state(), is_written=True)
        return Saved(
            contents=index_contents(self._core.directory, active.base_offset, active.indexes),
            snapshot=self._core.producers.encode(aborted_crc(active.indexes.aborted)),
        )

    @property
    def _is_small(self) -> bool:
        """True when the state fits into the checkpoint."""
        return fits(self._core.segments.active.indexes, self._core.producers)

    def _encode_state(self) -> bytes:
        active = self._core.segments.active
        return LogState(
            active.base_offset,
            active.size_bytes,
            active.end_offset,
            active.opened_ms,
            active.indexes,
            self._core.producers,
        ).encode()

    def _end_save(self, work: FlushWork, saved: Saved) -> None:
        core = self._core
        if not saved.is_written or core.is_gone:
            return  # a full disk, or a log that has been deleted meanwhile
        is_uncut = work.timeline == core.timeline
        if is_uncut:
            core.state = saved.state
        if saved.state:
            return
        try:
            if is_uncut and work.active_base == core.segments.active.base_offset:
                saved.take_names(core.files)
            else:  # sealed meanwhile, it has newer ones
                saved.give_up(core.files)
            if is_uncut:
                core.write_snapshot(work.end_offset, saved.snapshot)
        except OSError as error:
            core.tolerate_full_disk(error)
