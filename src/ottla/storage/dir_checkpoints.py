"""Checkpoints of one data directory: up to where its logs are durable, and where they begin.

Every file here carries a checksum, and is replaced as a whole. One that is damaged, or missing,
makes the next start longer.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ottla.model import Offset, TopicPartition, Uuid
from ottla.records.batch import FIRST_OFFSET
from ottla.storage.checkpoints import (
    CheckpointDamaged,
    encode_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from ottla.storage.files import Files
from ottla.storage.log import Log
from ottla.storage.log_states import (
    LOG_STATES_FILE,
    FoundStates,
    NotedState,
    NotedStates,
    decode_states,
    encode_states,
)
from ottla.storage.offset_checkpoint import (
    NotedOffset,
    NotedOffsets,
    decode_offsets,
    encode_offsets,
    noted_offset,
)
from ottla.storage.small_file import Replacement, SmallFile

CLEAN_FILE: Final = ".clean-shutdown"
RECOVERY_POINTS_FILE: Final = "recovery-point-offset-checkpoint"
START_OFFSETS_FILE: Final = "log-start-offset-checkpoint"
WATERMARKS_FILE: Final = "replication-offset-checkpoint"
DELETIONS_FILE: Final = "deleted-records-checkpoint"

_log = logging.getLogger("ottla.storage")


class NotedMarks(NamedTuple):
    """The offsets in the checkpoints; None for a file that is missing or damaged."""

    points: NotedOffsets | None
    starts: NotedOffsets | None
    deleted: NotedOffsets | None
    watermarks: NotedOffsets | None = None

    def end_of(self, tp: TopicPartition, topic_id: Uuid) -> Offset | None:
        """The offset below which a log was on disk, if that is known."""
        return noted_offset(self.points or {}, tp, topic_id)

    def watermark_of(self, tp: TopicPartition, topic_id: Uuid) -> Offset | None:
        """The high watermark of a partition when it was last noted."""
        return noted_offset(self.watermarks or {}, tp, topic_id)

    def start_of(self, tp: TopicPartition, topic_id: Uuid) -> Offset:
        """The first offset of a log, behind what retention or DeleteRecords has taken."""
        starts = (noted_offset(one or {}, tp, topic_id) for one in (self.starts, self.deleted))
        return max(start or FIRST_OFFSET for start in starts)


class DirCheckpoints:
    """Owner of a data directory's checkpoint files. Reads its open logs, and changes none."""

    def __init__(
        self,
        files: Files,
        path: Path,
        logs: Mapping[TopicPartition, Log],
        topic_ids: Mapping[TopicPartition, Uuid],
    ) -> None:
        self._files = files
        self._path = path
        self._logs = logs
        self._topic_ids = topic_ids
        self._states_file = SmallFile(files, path / LOG_STATES_FILE, encode_states)
        self._points_file = SmallFile(files, path / RECOVERY_POINTS_FILE, _encode_noted)
        self._starts_file = SmallFile(files, path / START_OFFSETS_FILE, _encode_noted)
        self._watermarks_file = SmallFile(files, path / WATERMARKS_FILE, _encode_noted)
        self._has_watermarks = False  # whether the file may have any: a broker alone has none

    # Writing

    def begin(self) -> list[Replacement[Any]]:
        """The files that a checkpoint has to write, for any thread to run in this order.

        Recovery trusts the epochs of a log up to its recovery point: they are written before.
        """
        points, starts = self.offsets()
        for tp, (_, point) in points.items():  # from now on it may be on disk
            self._logs[tp].flushing.note_checkpoint(point)
        begun = (
            self._states_file.begin(self._states()),
            self._points_file.begin(points),
            self._starts_file.begin(starts),
        )
        return [one for one in begun if one is not None]

    def begin_watermarks(self) -> Replacement[NotedOffsets] | None:
        """The file of high watermarks, for any thread to write; None if it says the same."""
        noted = {
            tp: NotedOffset(self._topic_ids[tp], log.noted_watermark)
            for tp, log in self._logs.items()
            if log.has_watermark
        }
        self._has_watermarks = self._has_watermarks or bool(noted)
        return self._watermarks_file.begin(noted) if self._has_watermarks else None

    def write(self) -> None:
        """Have on disk, now, up to where logs are durable: at a stop, or before one is cut."""
        begun = [*self.begin(), self.begin_watermarks()]
        for one in filter(None, begun):
            one.run()
            one.end()

    def _states(self) -> NotedStates:
        """The state of every log that the next start can go on from."""
        return {
            tp: NotedState(self._topic_ids[tp], log.epochs.encode(), log.flushing.state)
            for tp, log in self._logs.items()
        }

    def offsets(self) -> tuple[NotedOffsets, NotedOffsets]:
        """The durable offset of every log, and the start offset of those that do not start at 0."""
        points = {
            tp: NotedOffset(self._topic_ids[tp], log.durable_offset)
            for tp, log in self._logs.items()
        }
        return points, self._starts()

    def _starts(self) -> NotedOffsets:
        return {
            tp: NotedOffset(self._topic_ids[tp], log.start_offset)
            for tp, log in self._logs.items()
            if log.start_offset
        }

    def deletions(self) -> list[str]:
        """The start offsets of logs that do not start at 0, as `write_deletions` takes them."""
        return encode_offsets(self._starts())

    def write_deletions(self, lines: Sequence[str]) -> None:
        """Make deletions durable. On any thread, but only on one at a time.

        The checkpoint says the same, but once a minute.
        """
        write_checkpoint(self._files, self._path / DELETIONS_FILE, lines)

    def write_clean_mark(self) -> None:
        """Say that every log was closed, and all of it is on disk."""
        unsynced = [tp for tp, log in self._logs.items() if log.flushing.wants_sync]
        assert not unsynced, f"not on disk: {unsynced}"
        write_checkpoint(self._files, self._path / CLEAN_FILE, [])

    # Reading

    def take_clean_mark(self) -> bool:
        """True when the last close was clean. The mark is removed: from here on it no longer is."""
        assert not self._logs, "logs are opened when the mark is gone"
        try:
            was_clean = read_checkpoint(self._files, self._path / CLEAN_FILE) is not None
        except CheckpointDamaged:
            was_clean = False
        self._files.unlink(self._path / CLEAN_FILE)
        self._files.sync_dir(self._path)
        return was_clean

    def read(self) -> NotedMarks:
        names = (RECOVERY_POINTS_FILE, START_OFFSETS_FILE, DELETIONS_FILE, WATERMARKS_FILE)
        marks = NotedMarks(*map(self._read_offsets, names))
        self._has_watermarks = self._has_watermarks or bool(marks.watermarks)
        return marks

    def _read_offsets(self, name: str) -> dict[TopicPartition, NotedOffset] | None:
        """The offsets in a checkpoint; None when it is missing or damaged."""
        try:
            lines = read_checkpoint(self._files, self._path / name)
        except CheckpointDamaged as damage:
            report_ignored(name, str(damage))
            return None
        return None if lines is None else decode_offsets(lines)

    def read_states(self) -> FoundStates:
        """The states of all logs. An older Ottla has no such file, and files of epochs instead."""
        try:
            return decode_states(self._files.read_whole(self._path / LOG_STATES_FILE))
        except FileNotFoundError:
            return FoundStates({}, "it is missing" if self._topic_ids else None)

    def distrust(self, tp: TopicPartition) -> None:
        """Forget what is said of a log by its name, and that the last close was clean."""
        self._files.unlink(self._path / CLEAN_FILE)
        for name in (RECOVERY_POINTS_FILE, START_OFFSETS_FILE):
            noted = self._read_offsets(name) or {}
            if noted.pop(tp, None) is not None:
                write_checkpoint(self._files, self._path / name, encode_offsets(noted))
        self._files.sync_dir(self._path)


def report_ignored(file: str, reason: str) -> None:
    """Log that a checkpoint is not used: logs take longer to open."""
    _log.warning("checkpoint ignored", extra={"file": file, "reason": reason})


def _encode_noted(noted: NotedOffsets) -> bytes:
    return encode_checkpoint(encode_offsets(noted))
