"""A partition's log on this machine: append, read, and know what is where.

A log has one owner and is called from the owner's thread only. What waits for the disk is handed
to others: to the flusher what `begin_flush` returns, to a worker what `begin_swap` returns and what
is discarded.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from weakref import ref

from ottla.config import INT32_MAX, INT64_MAX, TimestampType, TopicConfig
from ottla.errors import (
    CorruptBatch,
    DiskFull,
    MessageTooLarge,
    OffsetOutOfRange,
    StorageFailed,
)
from ottla.model import (
    NO_TIMESTAMP,
    NO_UUID,
    LeaderEpoch,
    Offset,
    Position,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from ottla.records.batch import (
    CONTROL,
    FIRST_OFFSET,
    BatchHeader,
    Marker,
    build_marker,
    check_batch,
    check_plain,
    check_stored,
    decompressed_bytes_max,
    read_header,
    read_marker,
    recompress,
    stamp,
    stamp_max_timestamp,
    stamp_time,
)
from ottla.records.compression import Codec
from ottla.records.record_slices import check_keys
from ottla.records.timestamps import ANY_AGE, checked_max_timestamp
from ottla.storage.checkpoints import CheckpointDamaged, encode_checkpoint, read_checkpoint
from ottla.storage.compaction import (
    CLEAN_OFFSET_FILE,
    Cleanable,
    CleanedSegment,
    LiveProducer,
    Pass,
    cleanable,
)
from ottla.storage.compaction import SegmentFacts as CleanableFacts
from ottla.storage.damages import CORRUPT_FILE, CorruptRange, Damage, Damages, merged
from ottla.storage.epochs import EpochEnd, Epochs
from ottla.storage.files import (
    CROWDED_ERRNOS,
    FULL_DISK_ERRNOS,
    CopiedFile,
    File,
    Files,
    Sendable,
    within,
)
from ottla.storage.index import AbortedTransaction, aborted_crc
from ottla.storage.log_states import LogState, NotedState, fits
from ottla.storage.names import SAVING
from ottla.storage.open_files import OpenFiles
from ottla.storage.producers import ProducedBatch
from ottla.storage.recovery import EVERYTHING, Recovered, begin_empty, recover
from ottla.storage.retention import SegmentFacts, expired_count, is_too_old
from ottla.storage.segment import (
    ABORTED_INDEX,
    SEAL,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    CheckedPart,
    FoundBatch,
    SealedSegment,
    Segment,
    file_name,
    file_path,
    index_contents,
    walk,
    write_indexes,
)
from ottla.storage.segments import UNSTORED_MAX, Discarded, Segments, Unstored
from ottla.storage.small_file import Replacement, SmallFile
from ottla.storage.swap import Swap, remove_cleaned
from ottla.storage.time_search import TimedOffset, max_timestamp, offset_for_time
from ottla.storage.verification import check_ahead, lead_over

_CREATE_TIME: Final = TimestampType.CREATE_TIME
_CHECKS_MAX: Final = 100  # damages that are found on the way to one offset
_HINTS_MAX: Final = 64  # readers whose place is remembered, per log
_SPARE_SNAPSHOTS: Final = 2  # snapshots kept besides those at the start of segments


class Appended(NamedTuple):
    """Where a batch went."""

    base_offset: Offset
    last_offset: Offset
    append_time_ms: TimestampMs  # -1 unless the broker's clock gave the records their time
    is_duplicate: bool


class FileRange(NamedTuple):
    """Whole batches, still in their file: send them, or read them with `read_bytes`."""

    file: Sendable
    position: Position
    size_bytes: int
    end_offset: Offset  # where to read on


class FlushWork(NamedTuple):
    """What has to be synced for everything below `end_offset` to be durable.

    Made on the owner's thread by `begin_flush`, carried out on any, and brought back to the
    owner's thread for `end_flush`.
    """

    log: "Log"
    unstored: tuple[Unstored, ...]
    sealed_files: tuple[File, ...]
    active_file: File | None  # None when all of it is on disk
    active_base: Offset
    directory: Path | None  # whose names are not yet on disk
    end_offset: Offset
    timeline: int
    segments_created: int
    saved: "Saved | None"  # what `save` asked for

    @property
    def has_names(self) -> bool:
        """Whether files take their names when this ends."""
        return bool(self.unstored) or (self.saved is not None and not self.saved.state)

    def run(self, files: Files, *, is_synced: bool = False) -> None:
        """Sync. Older files first: what is durable has no holes.

        With `is_synced`, all that had been written when this was made, and what is `saved`, is on
        disk already.
        """
        try:
            self._run(files, is_synced=is_synced)
        except FileNotFoundError:
            if self.log.offline_reason is None:  # else it has been deleted, names and all
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


@dataclass(slots=True)
class Saved:
    """What shortens the next start: a state for the checkpoint, or files if that would be large.

    The files are indexes, written by whoever flushes; the owner then gives them their names, and
    stores the snapshot of producers.
    """

    state: bytes = b""
    contents: dict[str, bytes] = field(default_factory=dict)  # by path
    snapshot: bytes = b""
    is_written: bool = False

    def write(self, files: Files, *, is_syncing: bool = True) -> None:
        """Write the files. A full disk is no reason to stop: a start then takes longer."""
        try:
            for path, content in self.contents.items():
                file = files.create(path + SAVING)  # a roll may write its own at this moment
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


class Log:
    """One partition's batches, in order, and everything derived from them."""

    def __init__(
        self,
        tp: TopicPartition,
        files: Files,
        directory: Path,
        config: TopicConfig,
        *,
        start_offset: Offset,
        recovery_point: Offset,
        now_ms: TimestampMs,
        closed_at: Offset | None = None,
        noted: NotedState | None = None,
        names: Sequence[str] | None = None,
        is_synced: bool = False,
        is_new: bool = False,
        open_files: OpenFiles | None = None,
    ) -> None:
        """`is_new` says that there is nothing to recover, the other arguments are `recover`'s."""
        self.tp = tp
        self.config = config  # may be replaced at any time
        self.directory = directory
        self.start_offset = start_offset
        self.offline_reason: str | None = None
        self.on_durable: Callable[[], None] = _do_nothing
        self.on_failed: Callable[[OSError], None] = self._go_offline
        self.before_truncate: Callable[[], None] = _do_nothing  # stores a lower recovery point
        self.on_crowded: Callable[[], None] = _do_nothing  # it should be flushed soon
        self.on_damaged: Callable[[CorruptRange], None] = _ignore_damage
        self.discard: Callable[[Discarded], None] = Discarded.remove
        self.checkpointed_offset = recovery_point  # the recovery point that is on disk
        self._plain_config: TopicConfig | None = None  # the config, once known to ask for nothing
        self._files = files
        self._open_files = open_files or OpenFiles()
        self._timeline = 0  # how often the log has been truncated
        self._segments_created = 0
        self._segments_synced = 0
        self._unsynced: list[File] = []
        self._is_save_wanted = False
        path = within(directory, CLEAN_OFFSET_FILE)
        self._clean_offset_file: SmallFile[bytes] = SmallFile(files, path, bytes)
        self.state = b""  # where a start can go on, for the checkpoint; empty if files tell that
        self._saved_end: tuple[int, Offset]  # timeline and end when that was last stored
        self._hints: dict[Offset, tuple[Segment, Position]] = {}
        self._open_files.make_room()
        if is_new:
            found = begin_empty(directory, now_ms)
        else:
            found = self._recover(
                recovery_point, now_ms, closed_at, noted, names, is_synced=is_synced
            )
        self._adopt(found)
        self.durable_offset = self.end_offset
        # Compaction has seen all keys below.
        self.clean_offset = self._read_clean_offset() if found.is_compacted else FIRST_OFFSET
        if self.start_offset > self.end_offset:  # records were deleted that have not survived
            self.restart_at(self.start_offset, now_ms)

    def _recover(
        self,
        recovery_point: Offset,
        now_ms: TimestampMs,
        closed_at: Offset | None = None,
        noted: NotedState | None = None,
        names: Sequence[str] | None = None,
        *,
        is_synced: bool = False,
    ) -> Recovered:
        return recover(
            self._files,
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

    def _adopt(self, found: Recovered) -> None:
        self._segments = Segments(
            self._files,
            self.directory,
            found.sealed,
            found.active,
            interval_bytes=self.config.index_interval_bytes,
            before_open=partial(self._open_files.admit, ref(self)),
        )
        self._open_files.note(self)
        self.epochs = found.epochs
        self.has_epochs_file = found.has_epochs_file  # which no checkpoint renews any more
        self.state = found.state
        self._saved_end = (-1, Offset(-1))
        if found.is_saved:
            self._saved_end = (self._timeline, found.active.end_offset)
        self.producers = found.producers
        self.cut_bytes = found.cut_bytes  # torn off the end when the log was opened
        self._snapshots = sorted(found.snapshots)
        self._hints.clear()
        self.end_offset = found.active.end_offset
        self.start_offset = max(self.start_offset, found.first_offset)
        self.size_bytes = found.active.size_bytes + sum(one.size_bytes for one in found.sealed)
        self._lost_seals = list(found.lost_seals)
        self._damages = Damages(self._files, self.directory, found.known_corrupt)
        self._damages.keep(
            [
                one
                for one in merged(found.corrupt)
                if one.start_offset < self.end_offset and one.end_offset > self.start_offset
            ]
        )

    @property
    def corrupt(self) -> list[CorruptRange]:
        """What is damaged or lost on disk, and never served."""
        return self._damages.ranges

    # Appending

    def append_as_leader(
        self, batch: bytearray | memoryview, leader_epoch: LeaderEpoch, now_ms: TimestampMs
    ) -> Appended:
        """Give the batch its place in the log, then write it to the page cache.

        Everything is checked before anything changes: a batch that is refused leaves no trace.
        """
        config = self.config
        if config is not self._plain_config:
            self._plain_config = config if _is_plain(config) else None
            return self._append_any(batch, config, leader_epoch, now_ms)
        # The frequent case, in fewer steps: a batch that needs nothing but its place.
        plain = check_plain(batch)
        if plain is None:
            return self._append_any(batch, config, leader_epoch, now_ms)
        last_delta, base_timestamp_ms, max_timestamp_ms = plain
        active = self._segments.active
        size_bytes = len(batch)
        base_offset = self.end_offset
        last_offset = base_offset + last_delta
        if (
            size_bytes > config.max_message_bytes
            or not 0 < active.size_bytes <= config.segment_bytes - size_bytes
            or now_ms - active.opened_ms >= config.segment_ms
            or last_offset - active.base_offset > INT32_MAX
            or leader_epoch != self.epochs.latest
            or not base_timestamp_ms <= max_timestamp_ms > 0
            or max_timestamp_ms - now_ms > config.timestamp_after_max_ms
            or self.offline_reason is not None
        ):
            return self._append_any(batch, config, leader_epoch, now_ms)
        stamp(batch, base_offset, leader_epoch)
        try:
            active.append(batch, last_offset, max_timestamp_ms, config.index_interval_bytes)
        except OSError as error:
            raise self._undo_write(error) from error
        self.size_bytes += size_bytes
        self.end_offset = active.end_offset
        return tuple.__new__(Appended, (base_offset, last_offset, NO_TIMESTAMP, False))

    def _append_any(
        self,
        batch: bytearray | memoryview,
        config: TopicConfig,
        leader_epoch: LeaderEpoch,
        now_ms: TimestampMs,
    ) -> Appended:
        """`append_as_leader` for every batch, step by step."""
        if self.offline_reason is not None:
            raise StorageFailed(self.offline_reason)
        if len(batch) > config.max_message_bytes:
            raise MessageTooLarge(
                f"{len(batch)} bytes exceed the topic's max.message.bytes,"
                f" {config.max_message_bytes}"
            )
        header = check_batch(batch)
        append_time_ms, max_timestamp_ms = NO_TIMESTAMP, int(now_ms)
        if config.timestamp_type is _CREATE_TIME:
            max_timestamp_ms = checked_max_timestamp(batch, header, config, now_ms)
        else:
            append_time_ms = now_ms
        is_idempotent = header.producer_id >= 0
        if is_idempotent and (known := self.producers.admit(header, config, now_ms)) is not None:
            return _repeated(known, append_time_ms)
        if config.compression_type != "producer" or "compact" in config.cleanup_policy:
            batch = _opened(batch, header, config)
        if append_time_ms >= 0:
            stamp_time(batch, append_time_ms)
        elif max_timestamp_ms != header.max_timestamp_ms:
            stamp_max_timestamp(batch, max_timestamp_ms)
        base_offset = self.end_offset
        stamp(batch, base_offset, leader_epoch)
        last_offset = Offset(base_offset + header.last_offset_delta)
        self._write(batch, last_offset, max_timestamp_ms, now_ms)
        if leader_epoch != self.epochs.latest:
            self.epochs.note(leader_epoch, base_offset)
        if is_idempotent:
            self.producers.note(header, base_offset, now_ms)
        return Appended(base_offset, last_offset, append_time_ms, False)

    def append_as_follower(self, batch: bytearray | memoryview, now_ms: TimestampMs) -> Appended:
        """Write a batch exactly as the leader placed it; a follower may skip, never rewind."""
        if self.offline_reason is not None:
            raise StorageFailed(self.offline_reason)
        header = check_stored(batch)
        base_offset, last_offset = Offset(header.base_offset), header.last_offset
        if base_offset < self.end_offset or header.last_offset_delta < 0:
            raise CorruptBatch(f"offset {base_offset} has been written already")
        if last_offset - self.end_offset > INT32_MAX:
            raise CorruptBatch(f"offset {base_offset} is too far from {self.end_offset}: restart")
        marker = read_marker(batch) if header.attributes & CONTROL else None
        self._write(batch, last_offset, header.max_timestamp_ms, now_ms)
        self.epochs.note(LeaderEpoch(header.leader_epoch), base_offset)
        if marker is not None:
            self._note_marker(header, base_offset, marker, now_ms)
        elif header.producer_id >= 0 and not header.attributes & CONTROL:
            self.producers.note(header, base_offset, now_ms)
        return Appended(base_offset, last_offset, NO_TIMESTAMP, False)

    def append_marker(
        self,
        marker: Marker,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        leader_epoch: LeaderEpoch,
        now_ms: TimestampMs,
    ) -> Appended:
        """End a producer's transaction: its records are visible or void from here on."""
        if self.offline_reason is not None:
            raise StorageFailed(self.offline_reason)
        self.producers.check_marker(producer_id, producer_epoch, marker.coordinator_epoch)
        batch = build_marker(
            marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=now_ms
        )
        offset = self.end_offset
        stamp(batch, offset, leader_epoch)
        self._write(batch, offset, now_ms, now_ms)
        self.epochs.note(leader_epoch, offset)
        self._note_marker(read_header(batch), offset, marker, now_ms)
        return Appended(offset, offset, NO_TIMESTAMP, False)

    def _note_marker(
        self, header: BatchHeader, offset: Offset, marker: Marker, now_ms: TimestampMs
    ) -> None:
        aborted = self.producers.note_marker(header, offset, marker, now_ms)
        if aborted is not None:
            self._segments.active.indexes.aborted.append(aborted)

    def _write(
        self,
        batch: bytearray | memoryview,
        last_offset: Offset,
        max_timestamp_ms: int,
        now_ms: TimestampMs,
    ) -> None:
        config = self.config
        active = self._segments.active
        size_bytes = len(batch)
        try:
            if active.size_bytes and (
                active.size_bytes + size_bytes > config.segment_bytes
                or now_ms - active.opened_ms >= config.segment_ms
                or last_offset - active.base_offset > INT32_MAX
            ):
                self._roll(now_ms)
                active = self._segments.active
            active.append(batch, last_offset, max_timestamp_ms, config.index_interval_bytes)
        except OSError as error:
            raise self._undo_write(error) from error
        self.size_bytes += size_bytes
        self.end_offset = Offset(last_offset + 1)

    def _undo_write(self, error: OSError) -> StorageFailed:
        """Half a batch may be in the file: take it out, and go on unless the disk is broken."""
        if error.errno in CROWDED_ERRNOS:
            return _crowded(error)  # before anything was written
        try:
            self._segments.active.file.truncate(self._segments.active.size_bytes)
        except OSError as worse:
            error = worse
        if error.errno not in FULL_DISK_ERRNOS:
            self.on_failed(error)
            return StorageFailed(f"the disk failed: {error}")
        return DiskFull("the disk is full: the batch was not written")

    # Reading

    def read(
        self, start: Offset, end: Offset, bytes_max: int, *, at_least_one: bool
    ) -> FileRange | None:
        """Whole batches of one segment, from the one that holds `start`, all below `end`.

        At most `bytes_max`, but for `at_least_one`, which lets the first batch be larger. None
        when nothing fits.
        """
        if self.offline_reason is not None:
            raise StorageFailed(self.offline_reason)
        if not self.start_offset <= start <= self.end_offset:
            raise OffsetOutOfRange(
                f"offset {start} is outside {self.start_offset} to {self.end_offset}"
            )
        end = min(end, self.end_offset)
        if start >= end:
            return None
        try:
            return self._read(start, end, bytes_max, at_least_one)
        except OSError as error:
            if error.errno in CROWDED_ERRNOS:
                raise _crowded(error) from error
            self.on_failed(error)
            raise StorageFailed(f"the disk failed: {error}") from error

    def _read(
        self, start: Offset, end: Offset, bytes_max: int, at_least_one: bool
    ) -> FileRange | None:
        if self._damages.ranges:
            self._damages.refuse(start)
        hint = self._hints.get(start)
        first: FoundBatch | None = None
        checked: CheckedPart | None = None
        if hint is not None:
            segment, position = hint
            self._segments.open(segment)
            if position < segment.unchecked.end:
                checked = self._check_ahead(segment, start, position, bytes_max)
        else:
            segment = self._segments.of(start)
            if segment.unchecked.end:
                checked = self._check_ahead(segment, start, None, bytes_max)
            first = self._segments.find(segment, start)
            position = first.position
        limit, end_offset = self._limit(segment, start, end, checked)
        if limit - position > bytes_max:
            cut, cut_offset = self._segments.boundary(segment, position, position + bytes_max)
            if cut == position and at_least_one:
                first = first or self._segments.find(segment, start)
                cut = Position(position + first.size_bytes)
                cut_offset = Offset(first.last_offset + 1)
            limit, end_offset = cut, cut_offset
        if limit <= position:
            return None
        self._hint(end_offset, segment, limit)
        if self._open_files.is_full:
            copy = CopiedFile(segment.file.read(position, limit - position))
            return FileRange(copy, Position(0), limit - position, end_offset)
        return FileRange(segment.file, position, limit - position, end_offset)

    def _check_ahead(
        self, segment: Segment, start: Offset, position: Position | None, bytes_max: int
    ) -> CheckedPart | None:
        """Have read, once, what lay on disk when the log was opened; what is damaged is noted.

        Returned is what may be served of it, None when there is no limit.
        """
        for _ in range(_CHECKS_MAX):
            known = self._damages.next_in(segment.base_offset, start)
            stop = known.position if known is not None else None
            checked, damages = check_ahead(segment, start, position, bytes_max, stop)
            if not damages:
                return checked
            for damage in self.note_damages(segment, damages):
                self.on_damaged(damage)
            self._damages.refuse(start)
            position = None
        raise CorruptBatch(f"too much is damaged around offset {start} on this broker's disk")

    def _limit(
        self, segment: Segment, start: Offset, end: Offset, checked: CheckedPart | None
    ) -> tuple[Position, Offset]:
        """Where in `segment` the last batch ends that a reader up to `end` may see."""
        limit, end_offset = Position(segment.size_bytes), segment.end_offset
        if checked is not None:
            limit, end_offset = checked.end, checked.end_offset
        if self._damages.ranges:
            damage = self._damages.next_in(segment.base_offset, start)
            if damage is not None and damage.start_offset < end_offset:
                limit, end_offset = damage.position, damage.start_offset
        if end >= end_offset:
            return limit, end_offset
        hint = self._hints.get(end)
        if hint is not None and hint[0] is segment:
            return hint[1], end
        found = self._segments.find(segment, end)
        return found.position, found.base_offset

    def _hint(self, offset: Offset, segment: Segment, position: Position) -> None:
        """Remember where a batch begins: somebody is about to read on from there."""
        hints = self._hints
        if len(hints) >= _HINTS_MAX:
            del hints[next(iter(hints))]
        if offset < segment.end_offset or segment is self._segments.active:
            hints[offset] = (segment, position)

    def read_bytes(self, found: FileRange) -> bytes:
        """The batches of a range as bytes."""
        try:
            return found.file.read(found.position, found.size_bytes)
        except OSError as error:
            self.on_failed(error)
            raise StorageFailed(f"the disk failed: {error}") from error

    # Open files

    def release_files(self) -> bool:
        """Close what is on disk and not needed at the moment; False if anything stays open."""
        if self.wants_sync or self._unsynced:
            return False
        return self._segments.release()

    # Finding by time

    def offset_for_time(self, timestamp_ms: TimestampMs) -> TimedOffset | None:
        """The first record whose timestamp is not before `timestamp_ms`."""
        bytes_max = decompressed_bytes_max(self.config.max_message_bytes)
        return offset_for_time(
            self._segments, self.start_offset, timestamp_ms, decompressed_bytes_max=bytes_max
        )

    def max_timestamp(self) -> TimedOffset | None:
        """The first record that has the largest timestamp of the whole log."""
        bytes_max = decompressed_bytes_max(self.config.max_message_bytes)
        return max_timestamp(self._segments, self.start_offset, decompressed_bytes_max=bytes_max)

    # What replicas and transactions ask

    def epoch_end(self, epoch: LeaderEpoch) -> EpochEnd:
        """Where `epoch` ends in this log (KIP-279); (-1, -1) when nothing is known of it.

        Replicas truncate by this answer, so it is checked against the batches around it.
        """
        end = self.epochs.end_of(epoch, self.end_offset)
        if not self._is_true(end):
            self._rebuild_epochs()
            end = self.epochs.end_of(epoch, self.end_offset)
        return end

    def _is_true(self, end: EpochEnd) -> bool:
        """Whether a batch of another epoch begins at the end of this one."""
        if not self.start_offset < end.end_offset < self.end_offset:
            return True
        before = self._segments.header_at(Offset(end.end_offset - 1))
        behind = self._segments.header_at(end.end_offset)
        # Compaction keeps the first batch of an epoch, but not the last of the one before.
        is_gone = before.base_offset >= end.end_offset
        return (is_gone or before.leader_epoch <= end.epoch) and (
            end.epoch < behind.leader_epoch == self.epochs.at(end.end_offset)
        )

    def _rebuild_epochs(self) -> None:
        self.epochs = Epochs()
        for segment in self._segments.all():
            self._segments.open(segment)
            for _, header in walk(segment.file, Position(0), segment.size_bytes):
                self.epochs.note(LeaderEpoch(header.leader_epoch), Offset(header.base_offset))
        self.epochs.truncate_start(self.start_offset)

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """The offset below which every transaction is decided and its end is visible."""
        unstable = self.producers.first_unstable(high_watermark)
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def aborted_transactions(self, start: Offset, end: Offset) -> list[AbortedTransaction]:
        """The aborted transactions that a reader of `start` to `end` has to skip."""
        found = []
        for segment in self._segments.all():
            if segment.end_offset <= start:
                continue
            self._segments.open(segment)
            for item in segment.indexes.aborted:
                if item.last_offset >= start and item.first_offset < end:
                    found.append(item)
                if item.last_stable_offset >= end:
                    return found
        return found

    # Durability

    def begin_flush(self, *, is_saving: bool = True) -> FlushWork | None:
        """What to sync for everything appended so far; None when all of it is durable.

        Without `is_saving`, what `save` asked for is left to the next one.
        """
        if self.offline_reason is not None or not self.wants_flush:
            return None
        active = self._segments.active
        self._hint(self.end_offset, active, Position(active.size_bytes))
        has_new_names = self._segments_created != self._segments_synced
        return FlushWork(
            log=self,
            unstored=tuple(self._segments.unstored),
            sealed_files=tuple(self._unsynced),
            active_file=active.file if self.durable_offset != self.end_offset else None,
            active_base=active.base_offset,
            directory=self.directory if has_new_names else None,
            end_offset=self.end_offset,
            timeline=self._timeline,
            segments_created=self._segments_created,
            saved=self._begin_save() if is_saving else None,
        )

    def end_flush(self, work: FlushWork) -> None:
        """Everything that `work` covers is on disk, unless the log was cut short meanwhile."""
        self._end_save(work)
        if work.timeline != self._timeline:
            return
        self._unsynced = [file for file in self._unsynced if file not in work.sealed_files]
        self._segments_synced = max(self._segments_synced, work.segments_created)
        self._segments.note_stored(work.unstored)
        self.note_durable(work.end_offset)

    def _begin_save(self) -> Saved | None:
        if not self._is_save_wanted:
            return None
        self._is_save_wanted = False
        active = self._segments.active
        if self._is_small:
            return Saved(self._encode_state(), is_written=True)
        return Saved(
            contents=index_contents(self.directory, active.base_offset, active.indexes),
            snapshot=self.producers.encode(aborted_crc(active.indexes.aborted)),
        )

    @property
    def _is_small(self) -> bool:
        """Whether the checkpoint has room for the state."""
        return fits(self._segments.active.indexes, self.producers)

    def _encode_state(self) -> bytes:
        active = self._segments.active
        return LogState(
            active.base_offset,
            active.size_bytes,
            active.end_offset,
            active.opened_ms,
            active.indexes,
            self.producers,
        ).encode()

    def _end_save(self, work: FlushWork) -> None:
        saved = work.saved
        if saved is None or not saved.is_written or self.offline_reason is not None:
            return  # a full disk, or a log that has been deleted meanwhile
        is_uncut = work.timeline == self._timeline
        if is_uncut:
            self.state = saved.state
        if saved.state:
            return
        try:
            if is_uncut and work.active_base == self._segments.active.base_offset:
                saved.take_names(self._files)
            else:  # sealed meanwhile, it has newer ones
                saved.give_up(self._files)
            if is_uncut:
                self._write_snapshot(work.end_offset, saved.snapshot)
        except OSError as error:
            self._save_failed(error)

    def _save_failed(self, error: OSError) -> None:
        """Without it the next start only takes longer, so a full disk is no reason to stop."""
        if error.errno not in FULL_DISK_ERRNOS | CROWDED_ERRNOS:
            self.on_failed(error)

    def note_durable(self, offset: Offset) -> None:
        """Everything below `offset` is on disk."""
        if offset > self.durable_offset:
            self.durable_offset = offset
            self.on_durable()

    def flush(self) -> None:
        """Make everything appended so far durable, and wait for it."""
        work = self.begin_flush()
        if work is None:
            return
        try:
            work.run(self._files)
        except OSError as error:
            self.on_failed(error)
            raise StorageFailed(f"the disk failed: {error}") from error
        self.end_flush(work)

    def save(self) -> None:
        """Have what shortens the next start ready for a checkpoint: now, or when it is flushed."""
        if self._saved_end == (self._timeline, self.end_offset):
            return
        self._saved_end = (self._timeline, self.end_offset)
        if not self.wants_sync and self._is_small:
            self.state = self._encode_state()
        else:
            self._is_save_wanted = True

    @property
    def wants_flush(self) -> bool:
        """Whether anything waits to be made durable."""
        return self._is_save_wanted or self.wants_sync

    @property
    def wants_sync(self) -> bool:
        """Whether any of it has been written and is not on disk."""
        return self.durable_offset != self.end_offset or bool(self._segments.unstored)

    def close(self) -> None:
        """Make everything durable and the next start short."""
        if self.offline_reason is None:
            self.save()
            self.flush()

    def _write_snapshot(self, offset: Offset, snapshot: bytes) -> None:
        path = file_path(self.directory, offset, SNAPSHOT)
        self._files.create(path).append(snapshot)
        if offset not in self._snapshots:
            self._snapshots.append(offset)
            self._snapshots.sort()
        bases = {segment.base_offset for segment in self._segments.all()}
        spare = [one for one in self._snapshots if one not in bases]
        for one in spare[:-_SPARE_SNAPSHOTS]:
            self._remove_snapshot(one)

    def _remove_snapshot(self, offset: Offset) -> None:
        self._snapshots.remove(offset)
        self._files.unlink(file_path(self.directory, offset, SNAPSHOT))

    # Segments come and go

    def roll(self, now_ms: TimestampMs) -> None:
        """End the active segment, if anything is in it, and begin the next."""
        if self._segments.active.size_bytes:
            try:
                self._roll(now_ms)
            except OSError as error:
                raise self._undo_write(error) from error

    def _roll(self, now_ms: TimestampMs) -> None:
        sealed = self._segments.roll(now_ms)
        self._unsynced.append(sealed.file)
        self._segments_created += 1
        self._hints.clear()
        snapshot = self.producers.encode(aborted_crc(sealed.indexes.aborted))
        self._write_snapshot(self.end_offset, snapshot)
        if len(self._segments.unstored) >= UNSTORED_MAX:
            self.on_crowded()

    def delete_old_segments(self, now_ms: TimestampMs) -> int:
        """Let go of what retention no longer wants; return how many segments went."""
        if (
            "delete" in self.config.cleanup_policy
            and self._segments.active.size_bytes
            and is_too_old(self._time_of(self._segments.active), self.config, now_ms)
        ):
            self.roll(now_ms)
        facts = map(self._facts, self._segments.sealed)
        count = expired_count(facts, self.size_bytes, self.start_offset, self.config, now_ms)
        return self._delete_first(count)

    def _facts(self, segment: SealedSegment) -> SegmentFacts:
        return SegmentFacts(segment.end_offset, segment.size_bytes, self._time_of(segment))

    def _time_of(self, segment: Segment) -> TimestampMs:
        """The time that retention counts from; -1 if that is left to the segment behind it.

        Compaction can leave a segment without records, in a file that it has just written.
        """
        if "compact" not in self.config.cleanup_policy:
            return self._segments.newest_ms_of(segment)
        if isinstance(segment, SealedSegment):
            return self._segments.max_timestamp_of(segment)
        return segment.indexes.max_timestamp_ms

    def _delete_first(self, count: int) -> int:
        deleted = self._segments.delete_first(count, self.discard)
        if deleted:
            self.size_bytes -= sum(segment.size_bytes for segment in deleted)
            self.start_offset = max(self.start_offset, self._segments.first_base)
            self._forget_before_start()
        return len(deleted)

    def _forget_before_start(self) -> None:
        self._hints.clear()
        self.epochs.truncate_start(self.start_offset)
        self._damages.forget_below(self.start_offset)
        self._forget_lost(FIRST_OFFSET, self._segments.first_base)
        for offset in [one for one in self._snapshots if one < self._segments.first_base]:
            self._remove_snapshot(offset)

    def _forget_lost(self, start: Offset, end: Offset) -> None:
        """Segments that were lost between these offsets do not matter any more."""
        for base in [one for one in self._lost_seals if start <= one < end]:
            self._lost_seals.remove(base)
            self._files.unlink(self.directory / file_name(base, SEAL))

    def advance_start(self, offset: Offset) -> None:
        """Records below `offset` are gone (DeleteRecords); segments follow when they can."""
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is outside {self.start_offset} to {self.end_offset}"
            )
        self.start_offset = offset
        passed = sum(1 for segment in self._segments.sealed if segment.end_offset <= offset)
        self._delete_first(passed)
        self._forget_before_start()

    # Damage

    @property
    def sealed_segments(self) -> tuple[SealedSegment, ...]:
        """The segments that no longer grow, as they are now."""
        return tuple(self._segments.sealed)

    def note_damages(self, segment: Segment, damages: list[Damage]) -> list[CorruptRange]:
        """These parts of a segment are not served any more; returned are those not known.

        Remembered for as long as they are there, also after a restart.
        """
        if segment not in self._segments.all() or self._segments.is_swapped(segment):
            return []
        base = segment.base_offset
        found = (
            CorruptRange(one.start_offset, one.end_offset, base, one.position) for one in damages
        )
        self._hints.clear()
        self._segments.open(segment)
        lead_over(segment, damages)
        try:
            news = self._damages.add(found)
            if isinstance(segment, SealedSegment):
                self._segments.store_indexes()
                write_indexes(self._files, self.directory, base, segment.indexes)
            else:
                self._saved_end = (-1, Offset(-1))  # to be stored with the next checkpoint
        except OSError as error:
            self._save_failed(error)
            return []
        return news

    # Compaction

    def cleanable(self, limit: Offset, now_ms: TimestampMs) -> Cleanable:
        """What a pass could compact of what lies below `limit`: decided, durable and sealed."""
        dirty_start = max(self.clean_offset, self._segments.first_base)
        if self._damages.ranges:  # its bytes have places that are written down elsewhere
            return Cleanable(dirty_start, dirty_start, 0, 0, False)
        oldest_ms = NO_TIMESTAMP
        if self.config.max_compaction_lag_ms < INT64_MAX and dirty_start < self.end_offset:
            oldest_ms = TimestampMs(self._segments.header_at(dirty_start).max_timestamp_ms)
            is_overdue = 0 < oldest_ms <= now_ms - self.config.max_compaction_lag_ms
            if is_overdue and dirty_start >= self._segments.active.base_offset:
                self.roll(now_ms)
                self.on_crowded()
        # A flush may be about to store a segment's indexes; replaced, its successor would get them.
        unstored = (one.segment.base_offset for one in self._segments.unstored)
        limit = min(limit, self.durable_offset, *unstored)
        facts = map(self._cleanable_facts, self._segments.sealed)
        return cleanable(facts, dirty_start, limit, self.config, now_ms, oldest_ms)

    @property
    def dirty_bytes(self) -> int:
        """Sealed segments whose keys compaction has not seen."""
        dirty = (
            one.size_bytes for one in self._segments.sealed if one.end_offset > self.clean_offset
        )
        return sum(dirty)

    def _cleanable_facts(self, segment: SealedSegment) -> CleanableFacts:
        return CleanableFacts(
            segment.base_offset,
            segment.end_offset,
            segment.size_bytes,
            self._segments.newest_ms_of(segment),
        )

    def begin_cleaning(self, part: Cleanable, now_ms: TimestampMs, memory_bytes_max: int) -> Pass:
        """Everything a worker has to know to compact `part` of this log."""
        wanted = [segment for segment in self._segments.sealed if segment.base_offset < part.end]
        config = self.config
        return Pass(
            tp=self.tp,
            directory=self.directory,
            timeline=self._timeline,
            segments=tuple(map(self._cleanable_facts, wanted)),
            dirty_start=part.dirty_start,
            end=part.end,
            aborted=tuple(self._all_aborted()),
            producers={
                producer_id: LiveProducer(
                    producer.epoch, frozenset(batch.base_offset for batch in producer.batches)
                )
                for producer_id, producer in self.producers.items()
            },
            now_ms=now_ms,
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes_max=config.segment_bytes,
            index_interval_bytes=config.index_interval_bytes,
            decompressed_bytes_max=decompressed_bytes_max(config.max_message_bytes),
            memory_bytes_max=memory_bytes_max,
        )

    def _all_aborted(self) -> Iterator[AbortedTransaction]:
        """Every aborted transaction of the log; segments that are not open stay so."""
        for segment in self._segments.all():
            yield from self._segments.aborted_of(segment)

    def begin_swap(self, work: Pass, cleaned: CleanedSegment) -> Swap | None:
        """Prepare to put a compacted segment in its place; None if the log has changed there."""
        if self.offline_reason is not None:
            return None
        old = self._segments.same_as([fact[:3] for fact in cleaned.replaced])
        if work.timeline != self._timeline or not old or self.corrupt:
            remove_cleaned(self._files, self.directory)
            return None
        new = SealedSegment(
            self.directory, cleaned.base_offset, cleaned.end_offset, cleaned.size_bytes
        )
        new.max_timestamp_ms = cleaned.max_timestamp_ms
        return self._segments.begin_swap(old, new)

    def end_swap(self, swap: Swap) -> None:
        """It has been carried out: from now on the new segment is read."""
        if self._segments.end_swap(swap):
            self._hints.clear()
            old_bytes = sum(segment.size_bytes for segment in swap.old)
            self.size_bytes += swap.new.size_bytes - old_bytes

    def give_up_files(self) -> None:
        """The log is about to go: no worker may touch its files any more."""
        self._segments.give_up_swap()
        self._clean_offset_file.give_up()

    def _settle(self) -> None:
        """Have everything under its name, now, and nobody else at work on it."""
        swap = self._segments.finish_swap()
        if swap is not None:
            self.end_swap(swap)
        self._segments.store_indexes()

    def end_cleaning(self, work: Pass) -> Replacement[bytes] | None:
        """Every segment of a pass has been swapped in; what has to be written to remember it."""
        if work.timeline != self._timeline or self.offline_reason is not None:
            return None
        self.clean_offset = work.end
        return self._clean_offset_file.begin(encode_checkpoint([str(work.end)]))

    def _read_clean_offset(self) -> Offset:
        """How far compaction came; 0, and everything is read again, if that is not known."""
        try:
            lines = read_checkpoint(self._files, self.directory / CLEAN_OFFSET_FILE)
        except CheckpointDamaged:
            lines = None
        clean_offset = Offset(int(lines[0])) if lines else Offset(0)
        return clean_offset if clean_offset <= self.end_offset else Offset(0)

    def _lower_clean_offset(self, offset: Offset) -> None:
        self._clean_offset_file.replace(encode_checkpoint([str(offset)]))
        self.clean_offset = offset

    def truncate(self, to_offset: Offset, now_ms: TimestampMs) -> None:
        """Forget everything from `to_offset` on: a new leader never had it.

        A batch that holds `to_offset` goes as a whole.
        """
        if to_offset >= self.end_offset:
            return
        self._settle()
        if to_offset <= self._segments.first_base:
            self.restart_at(to_offset, now_ms)
            return
        segment, size_bytes, end_offset = self._last_kept(to_offset)
        self._lower_durable(end_offset)
        self._files.unlink(self.directory / file_name(segment.base_offset, SEAL))
        self._forget_lost(segment.base_offset, EVERYTHING)
        self._is_save_wanted = False
        active = self._segments.active
        write_indexes(self._files, self.directory, active.base_offset, active.indexes)
        for later in reversed(self._segments.all()):
            if later.base_offset > segment.base_offset:
                self._unlink_segment(later.base_offset)
        self._files.sync_dir(self.directory)  # or a seal would call a loss what is cut now
        segment.file.truncate(size_bytes)
        segment.file.sync()
        self._reopen(end_offset, now_ms)

    def _last_kept(self, to_offset: Offset) -> tuple[Segment, int, Offset]:
        """The segment that a log cut at `to_offset` ends in, its size then, and the log's end."""
        for damage in self.corrupt:
            if damage.start_offset <= to_offset <= damage.end_offset:
                segment = self._segments.of(damage.segment_base)
                return segment, damage.position, damage.start_offset
        segment = self._segments.of(Offset(to_offset - 1))
        if to_offset >= segment.end_offset:
            return segment, segment.size_bytes, segment.end_offset
        first_gone = self._segments.find(segment, to_offset)
        return segment, first_gone.position, first_gone.base_offset

    def restart_at(self, offset: Offset, now_ms: TimestampMs) -> None:
        """Forget everything and begin again, empty, at `offset`."""
        self._settle()
        self._lower_durable(min(offset, self._segments.first_base))
        for segment in reversed(self._segments.all()):
            self._unlink_segment(segment.base_offset)
        for snapshot in list(self._snapshots):
            self._remove_snapshot(snapshot)
        self._forget_lost(FIRST_OFFSET, EVERYTHING)
        self.epochs = Epochs()
        self._files.unlink(self.directory / CORRUPT_FILE)
        self.start_offset = offset
        self._reopen(offset, now_ms)

    def _lower_durable(self, offset: Offset) -> None:
        """First of all the recovery point on disk must not promise what is about to go."""
        self._timeline += 1
        for file in self._unsynced:
            file.sync()
        self._unsynced.clear()
        self.durable_offset = min(self.durable_offset, offset)
        if self.clean_offset > offset:
            self._lower_clean_offset(offset)
        if self.checkpointed_offset > self.durable_offset:
            self.before_truncate()

    def _unlink_segment(self, base_offset: Offset) -> None:
        for suffix in SEGMENT_SUFFIXES:
            self._files.unlink(self.directory / file_name(base_offset, suffix))

    def _reopen(self, end_offset: Offset, now_ms: TimestampMs) -> None:
        for snapshot in [one for one in self._snapshots if one > end_offset]:
            self._remove_snapshot(snapshot)
        self._files.sync_dir(self.directory)
        noted = NotedState(NO_UUID, self.epochs.encode(), b"")
        self._adopt(self._recover(EVERYTHING, now_ms, noted=noted))
        active = self._segments.active
        if not active.indexes.aborted:  # the file may hold some that were cut off as well
            self._files.unlink(self.directory / file_name(active.base_offset, ABORTED_INDEX))
        self.start_offset = min(self.start_offset, self.end_offset)
        self.durable_offset = self.end_offset

    def _go_offline(self, error: OSError) -> None:
        self.offline_reason = f"the disk failed: {error}"


