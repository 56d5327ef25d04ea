"""Batches for sealed partitions: appended to active ones of the same topic.

A batch for a sealed partition is appended to its owner, the active partition at the end of its
route, with a producer id that tells it from batches that were sent there. Nothing is stored about
it: a batch is repeated if any log on its way has it, and it may be appended if it continues the
newest of their sequences. That also holds for a partition that is active again.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from hmac import compare_digest
from typing import TYPE_CHECKING, Final

from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.routes import holders_of, mapped_id, owner_of
from ottla.cluster.values import topic_key
from ottla.config import TimestampType
from ottla.config.topic import DELAY_ENABLE
from ottla.errors import (
    ApiError,
    ClusterAuthorizationFailed,
    InvalidRecord,
    NotLeader,
    RecordError,
    UnknownProducerId,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.model import (
    MAPPED_IDS_FROM,
    NO_TIMESTAMP,
    Offset,
    ProducerId,
    TimestampMs,
    TopicPartition,
    Uuid,
)
from ottla.protocol.hot_fields import TopicKey
from ottla.protocol.hot_produce import Forwarder
from ottla.records.batch import (
    NO_PRODUCER_EPOCH,
    BatchHeader,
    check_batch,
    decompressed_bytes_max,
    read_header,
    read_producer,
    stamp_producer_id,
)
from ottla.records.hidden_records import cancel_indexes
from ottla.replication.partition import LeaderPartition, Receipt
from ottla.replication.waiters import Settled
from ottla.storage.producers import ProducedBatch, Producer
from ottla.storage.sequences import find_repeated

if TYPE_CHECKING:  # a broker without peers does not need what a client needs
    from ottla.replication.peer_forwarding import PeerForwarding

_TIMEOUT_MS: Final = 30_000  # of clients' requests, where they set none
_ENDED_MAX: Final = 10_000  # producers with a marker that other brokers have written

Leaders = dict[tuple[str, int], LeaderPartition]


class Forwarding:
    """Routes of partitions led here whose batches go, or went, to others."""

    def __init__(
        self,
        leaders: Leaders,
        image: Callable[[], ClusterImage],
        make_peers: "Callable[[], PeerForwarding]",
    ) -> None:
        self._leaders = leaders
        self._image = image
        self._make_peers = make_peers
        self._peers: PeerForwarding | None = None
        self._ended: dict[tuple[TopicPartition, ProducerId], Producer] = {}
        self._sequences: dict[bytes, int] = {}  # of the newest request of each broker, by token

    @property
    def peers(self) -> "PeerForwarding":
        """The routes over other brokers, made on first use."""
        if self._peers is None:
            self._peers = self._make_peers()
        return self._peers

    def is_busy(self, tp: TopicPartition, producer_id: ProducerId) -> bool:
        """True while batches of a producer for a partition wait for other brokers."""
        return self._peers is not None and self._peers.is_busy(tp, producer_id)

    def check_forwarder(self, forwarder: Forwarder, topic: str) -> None:
        """Refuse a request that is not of a broker, is outdated, or knows other routes."""
        image = self._image()
        token = forwarder.token
        tokens = {one.token for one in image.registered.values() if one.token}
        if not any(compare_digest(one, token) for one in tokens):
            raise ClusterAuthorizationFailed("only brokers of this cluster forward batches")
        if forwarder.sequence < self._sequences.get(token, 0):
            raise NotLeader("the broker has sent a later request: this one is outdated")
        if token not in self._sequences:
            self._sequences = {one: last for one, last in self._sequences.items() if one in tokens}
        self._sequences[token] = forwarder.sequence
        if forwarder.topic_revision != image.mod_revision(topic_key(topic)):
            raise NotLeader(f"the routes of {topic!r} have changed: retry")

    def receive(self, forwarder: Forwarder, key: TopicKey, index: int) -> "ReceivedPartition":
        """The partition that another broker forwards a batch to."""
        topic = None if isinstance(key, str) else self._image().topic_by_id(Uuid(key))
        if topic is None:
            raise UnknownTopicId("no topic has this id")
        self.check_forwarder(forwarder, topic.name)
        leader = self._leaders.get((topic.name, index))
        if leader is None or index >= topic.active_count:
            raise NotLeader(f"this broker does not lead {topic.name}-{index}, or it is sealed")
        return ReceivedPartition(leader, is_continued=forwarder.is_continued)

    def route(self, tp: TopicPartition, timeout_ms: int = _TIMEOUT_MS) -> "ForwardedPartition":
        """The way of a batch for this partition, of a request with this timeout."""
        return ForwardedPartition(tp, self._topic(tp), self._leaders, self, timeout_ms)

    async def marker_targets(
        self, tp: TopicPartition, producer_id: ProducerId
    ) -> list[tuple[TopicPartition, ProducerId]]:
        """The partitions to write a producer's marker for this one to, each with its id there.

        Those are where its batches go now, so that a batch which comes later is recognised,
        and all others that may have batches of an open transaction. Brokers that get a marker for
        a mapped id pass it on to none: two that waited for each other would wait for ever.
        """
        topic = self._topic(tp)
        if producer_id >= MAPPED_IDS_FROM:
            is_active = tp.partition < topic.active_count
            return [(tp, producer_id)] if is_active or self._may_be_open(tp, producer_id) else []
        if any((tp.topic, one) not in self._leaders for one in holders_of(topic, tp.partition)):
            self._note_marker(tp, producer_id)
            await self.peers.settle(tp, producer_id)
            topic = self._topic(tp)
        owner = owner_of(topic, tp.partition)
        targets: list[tuple[TopicPartition, ProducerId]] = []
        for index in holders_of(topic, tp.partition):
            mapped = producer_id if index == tp.partition else mapped_id(producer_id, tp.partition)
            holder = TopicPartition(tp.topic, index)
            if index == owner or self._may_be_open(holder, mapped):
                targets.append((holder, mapped))
        return targets

    def _may_be_open(self, tp: TopicPartition, producer_id: ProducerId) -> bool:
        """False if the producer surely has no open transaction in this partition."""
        leader = self._leaders.get(tp)
        if leader is None:
            return True
        known = leader.producer(producer_id)
        return known is not None and known.transaction_start >= 0

    def _note_marker(self, tp: TopicPartition, producer_id: ProducerId) -> None:
        """Count a marker that other brokers write: it makes verifications under way void."""
        ended = self._ended.pop((tp, producer_id), None) or Producer(NO_PRODUCER_EPOCH)
        ended.marker_count += 1
        while len(self._ended) >= _ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        self._ended[tp, producer_id] = ended

    def ended(self, tp: TopicPartition, producer_id: ProducerId) -> Producer | None:
        """The markers of a producer whose batches other brokers have."""
        return self._ended.get((tp, producer_id))

    def _topic(self, tp: TopicPartition) -> TopicImage:
        topic = self._image().topics.get(tp.topic)
        if topic is None or tp.partition >= len(topic.partitions):
            raise UnknownTopicOrPartition(f"there is no partition {tp}")
        return topic


class ReceivedPartition:
    """A partition led here that another broker forwards a batch to."""

    __slots__ = ("_is_continued", "_leader")
    receipt: Final = None  # of a batch that another broker has appended

    def __init__(self, leader: LeaderPartition, *, is_continued: bool) -> None:
        self._leader = leader
        self._is_continued = is_continued

    @property
    def tp(self) -> TopicPartition:
        return self._leader.tp

    def producer(self, producer_id: ProducerId) -> Producer | None:
        """The state of a producer in this partition's log."""
        return self._leader.producer(producer_id)

    def append(self, batch: memoryview, acks: int, now_ms: TimestampMs) -> Receipt:
        """Append a batch that its producer sent to another partition."""
        if self._is_continued:
            return append_next(self._leader, batch, acks, now_ms)
        producer_id, _ = read_producer(batch)
        if producer_id >= 0 and self._leader.producer(producer_id) is None:
            raise UnknownProducerId(f"{self.tp} has no batch of producer {producer_id}: look it up")
        return self._leader.append(batch, acks, now_ms)

    def wait_settled(self, end: Offset, acks: int, settled: Settled) -> None:
        """`LeaderPartition.wait_settled`."""
        self._leader.wait_settled(end, acks, settled)


