"""A partition that this broker follows: its log, and what its leader says about it."""

from collections.abc import Callable
from math import inf
from typing import Final

from ottla.config import Durability
from ottla.errors import (
    CorruptBatch,
    ErrorCode,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
)
from ottla.model import BrokerId, LeaderEpoch, Offset, TimestampMs, TopicPartition, Uuid
from ottla.protocol.hot_fetch import NO_WATERMARK
from ottla.protocol.messages.fetch import FetchPartition, FetchPartitionResponse
from ottla.records.batch import read_header
from ottla.replication.partition import check_reader_epoch
from ottla.replication.waiters import Watchers
from ottla.storage.log import Log
from ottla.storage.log_cut import Cut
from ottla.storage.log_follow import split_batches

PARTITION_BYTES_MAX: Final = 1 << 20  # of one partition in one response, unless a batch is larger
_READ_RECENTLY_S: Final = 10.0  # ago: so long a consumer counts as one that reads here


class ReplicaDiverged(Exception):
    """The log differs from its leader's below its high watermark: one of them is defective."""


class LeaderContact:
    """State that partitions share which are fetched together.

    `heard_s` is when their leader last responded; `due` has those that may want another fetch
    than the one that the leader's session has.
    """

    __slots__ = ("due", "heard_s")

    def __init__(self) -> None:
        self.heard_s = -inf
        self.due: dict[FollowerPartition, None] = {}