def _do_nothing() -> None:
    return


def _crowded(error: OSError) -> StorageFailed:
    return StorageFailed(f"a segment cannot be opened now: {error.strerror}")


def _ignore_damage(damage: CorruptRange) -> None:
    return


def _repeated(known: ProducedBatch, append_time_ms: TimestampMs) -> Appended:
    """A batch that is here already keeps its place, and its time if the broker gave it one."""
    if append_time_ms >= 0:
        append_time_ms = known.appended_ms
    return Appended(known.base_offset, known.last_offset, append_time_ms, True)


def _is_plain(config: TopicConfig) -> bool:
    """Whether the topic takes batches as they are: no time to give, nothing to look into."""
    return (
        config.timestamp_type is _CREATE_TIME
        and config.compression_type == "producer"
        and "compact" not in config.cleanup_policy
        and config.timestamp_before_max_ms == ANY_AGE
    )


def _opened(
    batch: bytearray | memoryview, header: BatchHeader, config: TopicConfig
) -> bytearray | memoryview:
    """Look into a batch as its topic asks: for keys, and for another codec."""
    bytes_max = decompressed_bytes_max(config.max_message_bytes)
    if "compact" in config.cleanup_policy:
        check_keys(batch, header, decompressed_bytes_max=bytes_max)
    if config.compression_type == "producer":
        return batch
    codec = Codec.named(config.compression_type)
    if codec == header.codec:
        return batch
    return recompress(batch, codec, decompressed_bytes_max=bytes_max)
