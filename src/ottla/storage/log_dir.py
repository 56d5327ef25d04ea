"""One data directory: its lock, its logs, and what has to be known to open them again.

Every file of metadata says whether it is whole. The recovery points, the start offsets, the states
of logs, the mark of a clean close, `partition.metadata` and snapshots carry a checksum; indexes
are caches.

Nothing is removed that nobody asked to delete. Which logs are opened, and which belong to topics
that were deleted, is not decided here: `open_logs` asks. What is neither is set aside, its files
as they are, under a name that ends with `-stray`.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from ottla.config import TopicConfig
from ottla.errors import DiskFull, StorageFailed, TopicAlreadyExists, UsageRefused
from ottla.model import Offset, TimestampMs, TopicPartition, Uuid, format_uuid
from ottla.storage.checkpoints import (
    CheckpointDamaged,
    encode_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from ottla.storage.damages import CORRUPT_FILE, CorruptRange
from ottla.storage.files import (
    FULL_DISK_ERRNOS,
    REFUSAL_ERRNOS,
    Entry,
    Files,
    Lock,
    replace_file,
    within,
)
from ottla.storage.log import Log
from ottla.storage.log_states import (
    LOG_STATES_FILE,
    FoundStates,
    NotedState,
    NotedStates,
    decode_states,
    encode_states,
)
from ottla.storage.names import (
    METADATA_FILE,
    TEMPORARY,
    deleted_name,
    is_deleted_dir,
    is_log_file,
    is_offset,
    parse_log_dir,
    parse_stray,
    stray_name,
)
from ottla.storage.offset_checkpoint import (
    NotedOffset,
    NotedOffsets,
    decode_offsets,
    encode_offsets,
    noted_offset,
)
from ottla.storage.open_files import OpenFiles
from ottla.storage.partition_metadata import (
    MetadataDamaged,
    decode_metadata,
    encode_metadata,
    has_checksum,
)
from ottla.storage.recovery import EPOCHS_FILE, EVERYTHING
from ottla.storage.reserve import Reserve
from ottla.storage.segment import LOG, file_name
from ottla.storage.segments import Discarded
from ottla.storage.small_file import Replacement, SmallFile

LOCK_FILE: Final = ".lock"
CLEAN_FILE: Final = ".clean-shutdown"
RECOVERY_POINTS_FILE: Final = "recovery-point-offset-checkpoint"
START_OFFSETS_FILE: Final = "log-start-offset-checkpoint"
DELETIONS_FILE: Final = "deleted-records-checkpoint"
# From so many logs on, one wait for the whole disk is shorter than one for each of them.
MANY: Final = 64
_FIRST_SEGMENT: Final = file_name(Offset(0), LOG)

_log = logging.getLogger("ottla.storage")


def _no_concern(error: OSError) -> None:
    """What becomes of the files of a log that is deleted takes nothing else offline."""


class FoundLog(NamedTuple):
    """A directory that is a log's by its name, before anything in it is opened or changed.

    `topic_id` is None when `partition.metadata` does not say it; `problem` then says why.
    """

    tp: TopicPartition
    topic_id: Uuid | None
    problem: str = ""


class Fate(Enum):
    """What becomes of a log that was found."""

    OPEN = 1
    DELETE = 2
    SET_ASIDE = 3


class Verdict(NamedTuple):
    """The fate of a log, why it is set aside, and the id it gets if it could not say its own."""

    fate: Fate
    reason: str = ""
    topic_id: Uuid | None = None


Judge = Callable[[FoundLog], Verdict]


def keep_known(found: FoundLog) -> Verdict:
    """Open every log that says whose it is."""
    return Verdict(Fate.SET_ASIDE if found.topic_id is None else Fate.OPEN, found.problem)


# The topic id of a log whose directory is missing, given the id that is noted of it; None if it
# is not to be here.
Expected = Callable[[TopicPartition, Uuid | None], Uuid | None]


def expect_noted(tp: TopicPartition, topic_id: Uuid | None) -> Uuid | None:
    """Expect every log that a checkpoint names with its topic's id."""
    return topic_id


