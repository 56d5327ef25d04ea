"""One data directory: its lock, its logs, and what has to be known to open them again.

Every file of metadata says whether it is whole. The recovery points, the start offsets and the
mark of a clean close carry a checksum; `partition.metadata` keeps Kafka's format, and the topic id
in it is compared with the cluster's; `leader-epoch-checkpoint` keeps Kafka's format too and is
checked against the log; snapshots carry a checksum; indexes are caches.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from ottla.config import TopicConfig
from ottla.errors import DiskFull, StorageFailed, TopicAlreadyExists
from ottla.model import NO_UUID, Offset, TimestampMs, TopicPartition, Uuid, format_uuid, parse_uuid
from ottla.storage.checkpoints import CheckpointDamaged, read_checkpoint, write_checkpoint
from ottla.storage.damages import CorruptRange
from ottla.storage.files import FULL_DISK_ERRNOS, REFUSAL_ERRNOS, Files, replace_file
from ottla.storage.log import Log
from ottla.storage.recovery import EVERYTHING
from ottla.storage.reserve import Reserve
from ottla.storage.segment import LOG, file_name
from ottla.storage.segments import Discarded

LOCK_FILE: Final = ".lock"
CLEAN_FILE: Final = ".clean-shutdown"
RECOVERY_POINTS_FILE: Final = "recovery-point-offset-checkpoint"
START_OFFSETS_FILE: Final = "log-start-offset-checkpoint"
DELETIONS_FILE: Final = "deleted-records-checkpoint"
METADATA_FILE: Final = "partition.metadata"
DELETED: Final = "-delete"
_NAME_LENGTH_MAX: Final = 200  # of what is left of a name when its directory is being deleted

_log = logging.getLogger("ottla.storage")


def _no_concern(error: OSError) -> None:
    """What becomes of the files of a log that is deleted takes nothing else offline."""


class Forgotten(NamedTuple):
    """The directory of a deleted log, and the name that it has while its files go."""

    directory: Path
    aside: Path


class LogDir:
    """The logs of one disk. Owned by one broker, as the lock makes sure."""

    def __init__(self, files: Files, path: Path) -> None:
        self.path = path
        self.logs: dict[TopicPartition, Log] = {}
        self.topic_ids: dict[TopicPartition, Uuid] = {}
        self.offline_reason: str | None = None
        self.on_offline: Callable[[str], None] = _ignore
        self.discard: Callable[[Discarded], None] = Discarded.remove
        self._files = files
        self._checkpointed: set[TopicPartition] = set()  # of whom the checkpoints on disk speak
        files.make_dir(path)
        self._lock: object | None = files.lock(path / LOCK_FILE)
        self.reserve = Reserve(files, path)

    def open_logs(
        self,
        config_of: Callable[[TopicPartition], TopicConfig],
        now_ms: TimestampMs,
        progress: Callable[[int, int], None] | None = None,
    ) -> Mapping[TopicPartition, Log]:
        """Open every log that is here, and report how many of how many are done."""
        try:
            was_clean = self._take_clean_mark()
            recovery_points = self._read_offsets(RECOVERY_POINTS_FILE)
            start_offsets = self._read_offsets(START_OFFSETS_FILE)
            deleted = self._read_deletions()
            self._checkpointed = {*recovery_points, *start_offsets}
            found = self._partitions()
            for done, tp in enumerate(found, 1):
                point = EVERYTHING if was_clean else recovery_points.get(tp, Offset(0))
                start_offset = max(start_offsets.get(tp, Offset(0)), self._deleted_to(tp, deleted))
                closed_at = recovery_points.get(tp) if was_clean else None
                self._open(tp, config_of(tp), start_offset, point, now_ms, closed_at)
                if progress is not None:
                    progress(done, len(found))
            self.reserve.refill()
            is_known = recovery_points == self._points() and start_offsets == self._starts()
            if not is_known or (found and not was_clean):
                self.checkpoint()  # what was recovered need not be recovered again
        except OSError as error:
            self.take_offline(error)
            raise StorageFailed(f"{self.path} cannot be read: {error}") from error
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
            self.reserve.lend(partial(self.clear_name, tp))
            self.reserve.lend(partial(self.prepare_log, tp, topic_id))
            return self.reserve.lend(partial(self.adopt_log, tp, config, now_ms))
        except OSError as error:
            raise self.refusal(error) from error

    def refusal(self, error: OSError) -> StorageFailed:
        """Why there is no new log, as an answer."""
        if error.errno in REFUSAL_ERRNOS:  # nothing that is here already is in doubt
            return StorageFailed(f"{self.path} takes no new log: {error}")
        return self.note_failure(error)

    def clear_name(self, tp: TopicPartition) -> None:
        """Before a log is prepared: checkpoints may still speak of a deleted one of that name."""
        if tp in self._checkpointed:
            self._write_offsets()

    def prepare_log(self, tp: TopicPartition, topic_id: Uuid) -> None:
        """The part of making a log that waits for the disk. On any thread; may be done again."""
        directory = self.path / str(tp)
        self._files.make_dir(directory)
        metadata = f"version: 0\ntopic_id: {format_uuid(topic_id)}\n"
        replace_file(self._files, directory / METADATA_FILE, metadata.encode())
        self._files.create(directory / file_name(Offset(0), LOG))
        self._files.sync_dir(directory)
        self._files.sync_dir(self.path)

    def adopt_log(self, tp: TopicPartition, config: TopicConfig, now_ms: TimestampMs) -> Log:
        """The part that belongs to the owner: from here on the log is one of ours."""
        assert tp not in self.logs, "a log is made once"
        if self.offline_reason is not None:
            raise StorageFailed(self.offline_reason)
        log = self._open(tp, config, Offset(0), EVERYTHING, now_ms)
        log.checkpointed_offset = Offset(0)
        return log

    def delete_log(self, tp: TopicPartition, rng: Random) -> None:
        """Forget a log at once and for good; readers of its files may finish."""
        try:
            self.remove_log(self.forget_log(tp, rng))
        except OSError as error:
            raise self.note_failure(error) from error

    def forget_log(self, tp: TopicPartition, rng: Random) -> "Forgotten":
        """The part of deleting a log that belongs to the owner: it is none of ours any more."""
        log = self.logs.pop(tp)
        self.topic_ids.pop(tp, None)
        log.offline_reason = f"{tp} has been deleted"
        log.on_failed = _no_concern  # its files go while work on them may be under way
        log.give_up_swap()
        name = f"{str(tp)[:_NAME_LENGTH_MAX]}.{rng.getrandbits(128):032x}{DELETED}"
        return Forgotten(log.directory, self.path / name)

    def remove_log(self, forgotten: "Forgotten") -> None:
        """The part that waits for the disk, on any thread. Its name is free once this returns."""
        self._files.rename(forgotten.directory, forgotten.aside)
        self._files.sync_dir(self.path)
        self._remove(forgotten.aside)

    def checkpoint(self, flush: Callable[[Log], None] | None = None) -> None:
        """Write down how far every log is durable, and have stored what shortens a start.

        `flush` (production: the flusher's `request`) is asked to make durable what is not yet,
        so that nothing stays in memory only for longer than until the next checkpoint.
        """
        if self.offline_reason is not None:
            return
        try:
            for log in self.logs.values():
                log.save()
                if flush is not None and log.wants_flush:
                    flush(log)
            self._write_offsets()
            self.reserve.refill()
        except OSError as error:
            self.note_failure(error)

    def deletions(self) -> list[str]:
        """Where every log begins that has lost records, as `write_deletions` takes it."""
        return [
            f"{tp.topic} {tp.partition} {format_uuid(self.topic_ids[tp])} {log.start_offset}"
            for tp, log in self.logs.items()
            if log.start_offset
        ]

    def write_deletions(self, lines: Sequence[str]) -> None:
        """Make deletions durable. On any thread, but only on one at a time.

        The owner's own checkpoint says the same, but once a minute, and of names: a topic that is
        made again under the name of a deleted one must not inherit what this file says.
        """
        write_checkpoint(self._files, self.path / DELETIONS_FILE, lines)

    def close(self) -> None:
        """Make everything durable and leave a mark that says so."""
        try:
            for log in self.logs.values():
                log.close()
            if self.offline_reason is None:
                self._write_offsets()
                write_checkpoint(self._files, self.path / CLEAN_FILE, [])
        except OSError as error:
            self.note_failure(error)
        self._lock = None

    def release(self) -> None:
        """Let go of a directory whose logs were not opened; nothing is said about them."""
        assert not self.logs, "logs that were opened are closed"
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
        )
        log.on_damaged = partial(_report_damage, tp)
        log.on_failed = self.take_offline
        log.before_truncate = self._write_offsets
        log.discard = self.discard
        self.logs[tp] = log
        self.topic_ids[tp] = self._read_topic_id(log.directory)
        if log.cut_bytes:
            _log.warning("cut a torn tail", extra={"tp": str(tp), "bytes": log.cut_bytes})
        for damage in log.corrupt:
            log.on_damaged(damage)
        return log

    def _partitions(self) -> list[TopicPartition]:
        """The partitions that are here; what was being deleted when the broker stopped goes."""
        found = []
        for entry in self._files.list(self.path):
            if not entry.is_dir:
                continue
            topic, dash, number = entry.name.rpartition("-")
            if entry.name.endswith(DELETED):
                self._remove(self.path / entry.name)
            elif dash and number.isdigit():
                if self._is_unfinished(self.path / entry.name):
                    self._remove(self.path / entry.name)
                else:
                    found.append(TopicPartition(topic, int(number)))
        return found

    def _is_unfinished(self, directory: Path) -> bool:
        """Whether `create_log` was interrupted: nobody was told of the log, nothing is in it.

        Kept, it would never learn its topic's id, and outlive the topic.
        """
        content = {entry.name: entry.size_bytes for entry in self._files.list(directory)}
        has_records = any(content[name] for name in content if name.endswith(LOG))
        return METADATA_FILE not in content and not has_records

    def _remove(self, directory: Path) -> None:
        for entry in self._files.list(directory):
            self._files.unlink(directory / entry.name)
        self._files.remove_dir(directory)
        self._files.sync_dir(self.path)

    def _take_clean_mark(self) -> bool:
        """Whether the last close was clean. The mark goes: from here on it no longer is."""
        try:
            was_clean = read_checkpoint(self._files, self.path / CLEAN_FILE) is not None
        except CheckpointDamaged:
            was_clean = False
        self._files.unlink(self.path / CLEAN_FILE)
        self._files.sync_dir(self.path)
        return was_clean

    def _read_offsets(self, name: str) -> dict[TopicPartition, Offset]:
        try:
            lines = read_checkpoint(self._files, self.path / name) or []
        except CheckpointDamaged as damage:
            _log.warning("ignoring a checkpoint", extra={"file": name, "why": str(damage)})
            return {}
        entries = (line.split(" ") for line in lines)
        return {
            TopicPartition(topic, int(partition)): Offset(int(offset))
            for topic, partition, offset in entries
        }

    def _read_deletions(self) -> dict[tuple[TopicPartition, Uuid], Offset]:
        try:
            lines = read_checkpoint(self._files, self.path / DELETIONS_FILE) or []
        except CheckpointDamaged as damage:
            _log.warning(
                "ignoring a checkpoint", extra={"file": DELETIONS_FILE, "why": str(damage)}
            )
            return {}
        entries = (line.split(" ") for line in lines)
        return {
            (TopicPartition(topic, int(partition)), parse_uuid(topic_id)): Offset(int(offset))
            for topic, partition, topic_id, offset in entries
        }

    def _deleted_to(
        self, tp: TopicPartition, deleted: Mapping[tuple[TopicPartition, Uuid], Offset]
    ) -> Offset:
        """Up to where DeleteRecords has emptied the log that is here now."""
        if not deleted:
            return Offset(0)
        return deleted.get((tp, self._read_topic_id(self.path / str(tp))), Offset(0))

    def _write_offsets(self) -> None:
        points = self._points()
        self._write_file(RECOVERY_POINTS_FILE, points)
        for tp, point in points.items():
            self.logs[tp].checkpointed_offset = point
        self._write_file(START_OFFSETS_FILE, self._starts())
        self._checkpointed = set(points)

    def _points(self) -> dict[TopicPartition, Offset]:
        return {tp: log.durable_offset for tp, log in self.logs.items()}

    def _starts(self) -> dict[TopicPartition, Offset]:
        return {tp: log.start_offset for tp, log in self.logs.items() if log.start_offset}

    def _write_file(self, name: str, offsets: dict[TopicPartition, Offset]) -> None:
        lines = (f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())
        write_checkpoint(self._files, self.path / name, lines)

    def _read_topic_id(self, directory: Path) -> Uuid:
        """The id that `partition.metadata` names; the zero id when the file is not readable."""
        try:
            text = self._files.read_whole(directory / METADATA_FILE).decode()
            version, topic_id = text.splitlines()
            if version == "version: 0":
                return parse_uuid(topic_id.removeprefix("topic_id: "))
        except (FileNotFoundError, ValueError):
            pass
        _log.warning("no topic id", extra={"directory": directory.name})
        return NO_UUID

    def note_failure(self, error: OSError) -> StorageFailed:
        """A full disk is told, anything else takes the directory offline; what to answer."""
        if error.errno in FULL_DISK_ERRNOS:
            _log.error("the disk is full", extra={"path": str(self.path)})
            return DiskFull("the disk is full")
        self.take_offline(error)
        return StorageFailed(f"{self.path} is offline: {error}")


def _report_damage(tp: TopicPartition, damage: CorruptRange) -> None:
    _log.error("a log is damaged", extra={"tp": str(tp), "range": damage})


def _ignore(reason: str) -> None:
    return
