"""A partition this broker leads: its log, and what has been promised about it."""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from ottla.config import Durability, TopicConfig
from ottla.errors import (
    ApiError,
    FencedLeaderEpoch,
    NotEnoughReplicas,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from ottla.model import (
    BrokerId,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from ottla.records.batch import Marker
from ottla.replication.progress import high_watermark
from ottla.replication.waiters import OffsetWaiters, Settled
from ottla.storage.log import Log

ACKS_ALL = -1
ACKS_NONE = 0
ACKS_LEADER = 1
_FSYNC: Final = Durability.FSYNC


class Flushes(Protocol):
    """A flusher, as far as a partition calls it: brings a log to disk and notifies it."""

    def request(self, log: Log) -> None: ...


class Receipt(NamedTuple):
    """The result of an append: everything that the response to a producer says."""

    base_offset: Offset
    end_offset: Offset
    append_time_ms: TimestampMs  # -1 unless the broker's clock gave the records their time
    log_start_offset: Offset
    is_settled: bool  # True when what the producer's acks promise holds already


class LeaderPartition:
    """Owner of one partition's high watermark and of everyone who waits for it.

    Called from the broker's loop only. `soon` runs a callback in the loop's next turn: readers
    are woken there, after the producer has its response.
    """

    __slots__ = (
        "_broker_id",
        "_committed",
        "_durable",
        "_flusher",
        "_is_fsync",
        "_is_given_up",
        "_is_waking",
        "_isr_min",
        "_readers",
        "_soon",
        "high_watermark",
        "isr",
        "leader_epoch",
        "log",
        "replicas",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        log: Log,
        *,
        broker_id: BrokerId,
        leader_epoch: LeaderEpoch,
        replicas: tuple[BrokerId, ...],
        isr: frozenset[BrokerId],
        flusher: Flushes,
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.tp = tp
        self.log = log
        self.leader_epoch = leader_epoch
        self.replicas = replicas
        self.isr = isr
        self.high_watermark = log.start_offset
        self._broker_id = broker_id
        self._flusher = flusher
        self._soon = soon
        self._durable = OffsetWaiters()  # acks=1 on a topic that promises the disk
        self._committed = OffsetWaiters()  # acks=all
        self._readers: dict[Callable[[], None], None] = {}  # in the order in which they came
        self._is_waking = False
        self._is_given_up = False
        assert broker_id in isr, f"{tp}: the leader {broker_id} is not in its ISR {set(isr)}"
        log.epochs.note(leader_epoch, log.end_offset)
        self.configure(log.config)

    # Writing

    def append(
        self, batch: memoryview, acks: int, now_ms: TimestampMs, *, has_keys: bool = False
    ) -> Receipt:
        """Append a producer's batch; the receipt says whether its acks hold already.

        `has_keys` is that of `Log.append_as_leader`.
        """
        log = self.log
        if acks == ACKS_ALL and len(self.isr) < self._isr_min:
            raise NotEnoughReplicas(
                f"{self.tp} has {len(self.isr)} in-sync replicas,"
                f" min.insync.replicas is {log.config.min_insync_replicas}"
            )
        base_offset, last_offset, append_time_ms, _ = log.append_as_leader(
            batch, self.leader_epoch, now_ms, has_keys=has_keys
        )
        end_offset = Offset(last_offset + 1)
        if self._is_fsync:
            self._flusher.request(log)
        elif len(self.replicas) == 1:
            self._commit(log.end_offset)
        else:
            self.note_progress()
        is_settled = self.is_settled(end_offset, acks)
        return Receipt(base_offset, end_offset, append_time_ms, log.start_offset, is_settled)

    def append_marker(
        self,
        marker: Marker,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        now_ms: TimestampMs,
    ) -> Offset:
        """End a producer's transaction here; returns the log's end."""
        if len(self.isr) < self._isr_min:
            raise NotEnoughReplicas(f"{self.tp} has {len(self.isr)} in-sync replicas")
        self.log.append_marker(marker, producer_id, producer_epoch, self.leader_epoch, now_ms)
        if self._is_fsync:
            self._flusher.request(self.log)
        else:
            self.note_progress()
        return self.log.end_offset

    def is_settled(self, end: Offset, acks: int) -> bool:
        """True when the promise to a producer with these acks holds up to `end`."""
        if acks == ACKS_ALL:
            return self.high_watermark >= end
        return not self._is_fsync or self.log.durable_offset >= end

    def wait_settled(self, end: Offset, acks: int, settled: Settled) -> None:
        """Call `settled` when the promise is true up to `end`, or can no longer become so."""
        (self._committed if acks == ACKS_ALL else self._durable).add(end, settled)

    # Reading

    def check_epoch(self, epoch: int) -> None:
        """Refuse a reader that knows an older leader, or a newer one than we do (KIP-320)."""
        if epoch == -1 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"{self.tp} has leader epoch {self.leader_epoch}, not {epoch}")
        raise UnknownLeaderEpoch(f"{self.tp} has leader epoch {self.leader_epoch}, not {epoch}")

    def check_offset(self, offset: int) -> None:
        if not self.log.start_offset <= offset <= self.log.end_offset:
            raise OffsetOutOfRange(
                f"{self.tp} has [{self.log.start_offset}, {self.log.end_offset}), not {offset}"
            )

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

    # Change

    def configure(self, config: TopicConfig) -> None:
        """Use these settings from now on; a weaker durability may settle waiting producers."""
        self.log.config = config
        self._is_fsync = config.durability is _FSYNC
        # A topic with fewer replicas than min.insync.replicas asks for what it has.
        self._isr_min = min(config.min_insync_replicas, len(self.replicas))
        self.note_progress()

    def note_progress(self) -> None:
        """The log has grown, or more of it is durable: what was promised may hold now."""
        if self._is_given_up:
            return
        log, current = self.log, self.high_watermark
        # The leader's end is durable if its topic promises that.
        end = log.durable_offset if self._is_fsync else log.end_offset
        if len(self.replicas) == 1:  # the frequent case of `high_watermark`
            reached = max(current, end)
        else:
            ends = {self._broker_id: end}
            reached = high_watermark(current, self.isr, ends, isr_min=self._isr_min)
        assert current <= reached <= log.end_offset, (
            f"{self.tp}: high watermark {current} to {reached}, the log ends at {log.end_offset}"
        )
        if reached > current:
            self._commit(reached)
        if self._durable.queue:
            self._durable.advance(end)

    def request_flush(self) -> None:
        """Have the log brought to disk soon."""
        if not self._is_given_up:
            self._flusher.request(self.log)

    def note_leadership(self, leader_epoch: LeaderEpoch, isr: frozenset[BrokerId]) -> None:
        assert leader_epoch >= self.leader_epoch, f"{self.tp}: epochs only rise"
        assert self._broker_id in isr, f"{self.tp}: the leader is not in its ISR {set(isr)}"
        self.leader_epoch = leader_epoch
        self.isr = isr
        self.log.epochs.note(leader_epoch, self.log.end_offset)
        self.note_progress()

    def give_up(self, error: ApiError) -> None:
        """The partition is no longer ours: fail all waiters and wake all readers."""
        self._is_given_up = True
        self._durable.fail(error)
        self._committed.fail(error)
        self._wake_readers()

    def _commit(self, reached: Offset) -> None:
        self.high_watermark = reached
        if self._committed.queue:
            self._committed.advance(reached)
        if self._readers and not self._is_waking:
            self._is_waking = True
            self._soon(self._wake_readers)

    def _wake_readers(self) -> None:
        self._is_waking = False
        for wake in list(self._readers):
            wake()
