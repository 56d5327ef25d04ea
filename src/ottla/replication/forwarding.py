"""Batches for sealed partitions: appended to active ones of the same topic.

A batch for a sealed partition is appended to its owner, the active partition at the end of its
route, with a producer id that tells it from batches that were sent there. Nothing is stored about
it: a batch is repeated if any log on its way has it, and it may be appended if it continues the
newest of their sequences. That also holds for a partition that is active again.
"""

from collections.abc import Callable, Sequence

from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.routes import holders_of, is_direct, mapped_id, owner_of, target_of
from ottla.config import TimestampType
from ottla.errors import InvalidRecord, NotLeader, UnknownTopicOrPartition
from ottla.model import (
    MAPPED_IDS_FROM,
    NO_TIMESTAMP,
    Offset,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from ottla.records.batch import BatchHeader, check_batch, stamp_producer_id
from ottla.replication.partition import LeaderPartition, Receipt
from ottla.replication.replicas import Replicas
from ottla.replication.waiters import Settled
from ottla.storage.producers import ProducedBatch, Producer
from ottla.storage.sequences import find_repeated

Leaders = dict[tuple[str, int], LeaderPartition]


class Forwarding:
    """Routes of partitions led here whose batches go, or went, to others."""

    def __init__(self, replicas: Replicas, image: Callable[[], ClusterImage]) -> None:
        self._leaders = replicas.leaders
        self._image = image

    def route(self, tp: TopicPartition) -> "ForwardedPartition":
        """The way of a batch for this partition."""
        return ForwardedPartition(tp, self._topic(tp), self._leaders)

    def marker_targets(
        self, tp: TopicPartition, producer_id: ProducerId
    ) -> list[tuple[TopicPartition, ProducerId]]:
        """The partitions to write a producer's marker for this one to, each with its id there.

        Those are where its batches go now, so that a batch which comes later is recognised,
        and all others that may have batches of an open transaction.
        """
        topic = self._topic(tp)
        is_sealed = tp.partition >= topic.active_count
        holders: list[tuple[TopicPartition, ProducerId]] = []
        if not is_sealed or self._has_open(tp, producer_id):
            holders.append((tp, producer_id))
        target = target_of(topic, tp.partition) if is_sealed else None
        mapped = mapped_id(producer_id, tp.partition)
        for index in dict.fromkeys((*topic.partitions[tp.partition].forwarded_to, target)):
            if index is None:
                continue
            other = TopicPartition(tp.topic, index)
            if index == target or self._may_be_open(other, mapped):
                holders.append((other, mapped))
        return holders

    def _may_be_open(self, tp: TopicPartition, producer_id: ProducerId) -> bool:
        """False if the producer surely has no open transaction in this partition."""
        if tp not in self._leaders or not is_direct(self._topic(tp), tp.partition):
            return True
        return self._has_open(tp, producer_id)

    def _has_open(self, tp: TopicPartition, producer_id: ProducerId) -> bool:
        """True if the log of a partition that is led here has an open transaction of it."""
        leader = self._leaders.get(tp)
        known = None if leader is None else leader.producer(producer_id)
        return known is not None and known.transaction_start >= 0

    def _topic(self, tp: TopicPartition) -> TopicImage:
        topic = self._image().topics.get(tp.topic)
        if topic is None or tp.partition >= len(topic.partitions):
            raise UnknownTopicOrPartition(f"there is no partition {tp}")
        return topic


class ForwardedPartition:
    """A partition led here, as the way of one batch to where it is appended."""

    __slots__ = ("_landed", "_leaders", "_topic", "tp")

    def __init__(self, tp: TopicPartition, topic: TopicImage, leaders: Leaders) -> None:
        self.tp = tp
        self._topic = topic
        self._leaders = leaders
        self._landed: LeaderPartition | None = None

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
        return None if owner is None else owner.producer(self._id_at(owner, producer_id))

    def append(self, batch: memoryview, acks: int, now_ms: TimestampMs) -> Receipt:
        """Append a producer's batch where it belongs, unless a log on the way has it."""
        header = check_batch(batch)
        owner = self._leader(owner_of(self._topic, self.tp.partition))
        if header.producer_id >= 0:
            if header.producer_id >= MAPPED_IDS_FROM:
                raise InvalidRecord(
                    f"producer id {header.producer_id} is none that a broker gives to clients: ask"
                    " for one with InitProducerId"
                )
            holders = [self._leader(index) for index in holders_of(self._topic, self.tp.partition)]
            repeated = find_repeated(header, self._states(holders, header))
            if repeated is not None:
                return self._repeat(holders[repeated.at], repeated.batch, acks)
            header = self._introduce(owner, header, batch, now_ms)
        self._landed = owner
        return owner.append(batch, acks, now_ms)

    def wait_settled(self, end: Offset, acks: int, settled: Settled) -> None:
        """`LeaderPartition.wait_settled` of the partition that has the batch."""
        assert self._landed is not None, "an append comes first"
        self._landed.wait_settled(end, acks, settled)

    def _states(
        self, holders: Sequence[LeaderPartition], header: BatchHeader
    ) -> list[Producer | None]:
        producer_id = ProducerId(header.producer_id)
        return [holder.producer(self._id_at(holder, producer_id)) for holder in holders]

    def _introduce(
        self, owner: LeaderPartition, header: BatchHeader, batch: memoryview, now_ms: TimestampMs
    ) -> BatchHeader:
        """Have the owner take the batch as the next of its producer."""
        producer_id = self._id_at(owner, ProducerId(header.producer_id))
        if producer_id != header.producer_id:
            stamp_producer_id(batch, producer_id)
            header = header._replace(producer_id=producer_id)
        known = owner.producer(producer_id)
        is_next = known is not None and known.epoch == header.producer_epoch
        if known is None or not is_next or known.next_sequence != header.base_sequence:
            owner.log.producers.introduce(header, owner.log.config, now_ms)
        return header

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

    def _leader(self, index: int) -> LeaderPartition:
        leader = self._leaders.get((self.tp.topic, index))
        if leader is None:
            raise NotLeader(f"batches for {self.tp} go to a partition that is not led here")
        return leader
