"""Batches for sealed partitions whose route leads over other brokers.

The batches of a producer for one partition wait in a queue and go one by one, so that they are
appended in their order, and one that fails is not overtaken: those behind it do not continue the
sequence. Batches without a producer id share a queue. Where another broker leads the owner, a batch
is sent to it with an ordinary Produce.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from ottla.client.errors import ClientError
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.routes import holders_of, mapped_id, owner_of
from ottla.cluster.values import topic_key
from ottla.errors import (
    ApiError,
    ErrorCode,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    PeerError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from ottla.model import (
    NO_TIMESTAMP,
    BrokerId,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
    Uuid,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersRequestTopic,
    DescribeProducersResponse,
    ProducerState,
)
from ottla.records.batch import SEQUENCE_MASK, BatchHeader, check_batch, stamp_producer_id
from ottla.replication.forwarding import append_next
from ottla.replication.partition import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    LeaderPartition,
    Receipt,
)
from ottla.replication.peers import Peers
from ottla.replication.waiting import wait_called
from ottla.storage.producers import ProducedBatch
from ottla.storage.sequences import SequenceState, find_repeated

_QUEUE_MAX: Final = 500  # batches of a queue that wait
_RESPONSE_S: Final = 10.0
_LANE: Final = "forward"
_LOOKED_UP_AGAIN: Final = frozenset(
    {ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
)
_PRODUCERS_MAX: Final = 10_000
_NUMBERS: Final = 5  # of each batch in a description

Leaders = dict[tuple[str, int], LeaderPartition]
Response = TypeVar("Response")


class RemoteState(NamedTuple):
    """The state of a producer in a log of another broker."""

    epoch: ProducerEpoch
    next_sequence: int
    batches: tuple[ProducedBatch, ...]
    high_watermark: Offset


@dataclass(slots=True)
class _Item:
    batch: bytearray
    header: BatchHeader
    acks: int
    now_ms: TimestampMs
    receipt: "asyncio.Future[Receipt]"


class PeerForwarding:
    """Queues of batches, and the requests to other brokers that they need."""

    def __init__(
        self,
        peers: Peers,
        image: Callable[[], ClusterImage],
        leaders: Leaders,
    ) -> None:
        self._peers = peers
        self._image = image
        self._leaders = leaders
        self._queues: dict[tuple[TopicPartition, ProducerId], list[_Item]] = {}
        self._sequence = itertools.count(1)
        # Producers whose newest state is that of the owner, with its index and the
        # revision of their topic.
        self._continued: dict[tuple[TopicPartition, int, int], tuple[int, int]] = {}
        self._uncertain: set[BrokerId] = set()  # a request to them may still arrive

    def forward(
        self, tp: TopicPartition, batch: memoryview, acks: int, now_ms: TimestampMs
    ) -> "asyncio.Future[Receipt]":
        """Queue a batch; the receipt comes once its acks hold where it was appended."""
        header = check_batch(batch)
        key = tp, ProducerId(header.producer_id)
        queue = self._queues.get(key)
        if queue is not None and len(queue) >= _QUEUE_MAX:
            raise RequestTimedOut(f"{len(queue)} batches for {tp} wait to be forwarded: retry")
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        receipt.add_done_callback(_retrieve)  # a producer with acks=0 does not wait for it
        item = _Item(bytearray(batch), header, acks, now_ms, receipt)
        if queue is None:
            queue = self._queues[key] = [item]
            self._peers.spawn(self._run(key, queue))
        else:
            queue.append(item)
        return receipt

    def is_busy(self, tp: TopicPartition, producer_id: ProducerId) -> bool:
        """True while batches of a producer for this partition wait."""
        return (tp, producer_id) in self._queues

    async def settle(self, tp: TopicPartition, producer_id: ProducerId) -> None:
        """Return when no batch of a producer that came until now can arrive later."""
        waiting = [item.receipt for item in self._queues.get((tp, producer_id), ())]
        if waiting:
            await asyncio.wait(waiting)
        topic = self._topic(tp)
        for index in holders_of(topic, tp.partition):
            peer = topic.partitions[index].leader
            if peer in self._uncertain:
                # A newer request than those that may still be on their way: they are refused.
                await self._look_up(topic, index, ProducerId(0))

    async def _run(self, key: tuple[TopicPartition, ProducerId], queue: list[_Item]) -> None:
        tp, _ = key
        try:
            while queue:
                item = queue[0]
                try:
                    receipt = await self._forward_again(tp, item)
                except ApiError as refused:
                    self._forget(tp, item.header)
                    _fail(item, refused)
                else:
                    if not item.receipt.done():
                        item.receipt.set_result(receipt)
                queue.pop(0)
        finally:
            del self._queues[key]
            for item in queue:
                _fail(item, RequestTimedOut("this broker is stopping"))

    async def _forward_again(self, tp: TopicPartition, item: _Item) -> Receipt:
        """Forward a batch, once more if its producer has to be looked up again."""
        try:
            return await self._forward(tp, item)
        except PeerError as refused:
            if refused.code not in _LOOKED_UP_AGAIN:
                raise
        self._forget(tp, item.header)
        return await self._forward(tp, item)

    async def _forward(self, tp: TopicPartition, item: _Item) -> Receipt:
        header, is_continued = item.header, False
        if header.producer_id >= 0 and not self._is_known(tp, header):
            route = self._route(tp)
            repeated = await self._find_repeated(tp, header)
            if repeated is not None:
                return repeated
            if self._route(tp) != route:
                raise NotLeader(f"the route of {tp} has changed: retry")
            is_continued = True
        topic = self._topic(tp)
        owner = owner_of(topic, tp.partition)
        leader = self._leaders.get((tp.topic, owner))
        if leader is None:
            receipt = await self._produce(tp, topic, owner, item, is_continued=is_continued)
            self._note(tp, header)
            return receipt
        assert is_continued or header.producer_id < 0, "only owners elsewhere are known"
        if owner != tp.partition:
            stamp_producer_id(item.batch, mapped_id(ProducerId(header.producer_id), tp.partition))
        receipt = append_next(leader, memoryview(item.batch), item.acks, item.now_ms)
        if not receipt.is_settled and item.acks != ACKS_NONE:
            await wait_settled(leader, receipt.end_offset, item.acks)
        return receipt

    def _route(self, tp: TopicPartition) -> tuple[int, int]:
        """Where batches are appended, and the revision of the topic that says so."""
        topic = self._topic(tp)
        return owner_of(topic, tp.partition), self._revision(topic)

    def _is_known(self, tp: TopicPartition, header: BatchHeader) -> bool:
        """True if the owner has the newest batch of the producer, as far as this broker knows."""
        key, route = (tp, header.producer_id, header.producer_epoch), self._route(tp)
        return (tp.topic, route[0]) not in self._leaders and self._continued.get(key) == route

    def _note(self, tp: TopicPartition, header: BatchHeader) -> None:
        if header.producer_id < 0:
            return
        while len(self._continued) >= _PRODUCERS_MAX:
            del self._continued[next(iter(self._continued))]
        key = tp, header.producer_id, header.producer_epoch
        self._continued[key] = self._route(tp)

    def _forget(self, tp: TopicPartition, header: BatchHeader) -> None:
        self._continued.pop((tp, header.producer_id, header.producer_epoch), None)

    async def _find_repeated(self, tp: TopicPartition, header: BatchHeader) -> Receipt | None:
        """The first copy of a batch in any log on its way; raises if it is not the next one."""
        topic = self._topic(tp)
        holders = holders_of(topic, tp.partition)
        states: list[SequenceState | None] = []
        for index in holders:
            producer_id = ProducerId(header.producer_id)
            if index != tp.partition:
                producer_id = mapped_id(producer_id, tp.partition)
            leader = self._leaders.get((tp.topic, index))
            if leader is not None:
                states.append(leader.producer(producer_id))
            else:
                states.append(await self._look_up(topic, index, producer_id))
        repeated = find_repeated(header, states)
        if repeated is None:
            return None
        batch, state = repeated.batch, states[repeated.at]
        end = Offset(batch.last_offset + 1)
        leader = self._leaders.get((tp.topic, holders[repeated.at]))
        if leader is not None:
            await wait_settled(leader, end, ACKS_ALL)
        elif isinstance(state, RemoteState) and state.high_watermark < end:
            raise NotEnoughReplicasAfterAppend("the first copy is not committed yet: retry")
        return Receipt(batch.base_offset, end, NO_TIMESTAMP, Offset(-1), is_settled=True)

    # Requests

    async def _produce(
        self, tp: TopicPartition, topic: TopicImage, owner: int, item: _Item, *, is_continued: bool
    ) -> Receipt:
        batch = item.batch
        mapped = mapped_id(ProducerId(item.header.producer_id), tp.partition)
        if mapped != item.header.producer_id:
            stamp_producer_id(batch, mapped)
        data = PartitionProduceData(index=owner, records=batch)
        request = ProduceRequest(
            acks=ACKS_LEADER if item.acks == ACKS_NONE else item.acks,
            timeout_ms=int(_RESPONSE_S * 1000),
            topic_data=[TopicProduceData(topic_id=topic.id, partition_data=[data])],
            broker_token=self._token(),
            topic_revision=self._revision(topic),
            sequence=next(self._sequence),
            is_continued=is_continued,
        )
        response = await self._send(topic, owner, request, ProduceResponse)
        for result in (one for done in response.responses for one in done.partition_responses):
            if result.error_code:
                raise PeerError(result.error_code, f"{topic.name}-{owner}: {result.error_message}")
            count = item.header.last_offset_delta + 1
            return Receipt(
                Offset(result.base_offset),
                Offset(result.base_offset + count),
                TimestampMs(result.log_append_time_ms),
                Offset(result.log_start_offset),
                is_settled=True,
            )
        raise NotLeader(f"the leader of {topic.name}-{owner} did not respond about the batch")

    async def _look_up(
        self, topic: TopicImage, index: int, producer_id: ProducerId
    ) -> RemoteState | None:
        request = DescribeProducersRequest(
            topics=[DescribeProducersRequestTopic(name=topic.name, partition_indexes=[index])],
            broker_token=self._token(),
            topic_revision=self._revision(topic),
            sequence=next(self._sequence),
            producer_id=producer_id,
        )
        response = await self._send(topic, index, request, DescribeProducersResponse)
        for one in (one for found in response.topics for one in found.partitions):
            if one.error_code:
                raise PeerError(one.error_code, f"{topic.name}-{index}: {one.error_message}")
            for state in one.active_producers:
                return _state(state)
            return None
        raise NotLeader(f"the leader of {topic.name}-{index} did not describe the producer")

    async def _send(
        self, topic: TopicImage, index: int, request: object, response_class: type[Response]
    ) -> Response:
        peer = topic.partitions[index].leader
        if peer is None:
            raise NotLeader(f"{topic.name}-{index} has no leader")
        try:
            response = await self._peers.send(
                peer, request, response_class, timeout_s=_RESPONSE_S, lane=_LANE
            )
        except ClientError as problem:
            self._uncertain.add(peer)
            raise RequestTimedOut(f"broker {peer} did not respond: {problem}") from problem
        self._uncertain.discard(peer)
        return response

    def _token(self) -> Uuid:
        registration = self._peers.registration
        if registration is None:
            raise NotLeader("this broker is not registered")
        return Uuid(registration.token)

    def _revision(self, topic: TopicImage) -> int:
        return self._image().mod_revision(topic_key(topic.name))

    def _topic(self, tp: TopicPartition) -> TopicImage:
        topic = self._image().topics.get(tp.topic)
        if topic is None or tp.partition >= len(topic.partitions):
            raise UnknownTopicOrPartition(f"there is no partition {tp}")
        if tp not in self._leaders:
            raise NotLeader(f"this broker no longer leads {tp}")
        return topic


async def wait_settled(leader: LeaderPartition, end: Offset, acks: int) -> None:
    """Return when what acks promise holds up to `end`."""
    if not leader.is_settled(end, acks):
        await wait_called(lambda settled: leader.wait_settled(end, acks, settled))


def describe_batches(leader: LeaderPartition, batches: Sequence[ProducedBatch]) -> list[int]:
    """Batches as `ProducerState.batches` has them."""
    numbers = [int(number) for batch in batches for number in batch]
    return [*numbers, leader.high_watermark]


def _state(described: ProducerState) -> RemoteState:
    *numbers, high_watermark = described.batches or [0]
    batches = tuple(
        ProducedBatch(
            numbers[at],
            numbers[at + 1],
            Offset(numbers[at + 2]),
            Offset(numbers[at + 3]),
            TimestampMs(numbers[at + 4]),
        )
        for at in range(0, len(numbers), _NUMBERS)
    )
    next_sequence = (batches[-1].last_sequence + 1) & SEQUENCE_MASK if batches else 0
    epoch = ProducerEpoch(described.producer_epoch)
    return RemoteState(epoch, next_sequence, batches, Offset(high_watermark))


def _fail(item: _Item, error: ApiError) -> None:
    if not item.receipt.done():
        item.receipt.set_exception(error)


def _retrieve(receipt: "asyncio.Future[Receipt]") -> None:
    if not receipt.cancelled():
        receipt.exception()
