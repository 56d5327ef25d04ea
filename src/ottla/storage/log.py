"""A partition's log on this machine: append, read, and know which offsets it has.

A log has one owner and is called from the owner's thread only. Work that waits for the disk is
handed to other threads by the log's parts: `flushing` to the flusher, `cleaning` and `truncation`
to a worker.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ottla.config import INT32_MAX, TopicConfig
from ottla.errors import OffsetOutOfRange, StorageFailed
from ottla.model import (
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from ottla.records.batch import (
    Marker,
    check_plain,
    stamp,
)
from ottla.storage.damages import CorruptRange
from ottla.storage.epochs import EpochEnd, Epochs
from ottla.storage.files import Files
from ottla.storage.index import AbortedTransaction
from ottla.storage.log_append import (
    Appended,
    Judge,
    append_built,
    append_checked,
    append_marker,
    is_plain_but_keys,
)
from ottla.storage.log_cleaning import LogCleaning
from ottla.storage.log_core import LogCore
from ottla.storage.log_flush import LogFlush
from ottla.storage.log_follow import append_followed
from ottla.storage.log_listener import LogListener, SilentListener
from ottla.storage.log_read import FileRange, read_on, read_range
from ottla.storage.log_repair import LogRepair
from ottla.storage.log_retention import LogRetention
from ottla.storage.log_states import NotedState
from ottla.storage.log_truncation import LogTruncation
from ottla.storage.open_files import OpenFiles
from ottla.storage.producers import Producers
from ottla.storage.segment import ActiveSegment, SealedSegment
from ottla.storage.time_search import TimeSearch


class Log:
    """The batches of one partition, in order, and everything derived from them."""

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
        listener: LogListener | None = None,
    ) -> None:
        """With `is_new` there is nothing to recover; `recover` has the other arguments."""
        self.tp = tp
        self.files = files
        self.directory = directory
        core = self._core = LogCore(
            tp,
            files,
            directory,
            config,
            start_offset=start_offset,
            recovery_point=recovery_point,
            listener=listener or SilentListener(),
            open_files=open_files or OpenFiles(),
        )
        core.open_files.make_room()
        if is_new:
            found = core.begin_empty(now_ms)
        else:
            found = core.recover(
                recovery_point, now_ms, closed_at, noted, names, is_synced=is_synced
            )
        core.adopt(found)
        self.cut_bytes = found.cut_bytes  # torn off the end when the log was opened
        self.recovered_bytes = found.read_bytes  # read then
        self.recovered_offsets = found.read_offsets
        self.has_epochs_file = found.has_epochs_file  # which no checkpoint renews any more
        self._noted_watermark: Offset | None = None
        self.flushing = LogFlush(core)
        self.cleaning = LogCleaning(core, is_compacted=found.is_compacted)
        self.repair = LogRepair(core)
        self.retention = LogRetention(core)
        self.times = TimeSearch(core)
        self.truncation = LogTruncation(core, self.flushing, self.cleaning)
        self._known_config: TopicConfig | None = None  # the one that these two are of
        self._is_plain = False
        self._is_plain_but_keys = False
        if core.start_offset > core.end_offset:  # records were deleted that have not survived
            self.restart_at(core.start_offset, now_ms)
        assert core.start_offset <= core.durable_offset == core.end_offset, f"{tp}: not whole"

    @property
    def config(self) -> TopicConfig:
        """The topic's settings. May be replaced at any time."""
        return self._core.config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._core.config = config

    @property
    def start_offset(self) -> Offset:
        """The first offset that can be read."""
        return self._core.start_offset

    @property
    def end_offset(self) -> Offset:
        """The offset that the next record gets."""
        return self._core.end_offset

    @property
    def durable_offset(self) -> Offset:
        """The offset below which everything is on disk."""
        return self._core.durable_offset

    @property
    def noted_watermark(self) -> Offset:
        """The high watermark when it was last noted, or the start: only replicas note it."""
        return min(
            max(self._noted_watermark or self.start_offset, self.start_offset), self.end_offset
        )

    @noted_watermark.setter
    def noted_watermark(self, offset: Offset) -> None:
        self._noted_watermark = offset

    @property
    def has_watermark(self) -> bool:
        """True if a high watermark was noted."""
        return self._noted_watermark is not None

    @property
    def size_bytes(self) -> int:
        return self._core.size_bytes

    @property
    def epochs(self) -> Epochs:
        return self._core.epochs

    @property
    def producers(self) -> Producers:
        return self._core.producers

    @property
    def corrupt(self) -> list[CorruptRange]:
        """The records that are damaged or lost on disk, and never served."""
        return self._core.damages.ranges

    @property
    def sealed_segments(self) -> tuple[SealedSegment, ...]:
        """The segments that no longer grow, as they are now."""
        return tuple(self._core.segments.sealed)

    @property
    def active_segment(self) -> ActiveSegment:
        """The segment that is being written."""
        return self._core.segments.active

    @property
    def is_plain(self) -> bool:
        """True when batches that need nothing but an offset are appended in fewer steps."""
        return self._core.config is self._known_config and self._is_plain

    @property
    def may_hide(self) -> bool:
        """True if readers may not see all records: those that wait are hidden."""
        return self._core.has_hidden or self._core.config.may_wait

    @property
    def remembered_offsets(self) -> list[Offset]:
        """The offsets from which readers go on without a search."""
        return list(self._core.hints)

    # Appending

    def append_as_leader(
        self,
        batch: bytearray | memoryview,
        leader_epoch: LeaderEpoch,
        now_ms: TimestampMs,
        *,
        has_keys: bool = False,
    ) -> Appended:
        """Give the batch its offset and epoch, then write it to the page cache.

        Everything is checked before anything changes: a batch that is refused leaves no trace.
        A broker that builds a batch says that its records `has_keys`: a compacted topic then need
        not look into it.
        """
        core = self._core
        config = core.config
        if config is not self._known_config:
            self._known_config = config
            self._is_plain_but_keys = is_plain_but_keys(config)
            self._is_plain = self._is_plain_but_keys and "compact" not in config.cleanup_policy
            return append_checked(core, batch, config, leader_epoch, now_ms)
        if not (self._is_plain or (has_keys and self._is_plain_but_keys)):
            return append_checked(core, batch, config, leader_epoch, now_ms)
        # The frequent case, in fewer steps: a batch that needs nothing but its offset.
        plain = check_plain(batch)
        if plain is None:
            return append_checked(core, batch, config, leader_epoch, now_ms)
        last_delta, base_timestamp_ms, max_timestamp_ms = plain
        active = core.segments.active
        size_bytes = len(batch)
        base_offset = core.end_offset
        last_offset = base_offset + last_delta
        if (
            size_bytes > config.max_message_bytes
            or not 0 < active.size_bytes <= config.segment_bytes - size_bytes
            or now_ms - active.opened_ms >= config.segment_ms
            or last_offset - active.base_offset > INT32_MAX
            or leader_epoch != core.epochs.latest
            or not base_timestamp_ms <= max_timestamp_ms > 0
            or max_timestamp_ms - now_ms > config.timestamp_after_max_ms
            or core.offline_reason is not None
        ):
            return append_checked(core, batch, config, leader_epoch, now_ms)
        stamp(batch, base_offset, leader_epoch)
        try:
            active.append(batch, last_offset, max_timestamp_ms, config.index_interval_bytes)
        except OSError as error:
            raise core.undo_write(error) from error
        core.size_bytes += size_bytes
        core.end_offset = active.end_offset
        return tuple.__new__(Appended, (base_offset, last_offset, NO_TIMESTAMP, False))

    def append_judged(
        self,
        batch: bytearray | memoryview,
        leader_epoch: LeaderEpoch,
        now_ms: TimestampMs,
        judge: Judge,
    ) -> Appended:
        """Like `append_as_leader`, on a topic whose batches are looked into before."""
        core = self._core
        return append_checked(core, batch, core.config, leader_epoch, now_ms, judge)

    def append_built(
        self, batch: bytearray, leader_epoch: LeaderEpoch, now_ms: TimestampMs
    ) -> Appended:
        """Append a batch that the leader built, without producer: no limit of clients holds."""
        return append_built(self._core, batch, leader_epoch, now_ms)

    def append_as_follower(self, records: bytearray | memoryview, now_ms: TimestampMs) -> None:
        """Write batches exactly as the leader placed them; a follower may skip, never rewind.

        All of them are checked before anything changes.
        """
        append_followed(self._core, memoryview(records), now_ms)

    def append_marker(
        self,
        marker: Marker,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        leader_epoch: LeaderEpoch,
        now_ms: TimestampMs,
    ) -> Appended:
        """End a producer's transaction: its records are visible or void from here on."""
        return append_marker(self._core, marker, producer_id, producer_epoch, leader_epoch, now_ms)

    # Reading

    def read(
        self, start: Offset, end: Offset, bytes_max: int, *, at_least_one: bool
    ) -> FileRange | None:
        """Whole batches of one segment, from the one that holds `start`, all below `end`.

        At most `bytes_max`, but for `at_least_one`, which lets the first batch be larger. None
        when nothing fits.
        """
        core = self._core
        if core.offline_reason is not None:
            raise StorageFailed(core.offline_reason)
        if not core.start_offset <= start <= core.end_offset:
            raise OffsetOutOfRange(
                f"offset {start} is outside {core.start_offset} to {core.end_offset}"
            )
        end = min(end, core.end_offset)
        if start >= end:
            return None
        try:
            return read_range(core, self.repair, start, end, bytes_max, at_least_one)
        except OSError as error:
            raise core.unreadable(error) from error

    def read_on(
        self, found: FileRange, end: Offset, bytes_max: int, *, at_least_one: bool
    ) -> FileRange:
        """The range for a consumer that has got `found` from `read`: the next that has a record.

        Compaction may leave nothing but batches without records in whole segments, and consumers
        take many responses without a record for an error. If records are too far away, or there is
        none before `end`, the range is still one that takes the reader further.
        """
        core = self._core
        try:
            return read_on(core, self.repair, found, end, bytes_max, at_least_one)
        except OSError as error:
            raise core.unreadable(error) from error

    def read_bytes(self, found: FileRange) -> bytes:
        """The batches of a range as bytes."""
        try:
            return found.file.read(found.position, found.size_bytes)
        except OSError as error:
            raise self._core.fail(error) from error

    # Epochs and transactions

    def epoch_end(self, epoch: LeaderEpoch) -> EpochEnd:
        """The end of `epoch` in this log (KIP-279); (-1, -1) when nothing is known of it."""
        return self._core.readable(partial(self.repair.epoch_end, epoch))

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """The offset below which every transaction is decided and its end is visible."""
        unstable = self._core.producers.first_unstable(high_watermark)
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def aborted_transactions(self, start: Offset, end: Offset) -> list[AbortedTransaction]:
        """The aborted transactions that a reader of `start` to `end` has to skip."""
        core = self._core
        return core.readable(partial(core.segments.aborted_between, start, end))

    # Segments come and go

    def roll(self, now_ms: TimestampMs) -> None:
        """End the active segment, if anything is in it, and begin the next."""
        self._core.roll(now_ms)

    def advance_start(self, offset: Offset) -> None:
        """Delete the records below `offset` (DeleteRecords)."""
        self.retention.advance_start(offset)

    def truncate(self, to_offset: Offset, now_ms: TimestampMs) -> None:
        """Forget everything from `to_offset` on. A batch that holds `to_offset` goes as a whole."""
        self.truncation.truncate(to_offset, now_ms)

    def restart_at(self, offset: Offset, now_ms: TimestampMs) -> None:
        """Forget everything and begin again, empty, at `offset`."""
        self.truncation.restart_at(offset, now_ms)

    # Durability and the end of a log

    def flush(self) -> None:
        """Make everything appended so far durable, and wait for it."""
        self.flushing.flush()

    def release_files(self) -> bool:
        """Close what is on disk and not in use; False if anything stays open."""
        return self._core.release_files()

    def close_files(self) -> None:
        """Close every file, now and not with the last reference: the log is not used any more."""
        self._core.close_files()

    def close(self) -> None:
        """Make everything durable and the next start short."""
        if self._core.offline_reason is None:
            self.flushing.save()
            self.flush()

    @property
    def offline_reason(self) -> str | None:
        """The reason why the log can no longer be read or written; None as long as it can."""
        return self._core.offline_reason

    def take_offline(self, reason: str) -> None:
        """Refuse everything from now on: the data directory has failed."""
        self._core.offline_reason = reason

    def fail(self, error: OSError) -> None:
        """The disk failed at work on this log: take it offline, and notify its owner."""
        self._core.fail(error)

    def retire(self, reason: str) -> None:
        """The log is about to be deleted: no worker may touch its files any more."""
        self._core.retire(reason)
        self.cleaning.give_up()