class ForwardedPartition:
    """A partition led here, as the way of one batch to where it is appended."""

    __slots__ = (
        "_forwarding",
        "_landed",
        "_leaders",
        "_pending",
        "_timeout_ms",
        "_topic",
        "receipt",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        topic: TopicImage,
        leaders: Leaders,
        forwarding: Forwarding,
        timeout_ms: int,
    ) -> None:
        self.tp = tp
        self.receipt: Receipt | None = None  # of a batch that another broker has appended
        self._forwarding = forwarding
        self._pending: asyncio.Future[Receipt] | None = None
        self._topic = topic
        self._leaders = leaders
        self._landed: LeaderPartition | None = None
        self._timeout_ms = timeout_ms

    def __eq__(self, other: object) -> bool:
        """Equal if a batch ends up in the same holder."""
        if not isinstance(other, ForwardedPartition):
            return NotImplemented
        return self.tp == other.tp and self._owner_or_none() is other._owner_or_none()

    def __hash__(self) -> int:
        return hash(self.tp)

    def producer(self, producer_id: ProducerId) -> Producer | None:
        """The state that a client's producer has where its batches are appended now."""
        owner = self._owner_or_none()
        if owner is None:
            return self._forwarding.ended(self.tp, producer_id)
        return owner.producer(self._id_at(owner, producer_id))

    def append(self, batch: memoryview, acks: int, now_ms: TimestampMs) -> Receipt:
        """Append a producer's batch where it belongs, unless a log on the way has it."""
        header = check_batch(batch)
        if header.producer_id >= MAPPED_IDS_FROM:
            raise InvalidRecord(
                f"producer id {header.producer_id} is none that a broker gives to clients: ask"
                " for one with InitProducerId"
            )
        owner = self._owner_or_none()
        if DELAY_ENABLE in self._topic.config and (owner is None or owner.tp != self.tp):
            self._refuse_cancels(batch, header)
        holders = self._holders()
        is_busy = self._forwarding.is_busy(self.tp, ProducerId(header.producer_id))
        if is_busy or owner is None:
            return self._forward(batch, header, acks, now_ms)
        if header.producer_id < 0 or self._continues(owner, header):
            self._landed = owner
            return owner.append(batch, acks, now_ms)
        if None in holders:
            return self._forward(batch, header, acks, now_ms)
        here = [one for one in holders if one is not None]
        repeated = find_repeated(header, self._states(here, header))
        if repeated is not None:
            return self._repeat(here[repeated.at], repeated.batch, acks)
        producer_id = self._id_at(owner, ProducerId(header.producer_id))
        if producer_id != header.producer_id:
            stamp_producer_id(batch, producer_id)
        self._landed = owner
        return append_next(owner, batch, acks, now_ms)

    def _refuse_cancels(self, batch: memoryview, header: BatchHeader) -> None:
        """Refuse cancels: in another log their tickets are those of other records."""
        bytes_max = decompressed_bytes_max(self._leaders[self.tp].log.config.max_message_bytes)
        if found := cancel_indexes(batch, header, bytes_max):
            text = f"{self.tp} is sealed: what waits there can be cancelled once it is active again"
            raise InvalidRecord(text, [RecordError(index, text) for index in found])

    def _continues(self, owner: LeaderPartition, header: BatchHeader) -> bool:
        """True if the partition is active again, and has the producer's newest batch since then."""
        known = owner.producer(ProducerId(header.producer_id)) if owner.tp == self.tp else None
        if known is None or not known.batches or known.epoch != header.producer_epoch:
            return False
        written = owner.log.epochs.at(known.batches[-1].last_offset)
        reopened = self._topic.partitions[self.tp.partition].reopened_epoch
        return known.next_sequence == header.base_sequence and written >= reopened

    def _forward(
        self, batch: memoryview, header: BatchHeader, acks: int, now_ms: TimestampMs
    ) -> Receipt:
        """Have the batch go over other brokers; its offsets are known when it is settled."""
        self._pending = self._forwarding.peers.forward(
            self.tp, batch, acks, now_ms, timeout_ms=self._timeout_ms
        )
        count = Offset(header.last_offset_delta + 1)
        return Receipt(Offset(0), count, NO_TIMESTAMP, Offset(0), is_settled=False)

    def wait_settled(self, end: Offset, acks: int, settled: Settled) -> None:
        """`LeaderPartition.wait_settled` of the partition that has the batch."""
        if self._pending is not None:
            self._pending.add_done_callback(partial(self._note_forwarded, settled))
            return
        assert self._landed is not None, "an append comes first"
        self._landed.wait_settled(end, acks, settled)

    def _note_forwarded(self, settled: Settled, done: "asyncio.Future[Receipt]") -> None:
        problem = done.exception()
        if problem is None:
            self.receipt = done.result()
        assert problem is None or isinstance(problem, ApiError), problem
        settled(problem)

    def _states(
        self, holders: Sequence[LeaderPartition], header: BatchHeader
    ) -> list[Producer | None]:
        producer_id = ProducerId(header.producer_id)
        return [holder.producer(self._id_at(holder, producer_id)) for holder in holders]

    def _repeat(self, holder: LeaderPartition, batch: ProducedBatch, acks: int) -> Receipt:
        self._landed = holder
        end = Offset(batch.last_offset + 1)
        log = holder.log
        is_stamped = log.config.timestamp_type is TimestampType.LOG_APPEND_TIME
        time_ms = batch.appended_ms if is_stamped else NO_TIMESTAMP
        is_settled = holder.is_settled(end, acks)
        return Receipt(batch.base_offset, end, time_ms, log.start_offset, is_settled)

    def _id_at(self, holder: LeaderPartition, producer_id: ProducerId) -> ProducerId:
        if holder.tp == self.tp:
            return producer_id
        return mapped_id(producer_id, self.tp.partition)

    def _owner_or_none(self) -> LeaderPartition | None:
        return self._leaders.get((self.tp.topic, owner_of(self._topic, self.tp.partition)))

    def _holders(self) -> list[LeaderPartition | None]:
        """The partitions that may have the producer's batches; None for those led elsewhere."""
        indexes = holders_of(self._topic, self.tp.partition)
        return [self._leaders.get((self.tp.topic, index)) for index in indexes]


def append_next(
    owner: LeaderPartition, batch: memoryview, acks: int, now_ms: TimestampMs
) -> Receipt:
    """Append a batch that is its producer's next one, whatever the log says."""
    header = read_header(batch)
    if header.producer_id >= 0:
        known = owner.producer(ProducerId(header.producer_id))
        is_next = known is not None and known.epoch == header.producer_epoch
        if known is None or not is_next or known.next_sequence != header.base_sequence:
            owner.log.producers.introduce(header, owner.log.config, now_ms)
    return owner.append(batch, acks, now_ms)
