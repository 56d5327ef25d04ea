"""A data directory: its lock, its logs, and the checkpoints by which they are opened again.

Every file of metadata says whether it is whole. The recovery points, the start offsets, the states
of logs, the mark of a clean close, `partition.metadata` and snapshots carry a checksum; indexes
are caches.

Which of the logs are opened, deleted or set aside decides the judge that `open_logs` is given.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from ottla.config import TopicConfig
from ottla.errors import DiskFull, StorageFailed, TopicAlreadyExists
from ottla.model import Offset, TimestampMs, TopicPartition, Uuid
from ottla.records.batch import FIRST_OFFSET
from ottla.storage.damages import CorruptRange
from ottla.storage.dir_checkpoints import DirCheckpoints, NotedMarks, report_ignored
from ottla.storage.files import (
    FULL_DISK_ERRNOS,
    REFUSAL_ERRNOS,
    DiskSpace,
    Files,
    Lock,
    within,
)
from ottla.storage.found_logs import Expected, Judge, expect_noted, keep_known
from ottla.storage.log import Log
from ottla.storage.log_dir_listener import LogDirListener, SilentDirListener
from ottla.storage.log_directories import FIRST_SEGMENT, Forgotten, LogDirectories
from ottla.storage.log_states import LOG_STATES_FILE, FoundStates, NotedState
from ottla.storage.names import METADATA_FILE, deleted_name
from ottla.storage.open_files import OpenFiles
from ottla.storage.partition_metadata import encode_metadata
from ottla.storage.recovery import EPOCHS_FILE
from ottla.storage.recovery_scan import EVERYTHING
from ottla.storage.reserve import Reserve
from ottla.storage.segments import Discarded
from ottla.storage.small_file import Replacement

LOCK_FILE: Final = ".lock"
# From so many logs on, one wait for the whole disk is shorter than one for each of them.
MANY: Final = 64

_log = logging.getLogger("ottla.storage")


class LogDir:
    """The logs of one disk. Owned by one broker, as the lock makes sure."""

    def __init__(self, files: Files, path: Path, open_files_max: int = sys.maxsize) -> None:
        self.path = path
        self.logs: dict[TopicPartition, Log] = {}
        self.topic_ids: dict[TopicPartition, Uuid] = {}
        self.directories = LogDirectories(files, path)
        self.has_recovery_points = False  # whether the last start found them, whole
        self.was_clean = True  # whether the last stop left its mark; of a new directory, True
        self.offline_reason: str | None = None
        self._files = files
        self.listener: LogDirListener = SilentDirListener()
        self._log_events = _LogEvents(self)
        self._open_files = OpenFiles(open_files_max, self.flush_all)
        self._checkpoints = DirCheckpoints(files, path, self.logs, self.topic_ids)
        files.make_dir(path)
        self._lock: Lock | None = files.lock(path / LOCK_FILE)
        self.reserve = Reserve(files, path)

    def disk_space(self) -> DiskSpace:
        """The file system that the directory is on."""
        return self._files.disk_space(self.path)

    def open_logs(
        self,
        config_of: Callable[[TopicPartition], TopicConfig],
        now_ms: TimestampMs,
        progress: Callable[[int, int], None] | None = None,
        *,
        judge: Judge = keep_known,
        expected: Expected = expect_noted,
        is_checked: bool = True,
        listener: LogDirListener | None = None,
    ) -> Mapping[TopicPartition, Log]:
        """Open the logs that `judge` lets open, and report how many of how many are done.

        A log that a checkpoint names, `expected` expects and the disk has lost begins behind what
        is known of it. With `is_checked`, a `partition.metadata` without a checksum is damaged.
        Without, it is of an older Ottla, believed, and written again with one. `listener` gets
        the events of the directory and its logs from now on.
        """
        self.listener = listener or self.listener
        try:
            self.topic_ids.update(self.directories.settle_found(judge, is_checked=is_checked))
            was_clean = self._checkpoints.take_clean_mark()
            self.was_clean = was_clean or not self.topic_ids
            is_synced = not was_clean and len(self.topic_ids) >= MANY
            if is_synced:
                self._sync_disk()
            noted, states = self._checkpoints.read(), self._checkpoints.read_states()
            self.has_recovery_points = noted.points is not None
            for offsets in filter(None, (noted.points, noted.starts, noted.deleted)):
                self.directories.make_lost(expected, offsets, self.topic_ids)
            found = list(self.topic_ids.items())
            for done, (tp, topic_id) in enumerate(found, 1):
                end = noted.end_of(tp, topic_id)
                point, closed_at = (EVERYTHING, end) if was_clean else (end or FIRST_OFFSET, None)
                start = noted.start_of(tp, topic_id)
                self._open(
                    tp,
                    config_of(tp),
                    start,
                    point,
                    now_ms,
                    closed_at,
                    states.of(tp, topic_id),
                    is_synced=is_synced,
                )
                watermark = noted.watermark_of(tp, topic_id)
                if watermark is not None:
                    self.logs[tp].noted_watermark = watermark
                if progress is not None:
                    progress(done, len(found))
            self.reserve.refill()
            self._checkpoint_opened(noted, states, is_recovered=bool(found) and not was_clean)
        except OSError as error:
            self.take_offline(error)
            path, reason = error.filename or self.path, error.strerror or error
            raise StorageFailed(
                f"{path} cannot be opened: {reason}; repair what is there, or bring it back from a"
                " copy, and start again"
            ) from error
        return self.logs

    def _checkpoint_opened(
        self, noted: NotedMarks, states: FoundStates, *, is_recovered: bool
    ) -> None:
        """Write a checkpoint if the start found another one: nothing is recovered twice."""
        is_noted = (noted.points, noted.starts) == self._checkpoints.offsets()
        old = [log for log in self.logs.values() if log.has_epochs_file]
        if states.problem is not None and not old:
            report_ignored(LOG_STATES_FILE, states.problem)
        if not is_noted or states.problem is not None or old or is_recovered:
            is_noted = self.checkpoint()
        if is_noted:
            for log in old:
                self._files.unlink(log.directory / EPOCHS_FILE)  # of an older Ottla

    def create_log(
        self, tp: TopicPartition, topic_id: Uuid, config: TopicConfig, now_ms: TimestampMs
    ) -> Log:
        """A new and empty log, which is there after a power cut once this returns.

        With the reserve's room if there is no other.
        """
        if self.offline_reason is not None:
            raise StorageFailed(self.offline_reason)
        if tp in self.logs:
            raise TopicAlreadyExists(f"{tp} exists already on this broker")
        try:
            self.reserve.lend(partial(self.prepare_log, tp, topic_id))
            return self.reserve.lend(partial(self.adopt_log, tp, topic_id, config, now_ms))
        except OSError as error:
            raise self.refusal(error) from error

    def refusal(self, error: OSError) -> StorageFailed:
        """The error to raise for a log that could not be made."""
        if error.errno in REFUSAL_ERRNOS:  # nothing that is here already is in doubt
            return StorageFailed(f"{self.path} may not be changed: {error}")
        return self.note_failure(error)

    def prepare_log(self, tp: TopicPartition, topic_id: Uuid) -> None:
        """The part of making a log that waits for the disk. On any thread; may be done again.

        What has the name already, and is not what an earlier attempt left, is set aside.
        """
        directory = self.directories.make(tp, topic_id)
        self._files.create(directory / FIRST_SEGMENT)
        self._files.sync_dir(directory)
        self._files.sync_dir(self.path)

    def prepare_logs(self, wanted: Sequence[tuple[TopicPartition, Uuid]]) -> None:
        """`prepare_log` for many logs, with one wait for all of them."""
        taken = set(self._files.names(self.path))
        for tp, topic_id in wanted:
            if str(tp) in taken:
                self.prepare_log(tp, topic_id)
                continue
            directory = within(self.path, str(tp))
            self._files.make_dir(directory)
            metadata = self._files.create(within(directory, METADATA_FILE))
            metadata.append(encode_metadata(topic_id))
            self._files.create(within(directory, FIRST_SEGMENT))
        self._sync_disk()

    def adopt_log(
        self, tp: TopicPartition, topic_id: Uuid, config: TopicConfig, now_ms: TimestampMs
    ) -> Log:
        """The part that belongs to the owner: from here on the log is one of ours."""
        assert tp not in self.logs, "a log is made once"
        if self.offline_reason is not None:
            raise StorageFailed(self.offline_reason)
        self.topic_ids[tp] = topic_id
        return self._open(tp, config, FIRST_OFFSET, FIRST_OFFSET, now_ms, is_new=True)

    def delete_log(self, tp: TopicPartition, rng: Random) -> None:
        """Forget a log at once and for good; readers of its files may finish."""
        try:
            self.directories.remove(self.forget_log(tp, rng))
        except OSError as error:
            raise self.note_failure(error) from error

    def forget_log(self, tp: TopicPartition, rng: Random) -> Forgotten:
        """The part of deleting a log that belongs to the owner: it is none of ours any more."""
        log = self.logs.pop(tp)
        self.topic_ids.pop(tp, None)
        log.retire(f"{tp} has been deleted")
        return Forgotten(log.directory, self.path / deleted_name(tp, rng.getrandbits(128)))

    def adopt_stray(self, stray: str, tp: TopicPartition) -> None:
        """Give a stray the name of a log again. The next start opens it, and trusts nothing of it.

        An empty log that has the name is set aside for it.
        """
        self.directories.check_adoptable(tp)
        self._checkpoints.distrust(tp)
        self.directories.adopt_stray(stray, tp)

    # Durability

    def checkpoint(self, flush: Callable[[Log], None] | None = None) -> bool:
        """Write down how far every log is durable, and have stored what shortens a start.

        False if that failed: on a full disk the old checkpoint is still there.
        `flush` (production: the flusher's `request`) is asked to make durable what is not yet,
        so that nothing stays in memory only for longer than until the next checkpoint.
        """
        if self.offline_reason is not None:
            return False
        try:
            self.save_logs(self.logs.values(), flush)
            for step in (replacements := self.begin_checkpoint()):
                step.run()
            self.end_checkpoint(replacements)
        except OSError as error:
            self.note_failure(error)
            return False
        return True

    def save_logs(self, logs: Iterable[Log], flush: Callable[[Log], None] | None) -> None:
        """Have these logs ready for a checkpoint, or for the next one if they are not on disk."""
        for log in logs:
            log.flushing.save()
            if flush is not None and log.flushing.wants_flush:
                flush(log)

    def begin_checkpoint(self) -> list[Replacement[Any]]:
        """The files that a checkpoint has to write, for any thread to run in this order."""
        return self._checkpoints.begin()

    def begin_watermarks(self) -> Replacement[Any] | None:
        """The file of high watermarks to write, for any thread; None if it says the same."""
        return self._checkpoints.begin_watermarks()

    def end_checkpoint(self, replacements: Iterable[Replacement[Any]]) -> None:
        """Everything that `begin_checkpoint` returned has been run."""
        for one in replacements:
            one.end()
        self.reserve.refill()

    def write_checkpoint(self) -> None:
        """Have on disk, now, up to where logs are durable: before one of them is truncated."""
        self._checkpoints.write()

    def deletions(self) -> list[str]:
        """The start offsets of logs that do not start at 0, as `write_deletions` takes them."""
        return self._checkpoints.deletions()

    def write_deletions(self, lines: Sequence[str]) -> None:
        """Make deletions durable. On any thread, but only on one at a time."""
        self._checkpoints.write_deletions(lines)

    def flush_all(self) -> None:
        """Bring every log to disk, now, with one wait: there are more than may stay open."""
        parts = (log.flushing for log in self.logs.values())
        begun = (part.begin(is_saving=False) for part in parts if part.wants_sync)
        works = [work for work in begun if work is not None]
        try:
            self._sync_disk()
            for work in works:
                work.run(self._files, is_synced=True)
        except OSError as error:
            self.take_offline(error)  # whatever the caller does with it: the error is reported once
            raise
        for work in works:
            work.flushing.end(work)

    def _sync_disk(self) -> None:
        assert self._lock is not None, "it is ours until it is closed"
        self._files.sync_all(self._lock)

    def close(self) -> None:
        """Make everything durable and leave a mark that says so."""
        try:
            if self.offline_reason is None:
                for log in self.logs.values():
                    log.truncation.settle()
                self._close_logs()
                self._checkpoints.write()
                self._checkpoints.write_clean_mark()
        except OSError as error:
            self.note_failure(error)
        except StorageFailed:
            assert self.offline_reason is not None, "a log that fails takes its directory offline"
        self.abandon()

    def _close_logs(self) -> None:
        """Bring every log to disk, with what makes the next start short."""
        if len(self.logs) < MANY:
            for log in self.logs.values():
                log.close()
            return
        for log in self.logs.values():
            log.flushing.save()
        begun = (log.flushing.begin() for log in self.logs.values())
        flushes = [flush for flush in begun if flush is not None]
        for flush in flushes:
            if flush.saved is not None:
                flush.saved.write(self._files, is_syncing=False)
        self._sync_disk()
        for flush in flushes:
            flush.run(self._files, is_synced=True)
            flush.flushing.end(flush)
        if any(flush.has_names for flush in flushes):
            self._sync_disk()

    def release(self) -> None:
        """Release a directory without opened logs; no checkpoint is written."""
        assert not self.logs, "logs that were opened are closed"
        self._lock = None

    def abandon(self) -> None:
        """Let go of the directory as a crash does: the next start recovers its logs."""
        for log in self.logs.values():
            log.close_files()
        self._lock = None

    def take_offline(self, error: OSError) -> None:
        """The disk cannot be trusted any more: nothing is read, written or acknowledged."""
        if self.offline_reason is not None:
            return
        self.offline_reason = f"{self.path} is offline: {error}"
        _log.error("data directory offline", extra={"path": str(self.path), "error": str(error)})
        for log in self.logs.values():
            log.take_offline(self.offline_reason)
        self.listener.note_offline(self.offline_reason)

    def _open(
        self,
        tp: TopicPartition,
        config: TopicConfig,
        start_offset: Offset,
        recovery_point: Offset,
        now_ms: TimestampMs,
        closed_at: Offset | None = None,
        noted: NotedState | None = None,
        *,
        is_synced: bool = False,
        is_new: bool = False,
    ) -> Log:
        log = Log(
            tp,
            self._files,
            self.path / str(tp),
            config,
            start_offset=start_offset,
            recovery_point=recovery_point,
            now_ms=now_ms,
            closed_at=closed_at,
            noted=noted,
            names=self.directories.take_names(tp),
            is_synced=is_synced,
            is_new=is_new,
            open_files=self._open_files,
            listener=self._log_events,
        )
        self.logs[tp] = log
        if log.cut_bytes:
            _log.warning("torn tail cut", extra={"tp": str(tp), "bytes": log.cut_bytes})
        for damage in log.corrupt:
            _report_damage(tp, damage)
        return log

    def note_failure(self, error: OSError) -> StorageFailed:
        """The error to raise. Anything but a full disk takes the directory offline."""
        if error.errno in FULL_DISK_ERRNOS:
            _log.error("disk full", extra={"path": str(self.path)})
            return DiskFull("the disk is full")
        self.take_offline(error)
        return StorageFailed(f"{self.path} is offline: {error}")


class _LogEvents:
    """Events of the logs of one directory: what concerns the disk stays here."""

    def __init__(self, log_dir: LogDir) -> None:
        self._log_dir = log_dir

    def note_durable(self, tp: TopicPartition) -> None:
        self._log_dir.listener.note_durable(tp)

    def note_crowded(self, tp: TopicPartition) -> None:
        self._log_dir.listener.note_crowded(tp)

    def note_start(self, tp: TopicPartition) -> None:
        self._log_dir.listener.note_start(tp)

    def note_failed(self, tp: TopicPartition, error: OSError) -> None:
        self._log_dir.take_offline(error)

    def note_damaged(self, tp: TopicPartition, damage: CorruptRange) -> None:
        _report_damage(tp, damage)
        self._log_dir.listener.note_damaged(tp)

    def note_epochs_wrong(self, tp: TopicPartition) -> bool:
        return self._log_dir.listener.note_epochs_wrong(tp)

    def before_truncate(self, tp: TopicPartition) -> None:
        """Store the recovery points, unless the log is being opened, and others are not yet."""
        if tp in self._log_dir.logs:
            self._log_dir.write_checkpoint()

    def discard(self, discarded: Discarded) -> None:
        self._log_dir.listener.discard(discarded)


def _report_damage(tp: TopicPartition, damage: CorruptRange) -> None:
    _log.error("log damaged", extra={"tp": str(tp), "range": damage})
