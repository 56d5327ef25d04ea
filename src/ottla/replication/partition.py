"""A partition this broker leads: its log, and what has been promised about it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.cluster.controller.leaders import IsrChange, isr_min_of
from ottla.cluster.values import BrokerImage, PartitionImage
from ottla.config import Durability, TopicConfig
from ottla.errors import (
    ApiError,
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
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
from ottla.replication.follower_contacts import FollowerContacts
from ottla.replication.followers import FollowerClock, Followers
from ottla.replication.waiters import OffsetWaiters, Readers, Settled, Watchers
from ottla.storage.log import Log
from ottla.storage.log_append import Appended
from ottla.storage.producers import Producer

if TYPE_CHECKING:
    from ottla.replication.waiting_records import WaitingRecords

ACKS_ALL = -1
ACKS_NONE = 0
ACKS_LEADER = 1
_FSYNC: Final = Durability.FSYNC


class Flushes(Protocol):
    """A flusher, as far as a partition calls it: brings a log to disk and notifies it."""

    def request(self, log: Log) -> None: ...


class PartitionForwarded(NotLeader):
    """Batches for this partition, which is led here, are forwarded to another, or were once.

    Caught where they are forwarded; a client that gets it retries.
    """

    def __init__(self, tp: TopicPartition) -> None:
        super().__init__(f"batches for {tp} are forwarded")
        self.tp = tp


class Receipt(NamedTuple):
    """The result of an append: everything that the response to a producer says."""

    base_offset: Offset
    end_offset: Offset
    append_time_ms: TimestampMs  # -1 unless the broker's clock gave the records their time
    log_start_offset: Offset
    is_settled: bool  # True when what the producer's acks promise holds already


def check_reader_epoch(tp: TopicPartition, known: LeaderEpoch, epoch: int) -> None:
    """Refuse a reader that knows an older leader than `known`, or a newer one; -1 is any."""
    if epoch == -1 or epoch == known:
        return
    if epoch < known:
        raise FencedLeaderEpoch(f"{tp} has leader epoch {known}, not {epoch}")
    raise UnknownLeaderEpoch(f"{tp} has leader epoch {known}, not {epoch}")


class LeaderPartition:
    """Owner of one partition's high watermark and of everyone who waits for it.

    Lives as long as its broker leads without interruption. That is one leader epoch, or more if
    replicas are dropped meanwhile. Called from the broker's loop only. `soon` runs a callback in
    the loop's next turn: readers are woken there, after the producer has its response.
    """

    __slots__ = (
        "_adding",
        "_broker_id",
        "_committed",
        "_counted",
        "_durable",
        "_flusher",
        "_is_changing",
        "_is_fsync",
        "_is_given_up",
        "_isr_min",
        "_make_waiting",
        "_readers",
        "_want_isr_change",
        "contacts",
        "epoch_start",
        "followers",
        "high_watermark",
        "image",
        "leader_epoch",
        "log",
        "replicas",
        "tp",
        "waiting",
        "watchers",
    )

    def __init__(
        self,
        tp: TopicPartition,
        log: Log,
        image: PartitionImage,
        *,
        broker_id: BrokerId,
        flusher: Flushes,
        soon: Callable[[Callable[[], None]], object],
        want_isr_change: Callable[[], None],
        now_s: float,
        make_waiting: "Callable[[LeaderPartition], WaitingRecords] | None" = None,
    ) -> None:
        """`want_isr_change` is called when `begin_isr_change` may return something."""
        assert image.leader == broker_id, f"{tp} is led by {image.leader}, not {broker_id}"
        self.tp = tp
        self.log = log
        self.image = image
        self.leader_epoch = image.leader_epoch
        self.replicas = image.replicas
        self.epoch_start = log.end_offset
        self.high_watermark = log.noted_watermark
        others = [broker for broker in image.replicas if broker != broker_id]
        self.followers = Followers(others, now_s)
        self.waiting: WaitingRecords | None = None  # on a topic on which records may wait
        self._make_waiting = make_waiting
        self.contacts: FollowerContacts | None = None  # while it has to be known who follows
        self._broker_id = broker_id
        self._flusher = flusher
        self._want_isr_change = want_isr_change
        self._durable = OffsetWaiters()  # acks=1 on a topic that promises the disk
        self._committed = OffsetWaiters()  # acks=all
        self._readers = Readers(soon)
        self.watchers = Watchers()  # the fetch sessions that have the partition
        self._is_given_up = False
        self._adding: tuple[BrokerId, ...] = ()  # to the ISR, by a change that is under way
        self._is_changing = False  # whether a change of the ISR is under way
        self._counted: tuple[BrokerId, ...] = ()  # the followers that a commit waits for
        log.epochs.note(image.leader_epoch, log.end_offset)
        self.configure(log.config)
        if image.is_new:
            want_isr_change()

    @property
    def is_leader(self) -> bool:
        return True

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The in-sync replicas, as they are committed."""
        return self.image.isr

    @property
    def is_under_isr_min(self) -> bool:
        """True while fewer replicas are in sync than `acks=all` needs."""
        return len(self.image.isr) < self._isr_min

    # Writing

    def append(
        self, batch: memoryview, acks: int, now_ms: TimestampMs, *, has_keys: bool = False
    ) -> Receipt:
        """Append a producer's batch; the receipt says whether its acks hold already.

        `has_keys` is that of `Log.append_as_leader`.
        """
        log = self.log
        if acks == ACKS_ALL and len(self.image.isr) < self._isr_min:
            raise NotEnoughReplicas(self._too_few())
        if self.waiting is None:
            base_offset, last_offset, append_time_ms, _ = log.append_as_leader(
                batch, self.leader_epoch, now_ms, has_keys=has_keys
            )
        else:
            base_offset, last_offset, append_time_ms, _ = self.waiting.append(batch, now_ms)
        end_offset = Offset(last_offset + 1)
        if self._is_fsync:
            self._flusher.request(log)
        elif len(self.replicas) == 1:
            self._commit(log.end_offset)
        elif not self._counted:
            self.note_progress()
        for watcher in self.watchers.of_appends:
            watcher.note_appended()
        if acks == ACKS_ALL:  # without a call, for this is hot
            is_settled = self.high_watermark >= end_offset
        else:
            is_settled = self.is_settled(end_offset, acks)
        return tuple.__new__(
            Receipt, (base_offset, end_offset, append_time_ms, log.start_offset, is_settled)
        )

    def producer(self, producer_id: ProducerId) -> Producer | None:
        """The state of a producer that writes here."""
        return self.log.producers.get(producer_id)

    def append_marker(
        self,
        marker: Marker,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        now_ms: TimestampMs,
    ) -> Offset:
        """End a producer's transaction here; returns the log's end."""
        if len(self.image.isr) < self._isr_min:
            raise NotEnoughReplicas(self._too_few())
        self.log.append_marker(marker, producer_id, producer_epoch, self.leader_epoch, now_ms)
        if self.waiting is not None:
            self.waiting.note_marker(marker, producer_id, self.log.end_offset)
        self._note_written()
        return self.log.end_offset

    def append_built(self, batch: bytearray, now_ms: TimestampMs) -> Appended:
        """Append a batch that this leader built, as if with acks=all."""
        if self._is_given_up:
            raise NotLeader(f"{self.tp} is no longer led here")
        if len(self.image.isr) < self._isr_min:
            raise NotEnoughReplicas(self._too_few())
        appended = self.log.append_built(batch, self.leader_epoch, now_ms)
        self._note_written()
        return appended

    def _note_written(self) -> None:
        if self._is_fsync:
            self._flusher.request(self.log)
        else:
            self.note_progress()
        self.watchers.note_appended()

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
        if epoch != -1 and epoch != self.leader_epoch:
            check_reader_epoch(self.tp, self.leader_epoch, epoch)

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

    # Followers

    @property
    def is_waited_for(self) -> bool:
        """True until everything that earlier leaders may have committed is committed again."""
        return self.high_watermark < self.epoch_start

    def check_follower(self, broker: BrokerId) -> None:
        """Refuse a broker that has no replica of the partition, as far as this one knows."""
        if broker not in self.followers.by_id:
            raise NotLeader(f"broker {broker} has no replica of {self.tp}")

    def note_fetch(
        self,
        broker: BrokerId,
        epoch: int,
        offset: Offset,
        now_s: float,
        clock: FollowerClock | None = None,
    ) -> None:
        """A follower, registered in this epoch, has everything below `offset`.

        If that is all there is, later fetches count as well, by `clock` alone.
        """
        follower = self.followers.by_id[broker]
        is_new = follower.epoch != epoch or follower.end != offset
        follower.note_fetch(epoch, offset, self.log.end_offset, now_s, clock)
        if broker not in self.image.isr and offset >= max(self.high_watermark, self.epoch_start):
            self._want_isr_change()
        if is_new and broker in self._counted:
            self.note_progress()

    def must_note(self, broker: BrokerId) -> bool:
        """True while every fetch of a follower has to be noted, whether it brings news or not."""
        return self.contacts is not None or broker not in self.image.isr

    def watch_contacts(self, on_complete: Callable[[], None]) -> None:
        """Call `on_complete` when none of those that may lead next can have led before this call.

        `contacts` gets the fetches of followers until it is set to None.
        """
        eligible = {*self.image.isr, *self._adding, *self.image.elr} - {self._broker_id}
        self.contacts = FollowerContacts(sorted(eligible), on_complete)
        self.watchers.note_changed()

    def begin_isr_change(
        self, live: Mapping[BrokerId, BrokerImage], caught_up_s_min: float
    ) -> IsrChange | None:
        """The change of the ISR that is due, if any; it is under way until `end_isr_change`.

        Followers join that have all that is committed, and that earlier leaders may have
        committed; those leave that have not caught up since `caught_up_s_min`. One that joins
        counts for the high watermark from now on, and one that leaves until it has left.
        """
        image, followers = self.image, self.followers
        if self._is_changing or self._is_given_up or len(self.replicas) == 1:
            return None
        reached = Offset(max(self.high_watermark, self.epoch_start))
        joining = {
            broker: epoch
            for broker, epoch in followers.reaching(reached)
            if broker not in image.isr and broker in live and live[broker].epoch == epoch
        }
        leaving = set(followers.lagging(image.isr, caught_up_s_min))
        if not (joining or leaving or image.is_new):
            return None
        self._is_changing = True
        self._adding = tuple(joining)
        self._count()
        isr = {*image.isr, *joining} - leaving
        return IsrChange(
            self.tp,
            tuple(broker for broker in self.replicas if broker in isr),
            self._broker_id,
            self.leader_epoch,
            image.partition_epoch,
            joining,
        )

    def end_isr_change(self) -> None:
        """The change is committed, and in the image; or it was refused, and cannot be any more."""
        self._is_changing = False
        self._adding = ()
        self._count()
        self.note_progress()

    def forget_follower(self, broker: BrokerId) -> None:
        """A broker has started anew."""
        follower = self.followers.by_id.get(broker)
        if follower is not None:
            follower.forget()

    # Change

    def configure(self, config: TopicConfig) -> None:
        """Use these settings from now on; a weaker durability may settle waiting producers."""
        self.log.config = config
        if config.may_wait and self.waiting is None and self._make_waiting is not None:
            self.waiting = self._make_waiting(self)
        self._is_fsync = config.durability is _FSYNC
        self._isr_min = isr_min_of(config, self.image)
        self._count()
        self.note_progress()

    def note_progress(self) -> None:
        """More is in a replica, or durable there: what was promised may hold now."""
        if self._is_given_up:
            return
        log, current = self.log, self.high_watermark
        # The leader's end is durable if its topic promises that.
        end = log.durable_offset if self._is_fsync else log.end_offset
        reached = current
        if len(self.replicas) == 1:
            reached = max(current, end)
        elif self._can_commit:
            others = self.followers.lowest_end(self._counted)
            reached = max(current, end if others is None else min(end, others))
        assert current <= reached <= log.end_offset, (
            f"{self.tp}: high watermark {current} to {reached}, the log ends at {log.end_offset}"
        )
        if reached > current:
            self._commit(reached)
        if self._durable.queue:
            self._durable.advance(end)

    @property
    def _can_commit(self) -> bool:
        """False while the ISR is too small, or was, and replicas outside it may be elected.

        What then is in every replica of the ISR is not in all that may lead next (KIP-966).
        """
        image = self.image
        return len(image.isr) >= self._isr_min and not image.elr and not image.is_new

    def _count(self) -> None:
        """Note which followers a commit waits for: those in the ISR, or about to be."""
        members = dict.fromkeys((*self.image.isr, *self._adding))
        self._counted = tuple(broker for broker in members if broker != self._broker_id)

    def _too_few(self) -> str:
        return (
            f"{self.tp} has {len(self.image.isr)} in-sync replicas,"
            f" min.insync.replicas is {self.log.config.min_insync_replicas}"
        )

    def request_flush(self) -> None:
        """Have the log brought to disk soon."""
        if not self._is_given_up:
            self._flusher.request(self.log)

    def note_image(self, image: PartitionImage, now_s: float) -> None:
        """The partition has changed in the store: it has another ISR or other replicas."""
        assert image.leader == self._broker_id, f"{self.tp} is led by {image.leader}"
        assert image.leader_epoch - self.leader_epoch in {0, 1}, f"{self.tp}: another epoch"
        if image.leader_epoch != self.leader_epoch:
            self.leader_epoch = image.leader_epoch
            self.log.epochs.note(image.leader_epoch, self.log.end_offset)
            # Outside the ISR a follower may have lost its log, or been dropped and added again in
            # images that this broker has skipped: what it had in the last epoch may be gone.
            self.followers.forget_others(image.isr)
        if image.replicas != self.replicas:
            others = [broker for broker in image.replicas if broker != self._broker_id]
            self.followers.change(others, now_s)
        self.image = image
        self.replicas = image.replicas
        self._isr_min = isr_min_of(self.log.config, image)
        self._count()
        self.note_progress()
        if len(image.isr) < self._isr_min and self._committed.queue:
            self._committed.fail(NotEnoughReplicasAfterAppend(self._too_few()))
        self.watchers.note_changed()

    def give_up(self, error: ApiError) -> None:
        """The partition is no longer ours: fail all waiters and wake all readers."""
        self._is_given_up = True
        if self.waiting is not None:
            self.waiting.close()
        self.note_watermark()
        self._durable.fail(error)
        self._committed.fail(error)
        self._readers.wake()
        self.watchers.note_changed()

    def note_watermark(self) -> None:
        """Have the high watermark kept with the log, if it is not simply the log's end."""
        if len(self.replicas) > 1:
            self.log.noted_watermark = self.high_watermark

    def _commit(self, reached: Offset) -> None:
        self.high_watermark = reached
        if self._committed.queue:
            self._committed.advance(reached)
        if self._readers:
            self._readers.wake_soon()
        self.watchers.note_committed()
