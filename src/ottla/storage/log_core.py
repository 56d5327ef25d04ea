"""Segments, offsets and derived state of one log, shared by the log and its parts.

The parts (`log_flush`, `log_cleaning`, `log_retention`, `log_truncation`, `log_repair`) hold the
core and never the log: a deleted log's files close with the last reference to it, and a cycle
would keep them open until the garbage collector runs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from weakref import ref

from ottla.config import INT32_MAX, TopicConfig
from ottla.errors import DiskFull, StorageFailed
from ottla.model import NO_OFFSET, Offset, Position, TimestampMs, TopicPartition
from ottla.records.batch import BatchHeader, Marker
from ottla.records.crc import crc32c
from ottla.storage.damages import Damages
from ottla.storage.files import CROWDED_ERRNOS, FULL_DISK_ERRNOS, File, Files
from ottla.storage.index import aborted_crc
from ottla.storage.log_cut import Cut
from ottla.storage.log_listener import LogListener, SilentListener
from ottla.storage.log_states import NotedState
from ottla.storage.open_files import OpenFiles
from ottla.storage.recovery import Recovered, begin_empty, recover
from ottla.storage.segment import Segment, WrittenBatch
from ottla.storage.segments import UNSTORED_MAX, Segments
from ottla.storage.snapshots import Snapshots

_HINTS_MAX: Final = 64  # readers whose position is remembered, per log
BEING_CUT: Final = "the log is being cut"  # as `LogCore.offline_reason`
NOT_SAVED: Final = (-1, NO_OFFSET)  # as `LogCore.saved_end`

Found = TypeVar("Found")


class LogCore:
    """Owned by one log, changed by it and its parts on its owner's thread only."""

    def __init__(
        self,
        tp: TopicPartition,
        files: Files,
        directory: Path,
        config: TopicConfig,
        *,
        start_offset: Offset,
        recovery_point: Offset,
        listener: LogListener,
        open_files: OpenFiles,
    ) -> None:
        """A core without segments: `adopt` gives it those that were recovered."""
        self.tp = tp
        self.files = files
        self.directory = directory
        self.config = config
        self.listener = listener
        self.open_files = open_files
        self.start_offset = start_offset
        self.offline_reason: str | None = None  # for which everything is refused
        self.cut: Cut | None = None  # under way: the files are its own
        self.checkpointed_offset = recovery_point  # the recovery point that is on disk
        self.has_hidden = False  # a leader has sent hidden records, perhaps before the setting came
        self.timeline = 0  # how often the log has been truncated
        self.unsynced: list[File] = []  # of sealed segments
        self.segments_created = 0
        self.hints: dict[Offset, tuple[Segment, Position]] = {}

    def recover(
        self,
        recovery_point: Offset,
        now_ms: TimestampMs,
        closed_at: Offset | None = None,
        noted: NotedState | None = None,
        names: Sequence[str] | None = None,
        *,
        is_synced: bool = False,
    ) -> Recovered:
        """Open what is in the log's directory. The arguments are those of `recovery.recover`."""
        return recover(
            self.files,
            self.directory,
            start_offset=self.start_offset,
            recovery_point=recovery_point,
            interval_bytes=self.config.index_interval_bytes,
            now_ms=now_ms,
            closed_at=closed_at,
            noted=noted,
            names=names,
            is_dense="compact" not in self.config.cleanup_policy,
            is_synced=is_synced,
        )

    def begin_empty(self, now_ms: TimestampMs) -> Recovered:
        """The content of a log that has just been made."""
        found = begin_empty(self.directory, now_ms)
        found.active.opened_ms = self._opened_ms(found.active.base_offset, now_ms)
        return found

    def adopt(self, found: Recovered) -> None:
        """Go on with what was recovered. All of it is durable."""
        self.segments = Segments(
            self.files,
            self.directory,
            found.sealed,
            found.active,
            interval_bytes=self.config.index_interval_bytes,
            before_open=partial(self.open_files.admit, ref(self)),
        )
        self.open_files.note(self)
        self.epochs = found.epochs
        self.producers = found.producers
        self.snapshots = Snapshots(self.files, self.directory, found.snapshots)
        self.state = found.state  # that a start goes on from, for the checkpoint; or empty
        self.saved_end = NOT_SAVED  # timeline and end when that was last stored
        if found.is_saved:
            self.saved_end = (self.timeline, found.active.end_offset)
        self.hints.clear()
        self.end_offset = self.durable_offset = found.active.end_offset
        self.start_offset = max(self.start_offset, found.first_offset)
        self.size_bytes = found.active.size_bytes + sum(one.size_bytes for one in found.sealed)
        self.lost_seals = list(found.lost_seals)
        self.damages = Damages(self.files, self.directory, found.known_corrupt)
        self.damages.keep(found.corrupt_from(self.start_offset))

    # Writing

    def write(
        self,
        batch: bytearray | memoryview,
        last_offset: Offset,
        max_timestamp_ms: int,
        now_ms: TimestampMs,
    ) -> None:
        """Write a batch to the page cache, in a new segment if the active one is full or old."""
        config = self.config
        active = self.segments.active
        size_bytes = len(batch)
        try:
            if active.size_bytes and (
                active.size_bytes + size_bytes > config.segment_bytes
                or now_ms - active.opened_ms >= config.segment_ms
                or last_offset - active.base_offset > INT32_MAX
            ):
                self._roll(now_ms)
                active = self.segments.active
            active.append(batch, last_offset, max_timestamp_ms, config.index_interval_bytes)
        except OSError as error:
            raise self.undo_write(error) from error
        self.size_bytes += size_bytes
        self.end_offset = Offset(last_offset + 1)

    def is_full(
        self, pending_bytes: int, size_bytes: int, last_offset: Offset, now_ms: TimestampMs
    ) -> bool:
        """True if `write` would begin a new segment, with `pending_bytes` still to be written."""
        config, active = self.config, self.segments.active
        filled_bytes = active.size_bytes + pending_bytes
        return bool(filled_bytes) and (
            filled_bytes + size_bytes > config.segment_bytes
            or now_ms - active.opened_ms >= config.segment_ms
            or last_offset - active.base_offset > INT32_MAX
        )

    def write_many(self, records: memoryview, batches: Sequence[WrittenBatch]) -> None:
        """Write batches to the active segment, all or none, with one write."""
        try:
            self.segments.active.append_many(records, batches, self.config.index_interval_bytes)
        except OSError as error:
            raise self.undo_write(error) from error
        self.size_bytes += len(records)
        self.end_offset = self.segments.active.end_offset

    def note_marker(
        self, header: BatchHeader, offset: Offset, marker: Marker, now_ms: TimestampMs
    ) -> None:
        """A marker has been written: it ends a transaction."""
        aborted = self.producers.note_marker(header, offset, marker, now_ms)
        if aborted is not None:
            self.segments.active.indexes.aborted.append(aborted)

    def undo_write(self, error: OSError) -> StorageFailed:
        """Remove the half of a batch that may be in the file; return the error to raise.

        The log goes on unless the disk is broken.
        """
        if error.errno in CROWDED_ERRNOS:
            return self.unreadable(error)  # before anything was written
        try:
            self.segments.active.file.truncate(self.segments.active.size_bytes)
        except OSError as worse:
            error = worse
        if error.errno not in FULL_DISK_ERRNOS:
            return self.fail(error)
        return DiskFull("the disk is full: the batch was not written")

    def roll(self, now_ms: TimestampMs) -> None:
        """End the active segment, if anything is in it, and begin the next."""
        if self.segments.active.size_bytes:
            try:
                self._roll(now_ms)
            except OSError as error:
                raise self.undo_write(error) from error

    def _roll(self, now_ms: TimestampMs) -> None:
        sealed = self.segments.roll(now_ms)
        active = self.segments.active
        active.opened_ms = self._opened_ms(active.base_offset, now_ms)
        self.unsynced.append(sealed.file)
        self.segments_created += 1
        self.hints.clear()
        self.write_snapshot(
            self.end_offset, self.producers.encode(aborted_crc(sealed.indexes.aborted))
        )
        if len(self.segments.unstored) >= UNSTORED_MAX:
            self.listener.note_crowded(self.tp)

    def _opened_ms(self, base_offset: Offset, now_ms: TimestampMs) -> TimestampMs:
        """The time from which `segment.ms` counts for a segment that begins now.

        As far back as `segment.jitter.ms` allows, for each segment another time: a hash of its name
        rather than a random number, so that a simulated run can be repeated.
        """
        jitter_max_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        if not jitter_max_ms:
            return now_ms
        name = f"{self.tp.topic}-{self.tp.partition}-{base_offset}"
        return TimestampMs(now_ms - crc32c(name.encode()) % jitter_max_ms)

    def write_snapshot(self, offset: Offset, content: bytes) -> None:
        bases = (segment.base_offset for segment in self.segments.all())
        self.snapshots.write(offset, content, bases)

    # Reading

    def remember(self, offset: Offset, segment: Segment, position: Position) -> None:
        """Remember where the batch at `offset` begins: a reader goes on from there."""
        hints = self.hints
        if len(hints) >= _HINTS_MAX:
            del hints[next(iter(hints))]
        if offset < segment.end_offset or segment is self.segments.active:
            hints[offset] = (segment, position)

    # Durability

    @property
    def wants_sync(self) -> bool:
        """True when something has been written and is not on disk, and a flush brings it there."""
        is_written = self.durable_offset != self.end_offset or bool(self.segments.unstored)
        return is_written and self.cut is None

    @property
    def is_synced(self) -> bool:
        """True when all files are as they are on disk."""
        return not (self.wants_sync or self.unsynced)

    def note_durable(self, offset: Offset) -> None:
        """Everything below `offset` is on disk."""
        assert offset <= self.end_offset, f"{self.tp}: {offset} is behind the end"
        if offset > self.durable_offset:
            self.durable_offset = offset
            self.listener.note_durable(self.tp)

    def release_files(self) -> bool:
        """Close what is on disk and not in use; False if anything stays open."""
        if not self.is_synced or self.cut is not None:
            return False
        return self.segments.release()

    def close_files(self) -> None:
        """Close every file: the log is not used any more."""
        self.unsynced.clear()
        self.segments.close()

    # Cutting

    def lend(self, cut: Cut) -> None:
        """The log's files are a cut's, and everything is refused, until `take_back`."""
        assert self.offline_reason is None, f"{self.tp}: {self.offline_reason}"
        self.cut, self.offline_reason = cut, BEING_CUT
        self.open_files.forget(self)

    def take_back(self) -> bool:
        """The cut is over; False if the log was deleted, or went offline, meanwhile."""
        self.cut = None
        if self.is_gone:
            return False
        self.offline_reason = None
        return True

    @property
    def is_gone(self) -> bool:
        """True if the log was deleted, or its disk failed."""
        return self.offline_reason is not None and self.offline_reason != BEING_CUT

    # Failure

    def fail(self, error: OSError) -> StorageFailed:
        """Take the log offline, notify the owner, and return the error to raise."""
        if not self.is_gone:
            self.offline_reason = f"the disk failed: {error}"
        self.listener.note_failed(self.tp, error)
        return StorageFailed(f"the disk failed: {error}")

    def unreadable(self, error: OSError) -> StorageFailed:
        """The error for a read that failed. The log goes on if it only lacks a descriptor."""
        if error.errno in CROWDED_ERRNOS:
            return StorageFailed(f"a segment cannot be opened now: {error.strerror}")
        return self.fail(error)

    def readable(self, find: Callable[[], Found]) -> Found:
        """The result of a function that reads the log's files; StorageFailed if that fails."""
        try:
            return find()
        except OSError as error:
            raise self.unreadable(error) from error

    def tolerate_full_disk(self, error: OSError) -> None:
        """Fail, unless the disk is full: without this file the next start only takes longer."""
        if error.errno not in FULL_DISK_ERRNOS | CROWDED_ERRNOS:
            self.fail(error)

    def retire(self, reason: str) -> None:
        """Take a deleted log offline. Work on its files may be under way: no event is reported."""
        self.offline_reason = reason
        self.listener = SilentListener()
        self.open_files.forget(self)