class Forgotten(NamedTuple):
    """The directory of a deleted log, and the name that it has while its files go."""

    directory: Path
    aside: Path


class _Noted(NamedTuple):
    """What the checkpoints say; None for one that is not there, or not believed."""

    points: NotedOffsets | None
    starts: NotedOffsets | None
    deleted: NotedOffsets | None

    def end_of(self, tp: TopicPartition, topic_id: Uuid) -> Offset | None:
        """Up to where a log was on disk, if that is known."""
        return noted_offset(self.points or {}, tp, topic_id)

    def start_of(self, tp: TopicPartition, topic_id: Uuid) -> Offset:
        """Where a log begins: behind what retention or DeleteRecords has taken."""
        starts = (noted_offset(one or {}, tp, topic_id) for one in (self.starts, self.deleted))
        return max(start or Offset(0) for start in starts)


class LogDir:
    """The logs of one disk. Owned by one broker, as the lock makes sure."""

    def __init__(self, files: Files, path: Path, open_files_max: int = sys.maxsize) -> None:
        self.path = path
        self.logs: dict[TopicPartition, Log] = {}
        self.topic_ids: dict[TopicPartition, Uuid] = {}
        self.stray_count = 0
        self.has_recovery_points = False  # whether the last start found them, whole
        self.offline_reason: str | None = None
        self.on_offline: Callable[[str], None] = _ignore
        self.discard: Callable[[Discarded], None] = Discarded.remove
        self._files = files
        self._names: dict[TopicPartition, Sequence[str]] = {}  # in logs that are about to be opened
        self._open_files = OpenFiles(open_files_max)
        self._open_files.flush_all = self._flush_all
        self._states_file = SmallFile(files, path / LOG_STATES_FILE, encode_states)
        self._points_file = SmallFile(files, path / RECOVERY_POINTS_FILE, _encode_noted)
        self._starts_file = SmallFile(files, path / START_OFFSETS_FILE, _encode_noted)
        files.make_dir(path)
        self._lock: Lock | None = files.lock(path / LOCK_FILE)
        self.reserve = Reserve(files, path)

    def open_logs(
        self,
        config_of: Callable[[TopicPartition], TopicConfig],
        now_ms: TimestampMs,
        progress: Callable[[int, int], None] | None = None,
        *,
        judge: Judge = keep_known,
        expected: Expected = expect_noted,
        is_checked: bool = True,
    ) -> Mapping[TopicPartition, Log]:
        """Open the logs that `judge` lets open, and report how many of how many are done.

        A log that a checkpoint names, `expected` expects and the disk has lost begins behind what
        is known of it. With `is_checked`, a `partition.metadata` without a checksum is damaged.
        Without, it is of an older Ottla, believed, and written again with one.
        """
        try:
            self._settle_found(judge, is_checked=is_checked)
            was_clean = self._take_clean_mark()
            is_synced = not was_clean and len(self.topic_ids) >= MANY
            if is_synced:
                self._sync_disk()
            noted, states = self._read_noted(), self._read_states()
            self.has_recovery_points = noted.points is not None
            for offsets in filter(None, noted):
                self._make_lost(expected, offsets)
            found = list(self.topic_ids.items())
            for done, (tp, topic_id) in enumerate(found, 1):
                end = noted.end_of(tp, topic_id)
                point, closed_at = (EVERYTHING, end) if was_clean else (end or Offset(0), None)
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
                if progress is not None:
                    progress(done, len(found))
            self.reserve.refill()
            is_noted = (noted.points, noted.starts) == self._offsets()
            old = [log for log in self.logs.values() if log.has_epochs_file]
            if states.problem is not None and not old:
                _note_ignored(LOG_STATES_FILE, states.problem)
            if not is_noted or states.problem is not None or old or (found and not was_clean):
                is_noted = self.checkpoint()  # what was recovered need not be recovered again
            if is_noted:
                for log in old:
                    self._files.unlink(log.directory / EPOCHS_FILE)  # of an older Ottla
        except OSError as error:
            self.take_offline(error)
            place, reason = error.filename or self.path, error.strerror or error
            raise StorageFailed(
                f"{place} cannot be opened: {reason}; repair what is there, or bring it back from a"
                " copy, and start again"
            ) from error
        return self.logs

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
        """Why there is no new log, as an answer."""
        if error.errno in REFUSAL_ERRNOS:  # nothing that is here already is in doubt
            return StorageFailed(f"{self.path} may not be changed: {error}")
        return self.note_failure(error)

    def prepare_log(self, tp: TopicPartition, topic_id: Uuid) -> None:
        """The part of making a log that waits for the disk. On any thread; may be done again.

        What has the name already, and is not what an earlier attempt left, is set aside.
        """
        directory = self._make_directory(tp, topic_id)
        self._files.create(directory / _FIRST_SEGMENT)
        self._files.sync_dir(directory)
        self._files.sync_dir(self.path)

    def prepare_logs(self, wanted: Sequence[tuple[TopicPartition, Uuid]]) -> None:
        """The same for many logs, with one wait for all of them."""
        taken = set(self._files.names(self.path))
        for tp, topic_id in wanted:
            if str(tp) in taken:
                self.prepare_log(tp, topic_id)
                continue
            directory = within(self.path, str(tp))
            self._files.make_dir(directory)
            metadata = self._files.create(within(directory, METADATA_FILE))
            metadata.append(encode_metadata(topic_id))
            self._files.create(within(directory, _FIRST_SEGMENT))
        self._sync_disk()

    def _make_directory(self, tp: TopicPartition, topic_id: Uuid) -> Path:
        directory = self.path / str(tp)
        if not self._is_begun(self._content(directory)):
            self.set_aside(directory, "a new log takes its name")
        self._files.make_dir(directory)
        replace_file(self._files, directory / METADATA_FILE, encode_metadata(topic_id))
        return directory

    def adopt_log(
        self, tp: TopicPartition, topic_id: Uuid, config: TopicConfig, now_ms: TimestampMs
    ) -> Log:
        """The part that belongs to the owner: from here on the log is one of ours."""
        assert tp not in self.logs, "a log is made once"
        if self.offline_reason is not None:
            raise StorageFailed(self.offline_reason)
        self.topic_ids[tp] = topic_id
        return self._open(tp, config, Offset(0), Offset(0), now_ms, is_new=True)

    def delete_log(self, tp: TopicPartition, rng: Random) -> None:
        """Forget a log at once and for good; readers of its files may finish."""
        try:
            self.remove_log(self.forget_log(tp, rng))
        except OSError as error:
            raise self.note_failure(error) from error

    def forget_log(self, tp: TopicPartition, rng: Random) -> "Forgotten":
        """The part of deleting a log that belongs to the owner: it is none of ours any more."""
        log = self.logs.pop(tp)
        self._open_files.forget(log)
        self.topic_ids.pop(tp, None)
        log.offline_reason = f"{tp} has been deleted"
        log.on_failed = _no_concern  # its files go while work on them may be under way
        log.give_up_files()
        return Forgotten(log.directory, self.path / deleted_name(tp, rng.getrandbits(128)))

    def remove_log(self, forgotten: "Forgotten") -> None:
        """The part that waits for the disk, on any thread. Its name is free once this returns."""
        self._files.rename(forgotten.directory, forgotten.aside)
        self._files.sync_dir(self.path)
        self._remove(forgotten.aside)

    def remove_unmade(self, tp: TopicPartition) -> None:
        """Remove what an attempt to make a log has left that failed. On any thread."""
        directory = self.path / str(tp)
        if self._content(directory) and self._is_begun(self._content(directory)):
            self._remove(directory)

    def set_aside(self, directory: Path, reason: str) -> None:
        """Give a directory that is not to be opened another name, and say so. On any thread."""
        taken = {entry.name for entry in self._files.list(self.path)}
        stray = self.path / stray_name(directory.name, taken)
        self._files.rename(directory, stray)
        self._files.sync_dir(self.path)
        self.stray_count += 1
        _log.error(
            "set a log aside",
            extra={
                "directory": directory.name,
                "stray": stray.name,
                "reason": reason,
                "help": f"nothing of it was changed: see `ottla log strays list {self.path}`",
            },
        )

    def find_logs(self, *, is_checked: bool) -> list[FoundLog]:
        """Every log that lies here under its own name. Nothing is opened or changed."""
        found = (tp for tp in map(parse_log_dir, self._directories()) if tp is not None)
        return [
            self._find(tp, is_checked=is_checked)
            for tp in found
            if any(map(_is_segment, self._content(self.path / str(tp))))
        ]

    def strays(self) -> list[str]:
        """The names of the directories that were set aside."""
        return [name for name in self._directories() if parse_stray(name) is not None]

    def adopt_stray(self, stray: str, tp: TopicPartition) -> None:
        """Give a stray the name of a log again. The next start opens it, and trusts nothing of it.

        An empty log that has the name is set aside for it.
        """
        self.check_adoptable(tp)
        directory = self.path / str(tp)
        self._distrust(tp)
        if self._content(directory):
            self.set_aside(directory, f"{stray} takes its name")
        self._files.rename(self.path / stray, directory)
        self._files.sync_dir(self.path)
        self.stray_count -= 1

    def check_adoptable(self, tp: TopicPartition) -> None:
        """Refuse a name under which there is a log with records, or something else than a log.

        A log without records is empty from its first offset on, or has lost all that it had.
        """
        directory = self.path / str(tp)
        content = self._content(directory)
        segments = {name: entry.size_bytes for name, entry in content.items() if _is_segment(name)}
        is_empty = segments.keys() == {_FIRST_SEGMENT} or CORRUPT_FILE in content
        if content and (any(segments.values()) or not is_empty):
            raise UsageRefused(
                f"{directory} is there already, and not an empty log: adopt the stray under another"
                " name with --as, or move that directory away first"
            )

    def purge_stray(self, stray: str) -> None:
        """Remove a stray for good, unless there is anything in it that is not ours."""
        assert parse_stray(stray) is not None, stray
        foreign = self._foreign(self.path / stray)
        if foreign:
            raise UsageRefused(
                f"{self.path / stray} holds {foreign[0]!r}, which is not ours: move it away first"
            )
        self._remove(self.path / stray)

    def _distrust(self, tp: TopicPartition) -> None:
        """Forget what is said of a log by its name, and that the last close was clean."""
        self._files.unlink(self.path / CLEAN_FILE)
        for name in (RECOVERY_POINTS_FILE, START_OFFSETS_FILE):
            noted = self._read_offsets(name) or {}
            if noted.pop(tp, None) is not None:
                write_checkpoint(self._files, self.path / name, encode_offsets(noted))
        self._files.sync_dir(self.path)

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
            log.save()
            if flush is not None and log.wants_flush:
                flush(log)

    def begin_checkpoint(self) -> list[Replacement[Any]]:
        """What a checkpoint has to write, for any thread to run in this order.

        Recovery trusts the epochs of a log up to its recovery point: they are written before.
        """
        points, starts = self._offsets()
        for tp, (_, point) in points.items():  # from now on it may be on disk
            self.logs[tp].checkpointed_offset = max(self.logs[tp].checkpointed_offset, point)
        begun = (
            self._states_file.begin(self._states()),
            self._points_file.begin(points),
            self._starts_file.begin(starts),
        )
        return [one for one in begun if one is not None]

    def end_checkpoint(self, replacements: Iterable[Replacement[Any]]) -> None:
        """Everything that `begin_checkpoint` returned has been run."""
        for one in replacements:
            one.end()
        self.reserve.refill()

    def _flush_all(self) -> None:
        """Bring every log to disk, now, with one wait: there are more than may stay open."""
        logs = self.logs.values()
        begun = (log.begin_flush(is_saving=False) for log in logs if log.wants_sync)
        works = [work for work in begun if work is not None]
        try:
            self._sync_disk()
            for work in works:
                work.run(self._files, is_synced=True)
        except OSError as error:
            self.take_offline(error)  # whoever wanted to open a file: it is told only once
            raise
        for work in works:
            work.log.end_flush(work)

    def _sync_disk(self) -> None:
        assert self._lock is not None, "it is ours until it is closed"
        self._files.sync_all(self._lock)

    def deletions(self) -> list[str]:
        """Where every log begins that has lost records, as `write_deletions` takes it."""
        return encode_offsets(self._starts())

    def write_deletions(self, lines: Sequence[str]) -> None:
        """Make deletions durable. On any thread, but only on one at a time.

        The checkpoint says the same, but once a minute.
        """
        write_checkpoint(self._files, self.path / DELETIONS_FILE, lines)

    def close(self) -> None:
        """Make everything durable and leave a mark that says so."""
        try:
            if self.offline_reason is None:
                self._close_logs()
                self._write_noted()
                write_checkpoint(self._files, self.path / CLEAN_FILE, [])
        except OSError as error:
            self.note_failure(error)
        except StorageFailed:
            assert self.offline_reason is not None, "a log that fails takes its directory offline"
        self._lock = None

    def _close_logs(self) -> None:
        """Bring every log to disk, with what makes the next start short."""
        if len(self.logs) < MANY:
            for log in self.logs.values():
                log.close()
            return
        for log in self.logs.values():
            log.save()
        begun = (log.begin_flush() for log in self.logs.values())
        flushes = [flush for flush in begun if flush is not None]
        for flush in flushes:
            if flush.saved is not None:
                flush.saved.write(self._files, is_syncing=False)
        self._sync_disk()
        for flush in flushes:
            flush.run(self._files, is_synced=True)
            flush.log.end_flush(flush)
        if any(flush.has_names for flush in flushes):
            self._sync_disk()

    def release(self) -> None:
        """Let go of a directory whose logs were not opened; nothing is said about them."""
        assert not self.logs, "logs that were opened are closed"
        self._lock = None

    def abandon(self) -> None:
        """Let go of the directory as a crash does: the next start recovers its logs."""
        self._lock = None

    def take_offline(self, error: OSError) -> None:
        """The disk cannot be trusted any more: nothing is read, written or acknowledged."""
        if self.offline_reason is not None:
            return
        self.offline_reason = f"{self.path} is offline: {error}"
        _log.error("data directory offline", extra={"path": str(self.path), "error": str(error)})
        for log in self.logs.values():
            log.offline_reason = self.offline_reason
        self.on_offline(self.offline_reason)

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
            names=self._names.pop(tp, None),
            is_synced=is_synced,
            is_new=is_new,
            open_files=self._open_files,
        )
        log.on_damaged = partial(_report_damage, tp)
        log.on_failed = self.take_offline
        log.before_truncate = self._write_noted
        log.discard = self.discard
        self.logs[tp] = log
        if log.cut_bytes:
            _log.warning("cut a torn tail", extra={"tp": str(tp), "bytes": log.cut_bytes})
        for damage in log.corrupt:
            log.on_damaged(damage)
        return log

    def _settle_found(self, judge: Judge, *, is_checked: bool) -> None:
        """Ask about every log that is here; `topic_ids` has those to open, others are settled.

        What was being removed when the broker stopped goes now.
        """
        names = self._directories()
        if any(map(is_deleted_dir, names)):
            for name in filter(is_deleted_dir, names):
                self._remove(self.path / name)
            names = self._directories()
        self.stray_count = sum(parse_stray(name) is not None for name in names)
        for tp in map(parse_log_dir, names):
            if tp is not None and self._is_log(tp):
                self._settle(tp, judge, is_checked=is_checked)
                if tp not in self.topic_ids:  # another log may get its name
                    self._names.pop(tp, None)
        if self.stray_count:
            _log.warning("logs lie aside", extra={"count": self.stray_count, "path": self.path})

    def _make_lost(self, expected: Expected, noted: NotedOffsets) -> None:
        """Make the directories again of the logs that are expected and not here.

        They hold no segment: recovery begins one where the log is known to have ended. If the
        process dies before that, the next start finds such a directory and does the same.
        """
        for tp, (topic_id, offset) in noted.items():
            if tp in self.topic_ids or (topic_id := expected(tp, topic_id)) is None:
                continue
            _log.error(
                "the directory of a log is missing",
                extra={
                    "tp": str(tp),
                    "known_end": offset,
                    "help": "it goes on behind this offset: bring the directory back if you can",
                },
            )
            self._make_directory(tp, topic_id)
            self._files.sync_dir(self.path)
            self.topic_ids[tp] = topic_id

    def _directories(self) -> list[str]:
        return [entry.name for entry in self._files.list(self.path) if entry.is_dir]

    def _is_log(self, tp: TopicPartition) -> bool:
        """Whether a directory with the name of a log is one.

        `create_log` may have been interrupted: nobody was told of the log, and nothing is in it.
        Kept, it would never learn its topic's id, and outlive the topic.
        """
        names = self._files.names(within(self.path, str(tp)))
        if METADATA_FILE in names and any(map(_is_segment, names)):
            self._names[tp] = names
            return True
        content = self._content(self.path / str(tp))
        if METADATA_FILE not in content and content and self._is_begun(content):
            self._remove(self.path / str(tp))
            return False
        if METADATA_FILE in content or any(map(_is_segment, content)):
            return True
        if content:
            _log.warning("not a log: left alone", extra={"directory": str(tp)})
        return False

    def _settle(self, tp: TopicPartition, judge: Judge, *, is_checked: bool) -> None:
        """Do with a log that was found what `judge` says."""
        found = self._find(tp, is_checked=is_checked)
        if found.topic_id is None and self._is_begun(self._content(self.path / str(tp))):
            # The power was cut while `prepare_logs` made it: nobody was told of it.
            _log.warning("removing a log that was not finished", extra={"directory": str(tp)})
            self._remove(self.path / str(tp))
            return
        verdict = judge(found)
        match verdict.fate:
            case Fate.SET_ASIDE:
                self.set_aside(self.path / str(tp), verdict.reason)
            case Fate.DELETE:
                _log.info("deleting the log of a deleted topic", extra={"tp": str(tp)})
                aside = self.path / deleted_name(tp, int.from_bytes(found.topic_id or b""))
                self.remove_log(Forgotten(self.path / str(tp), aside))
            case Fate.OPEN:
                self.topic_ids[tp] = self._claim(found, verdict, is_checked=is_checked)

    def _find(self, tp: TopicPartition, *, is_checked: bool) -> FoundLog:
        try:
            return FoundLog(tp, self._read_metadata(tp, is_checked=is_checked))
        except FileNotFoundError:
            return FoundLog(tp, None, f"{METADATA_FILE} is missing")
        except MetadataDamaged as damage:
            return FoundLog(tp, None, f"{METADATA_FILE} is damaged: {damage}")

    def _claim(self, found: FoundLog, verdict: Verdict, *, is_checked: bool) -> Uuid:
        """The id of a log that is opened, written down with a checksum if it was not."""
        topic_id = found.topic_id or verdict.topic_id
        assert topic_id is not None, "a log is opened as somebody's"
        if found.topic_id is not None and is_checked:
            return topic_id
        path = self.path / str(found.tp) / METADATA_FILE
        if found.topic_id is None:
            _log.error(
                "wrote a topic id again",
                extra={"tp": str(found.tp), "id": format_uuid(topic_id), "reason": found.problem},
            )
        if found.topic_id is None or not has_checksum(self._files.read_whole(path)):
            replace_file(self._files, path, encode_metadata(topic_id))
        return topic_id

    def _content(self, directory: Path) -> dict[str, Entry]:
        """What is in a directory, by name; nothing if there is no such directory."""
        try:
            return {entry.name: entry for entry in self._files.list(directory)}
        except FileNotFoundError:
            return {}

    def _is_begun(self, content: Mapping[str, Entry]) -> bool:
        """Whether this is no more than what `prepare_log` makes: no record can be in it."""
        made = {METADATA_FILE, METADATA_FILE + TEMPORARY, _FIRST_SEGMENT}
        is_empty = _FIRST_SEGMENT not in content or not content[_FIRST_SEGMENT].size_bytes
        return content.keys() <= made and is_empty

    def _remove(self, directory: Path) -> None:
        """Remove a log's directory, unless there is anything in it that is not ours."""
        if foreign := self._foreign(directory):
            self.set_aside(directory, f"it is to be removed, and {foreign[0]!r} in it is not ours")
            return
        for entry in self._files.list(directory):
            self._files.unlink(directory / entry.name)
        self._files.remove_dir(directory)
        self._files.sync_dir(self.path)

    def _foreign(self, directory: Path) -> list[str]:
        """What is in a log's directory that we have not made."""
        return [
            entry.name
            for entry in self._files.list(directory)
            if entry.is_dir or not is_log_file(entry.name)
        ]

    def _take_clean_mark(self) -> bool:
        """Whether the last close was clean. The mark goes: from here on it no longer is."""
        try:
            was_clean = read_checkpoint(self._files, self.path / CLEAN_FILE) is not None
        except CheckpointDamaged:
            was_clean = False
        self._files.unlink(self.path / CLEAN_FILE)
        self._files.sync_dir(self.path)
        return was_clean

    def _read_noted(self) -> _Noted:
        names = (RECOVERY_POINTS_FILE, START_OFFSETS_FILE, DELETIONS_FILE)
        return _Noted(*map(self._read_offsets, names))

    def _read_offsets(self, name: str) -> dict[TopicPartition, NotedOffset] | None:
        """What a checkpoint says; None when it is not there, or not believed."""
        try:
            lines = read_checkpoint(self._files, self.path / name)
        except CheckpointDamaged as damage:
            _note_ignored(name, str(damage))
            return None
        return None if lines is None else decode_offsets(lines)

    def _read_states(self) -> FoundStates:
        """What the file of states says. An older Ottla has none, and files of epochs instead."""
        try:
            return decode_states(self._files.read_whole(self.path / LOG_STATES_FILE))
        except FileNotFoundError:
            return FoundStates({}, "it is missing" if self.topic_ids else None)

    def _write_noted(self) -> None:
        """Have on disk, now, up to where logs are durable: at a stop, or before one is cut."""
        for one in self.begin_checkpoint():
            one.run()
            one.end()

    def _states(self) -> NotedStates:
        """From where the next start can go on with every log."""
        return {
            tp: NotedState(self.topic_ids[tp], log.epochs.encode(), log.state)
            for tp, log in self.logs.items()
        }

    def _offsets(self) -> tuple[NotedOffsets, NotedOffsets]:
        """Up to where every log is durable, and where those begin that do not begin with 0."""
        points = {
            tp: NotedOffset(self.topic_ids[tp], log.durable_offset) for tp, log in self.logs.items()
        }
        return points, self._starts()

    def _starts(self) -> NotedOffsets:
        return {
            tp: NotedOffset(self.topic_ids[tp], log.start_offset)
            for tp, log in self.logs.items()
            if log.start_offset
        }

    def _read_metadata(self, tp: TopicPartition, *, is_checked: bool) -> Uuid:
        """The id that `partition.metadata` names, or `MetadataDamaged`."""
        data = self._files.read_whole(within(self.path, f"{tp}/{METADATA_FILE}"))
        return decode_metadata(data, is_checked=is_checked)

    def note_failure(self, error: OSError) -> StorageFailed:
        """A full disk is told, anything else takes the directory offline; what to answer."""
        if error.errno in FULL_DISK_ERRNOS:
            _log.error("the disk is full", extra={"path": str(self.path)})
            return DiskFull("the disk is full")
        self.take_offline(error)
        return StorageFailed(f"{self.path} is offline: {error}")


def _is_segment(name: str) -> bool:
    return name.endswith(LOG) and is_offset(name.removesuffix(LOG))


def _report_damage(tp: TopicPartition, damage: CorruptRange) -> None:
    _log.error("a log is damaged", extra={"tp": str(tp), "range": damage})


def _note_ignored(file: str, reason: str) -> None:
    """Say that logs take longer to open, because a checkpoint tells less about them than it did."""
    _log.warning("ignoring a checkpoint", extra={"file": file, "why": reason})


def _encode_noted(noted: NotedOffsets) -> bytes:
    return encode_checkpoint(encode_offsets(noted))


def _ignore(reason: str) -> None:
    return