class FollowerPartition:
    """A replica of a partition that another broker leads, for one leader epoch.

    Called from the broker's loop only. `is_in_sync` says whether the replica counts for the high
    watermark; one that does not acknowledges only what is on its disk.
    """

    __slots__ = (
        "_read_s",
        "_readers",
        "contact",
        "high_watermark",
        "is_in_sync",
        "is_refused",
        "leader",
        "leader_epoch",
        "log",
        "retry_s",
        "topic_id",
        "tp",
        "unclean_epoch",
        "watchers",
    )

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: Uuid,
        log: Log,
        *,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        unclean_epoch: LeaderEpoch,
        is_in_sync: bool,
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.log = log
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.unclean_epoch = unclean_epoch
        self.is_in_sync = is_in_sync
        self.high_watermark = log.noted_watermark
        self.retry_s = 0.0  # when to fetch again, after an error
        self.is_refused = False  # the leader's last response for it was an error
        self.contact = LeaderContact()  # of the fetcher that it is added to
        self._read_s = -inf  # when a consumer last read here
        self._readers: dict[Callable[[], None], None] = {}
        self.watchers = Watchers()  # the fetch sessions of consumers that read here
        # A leader that wrote nothing leaves no trace: the last batch says what this log is.
        log.epochs.truncate_end(log.end_offset)

    def note_in_sync(self, is_in_sync: bool) -> None:
        """The replica has joined the ISR or left it, or neither."""
        if is_in_sync != self.is_in_sync:
            self.is_in_sync = is_in_sync
            self.contact.due[self] = None

    @property
    def promised_end(self) -> Offset:
        """The offset up to which this replica may say that it has everything.

        On disk, if the topic promises that, and for as long as the replica is not in sync.
        """
        log = self.log
        if log.config.durability is Durability.FSYNC or not self.is_in_sync:
            return log.durable_offset
        return log.end_offset

    def request(self, now_s: float) -> FetchPartition:
        """A fetch of everything from the log's end on. Says that all below is here.

        While consumers read here it also says which high watermark is known, so that the leader
        responds when there is a newer one.
        """
        assert self.promised_end == self.log.end_offset, f"{self.tp}: its end is not on disk"
        log = self.log
        return FetchPartition(
            partition=self.tp.partition,
            current_leader_epoch=self.leader_epoch,
            fetch_offset=log.end_offset,
            last_fetched_epoch=log.epochs.latest,
            log_start_offset=log.start_offset,
            partition_max_bytes=PARTITION_BYTES_MAX,
            high_watermark=self.high_watermark
            if now_s - self._read_s < _READ_RECENTLY_S
            else NO_WATERMARK,
        )

    @property
    def is_being_cut(self) -> bool:
        """True while the log is neither read nor written here."""
        return self.log.truncation.is_under_way

    def begin_cut(self, fetched: FetchPartitionResponse, now_ms: TimestampMs) -> Cut | None:
        """Begin to cut the log as a response demands; None if it does not.

        Raises ReplicaDiverged, CorruptBatch or StorageFailed, and nothing has changed.
        """
        cut: Cut | None
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            cut = self._begin_restart(Offset(fetched.log_start_offset), now_ms)
        elif fetched.error_code:
            return None
        elif _is_diverging(fetched):
            where = fetched.diverging_epoch
            cut = self._begin_cut_at(LeaderEpoch(where.epoch), Offset(where.end_offset), now_ms)
        elif fetched.records and self.log.start_offset == self.log.end_offset:
            cut = self._begin_restart_inside(memoryview(fetched.records), now_ms)
        else:
            return None
        if cut is not None:
            self.high_watermark = min(self.high_watermark, cut.end_offset)
            self.log.noted_watermark = self.high_watermark
        return cut

    def end_cut(self, cut: Cut) -> None:
        """The cut is over: the log goes on at its end, unless that was given up or has failed."""
        if cut.start_offset is not None and cut.recovered is not None:
            self.high_watermark = cut.start_offset
        self.high_watermark = min(self.high_watermark, self.log.end_offset)

    def take(self, fetched: FetchPartitionResponse, now_ms: TimestampMs) -> bool:
        """Append what a response without an error brings; True if the log has grown.

        What it demands to be cut has been cut. Raises CorruptBatch if the leader sent anything else
        than what follows this log.
        """
        if _is_diverging(fetched):
            return False
        self.is_refused = False
        log = self.log
        end_before = log.end_offset
        records = memoryview(fetched.records or b"")
        self._check_epochs(records)
        if records and (base := read_header(records).base_offset) < end_before:
            raise CorruptBatch(f"{self.tp}: offset {base} has been written already")
        log.append_as_follower(records, now_ms)
        reached = min(Offset(fetched.high_watermark), log.end_offset)
        is_more_committed = reached > self.high_watermark
        self.high_watermark = max(self.high_watermark, reached)
        start = min(Offset(fetched.log_start_offset), self.high_watermark)
        if start > log.start_offset:
            log.advance_start(start)
        if is_more_committed:
            self.wake_readers()
        return log.end_offset > end_before

    # Consumers that read here (KIP-392)

    @property
    def is_leader(self) -> bool:
        return False

    def note_read(self, now_s: float, lag_max_s: float) -> None:
        """A consumer wants to read here. Refused while the leader is not heard of."""
        if self.is_being_cut:
            raise NotLeader(f"{self.tp} is followed here, and its log is being cut")
        if self.is_refused or now_s - self.contact.heard_s > lag_max_s:
            raise NotLeader(f"{self.tp} is followed here, and its leader is not heard of")
        self._read_s = now_s
        self.contact.due[self] = None

    def check_epoch(self, epoch: int) -> None:
        """Refuse a reader that knows an older leader, or a newer one than we do (KIP-320)."""
        check_reader_epoch(self.tp, self.leader_epoch, epoch)

    def check_offset(self, offset: int) -> None:
        """Above its end a follower knows nothing: the leader may have more."""
        if offset > self.log.end_offset:
            raise OffsetNotAvailable(f"{self.tp} is followed here up to {self.log.end_offset}")
        if offset < self.log.start_offset:
            raise OffsetOutOfRange(f"{self.tp} begins at {self.log.start_offset}, not {offset}")

    def readable_end(self, *, read_committed: bool) -> Offset:
        """The offset at which a consumer must stop."""
        if read_committed:
            return self.log.last_stable_offset(self.high_watermark)
        return self.high_watermark

    def add_reader(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever there is more to read, until it is removed."""
        self._readers[wake] = None

    def remove_reader(self, wake: Callable[[], None]) -> None:
        self._readers.pop(wake, None)

    def wake_readers(self) -> None:
        for wake in list(self._readers):
            wake()
        self.watchers.note_committed()

    def _check_epochs(self, records: memoryview) -> None:
        """Refuse batches whose epochs go back, or that are newer than their leader."""
        latest = self.log.epochs.latest
        for batch in split_batches(records):
            epoch = LeaderEpoch(read_header(batch).leader_epoch)
            if not latest <= epoch <= self.leader_epoch:
                raise CorruptBatch(
                    f"{self.tp}: a batch of epoch {epoch} behind one of epoch {latest}, from the"
                    f" leader of epoch {self.leader_epoch}"
                )
            latest = epoch

    def _begin_restart(self, offset: Offset, now_ms: TimestampMs) -> Cut:
        """Begin again where the leader's log begins: it has deleted what comes next here."""
        self._check_loss(min(offset, self.log.end_offset))
        return self.log.truncation.begin_restart(offset, now_ms)

    def _begin_restart_inside(self, records: memoryview, now_ms: TimestampMs) -> Cut | None:
        """Have an empty log begin where the first of these batches does, if that is earlier: the
        leader's log starts inside of it.
        """
        self._check_epochs(records)
        base = Offset(read_header(records).base_offset)
        if base >= self.log.end_offset:
            return None
        return self.log.truncation.begin_restart(base, now_ms)

    def _begin_cut_at(self, epoch: LeaderEpoch, end: Offset, now_ms: TimestampMs) -> Cut | None:
        """Cut off what the leader does not have: its epoch ended at `end`, here maybe elsewhere."""
        own_epoch, own_end = self.log.epoch_end(epoch)
        to_offset = end if own_epoch < 0 else min(end, own_end)
        to_offset = max(to_offset, Offset(0))
        self._check_loss(to_offset)
        return self.log.truncation.begin(to_offset, now_ms)

    def _check_loss(self, to_offset: Offset) -> None:
        """Refuse to cut off what is committed, unless a leader was elected without it."""
        if to_offset >= self.high_watermark or self.unclean_epoch > self.log.epochs.latest:
            return
        raise ReplicaDiverged(
            f"{self.tp}: its leader {self.leader} of epoch {self.leader_epoch} has no record from"
            f" offset {to_offset} on, and all below {self.high_watermark} were committed"
        )


def _is_diverging(fetched: FetchPartitionResponse) -> bool:
    """True if the response says where the logs begin to differ."""
    where = fetched.diverging_epoch
    return where.epoch >= 0 or where.end_offset >= 0
