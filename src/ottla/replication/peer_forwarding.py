"""Batches for sealed partitions whose route leads over other brokers.

The batches of a producer for one partition wait in a queue, those without a producer id in another.
A queue has one request under way, and those that come meanwhile share the next: they are appended
in their order, and one that fails is not overtaken, since those behind it do not continue the
sequence. Where another broker leads the owner, they are sent to it with an ordinary Produce.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
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
    PartitionProduceResponse,
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
from ottla.records.batch import (
    SEQUENCE_MASK,
    BatchHeader,
    read_header,
    read_producer,
    stamp_producer_id,
)
from ottla.replication.forward_queue import QueuedBatch, join
from ottla.replication.forwarding import ReceivedPartition
from ottla.replication.partition import (
    ACKS_ALL,
    ACKS_NONE,
    LeaderPartition,
    Receipt,
)
from ottla.replication.peers import Peers
from ottla.replication.waiting import wait_called
from ottla.storage.producers import ProducedBatch
from ottla.storage.sequences import SequenceState, find_repeated

_QUEUE_MAX: Final = 500  # batches of a queue that wait
_WAITING_BYTES_MAX: Final = 64 << 20  # of all queues
_WAIT_MIN_S: Final = 1.0  # for batches of requests that allow less time
_APPEND_S: Final = 8.0
_RESPONSE_S: Final = 10.0  # later than the peer's own timeout: what it says is known by then
_LANE: Final = "forward"
_LOOKED_UP_AGAIN: Final = frozenset(
    {ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
)
_BETWEEN_BROKERS: Final = frozenset(
    {ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_ID}
)
_PRODUCERS_MAX: Final = 10_000
_NUMBERS: Final = 5  # of each batch in a description

Leaders = dict[tuple[str, int], LeaderPartition]
Request = TypeVar("Request")
Response = TypeVar("Response")


class RemoteState(NamedTuple):
    """The state of a producer in a log of another broker."""

    epoch: ProducerEpoch
    next_sequence: int
    batches: tuple[ProducedBatch, ...]
    high_watermark: Offset


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
        self._queues: dict[tuple[TopicPartition, ProducerId], list[QueuedBatch]] = {}
        self.waiting_bytes = 0  # of the batches in all queues
        self._numbers = itertools.count(1)  # of requests, in the order in which they leave
        # Producers whose newest state is that of the owner, with its index and the
        # revision of their topic.
        self._continued: dict[tuple[TopicPartition, int, int], tuple[int, int]] = {}
        # The newest request to a broker that had no response: it may still arrive.
        self._uncertain: dict[BrokerId, int] = {}

    def forward(
        self,
        tp: TopicPartition,
        batch: memoryview,
        acks: int,
        now_ms: TimestampMs,
        *,
        timeout_ms: int,
    ) -> "asyncio.Future[Receipt]":
        """Queue an intact batch; the receipt comes once its acks hold where it was appended.

        A batch that still waits when its request has timed out is not sent any more.
        """
        key = tp, read_producer(batch)[0]
        queue = self._queues.get(key, [])
        is_full = self.waiting_bytes and self.waiting_bytes + len(batch) > _WAITING_BYTES_MAX
        if is_full or len(queue) >= _QUEUE_MAX:
            raise RequestTimedOut(
                f"{len(queue)} batches for {tp} wait to be forwarded, {self.waiting_bytes} bytes"
                " in all: retry"
            )
        loop = asyncio.get_running_loop()
        receipt: asyncio.Future[Receipt] = loop.create_future()
        receipt.add_done_callback(_retrieve)  # a producer with acks=0 does not wait for it
        deadline_s = loop.time() + max(timeout_ms / 1000, _WAIT_MIN_S)
        queued = QueuedBatch(
            bytearray(batch), read_header(batch), acks, now_ms, deadline_s, receipt
        )
        self.waiting_bytes += len(batch)
        queue.append(queued)
        if key not in self._queues:
            self._queues[key] = queue
            self._peers.spawn(self._run(key, queue))
        return receipt

    def is_busy(self, tp: TopicPartition, producer_id: ProducerId) -> bool:
        """True while batches of a producer for this partition wait."""
        return (tp, producer_id) in self._queues

    async def settle(self, tp: TopicPartition, producer_id: ProducerId) -> None:
        """Return when no batch of a producer that came until now can arrive later."""
        waiting = [queued.receipt for queued in self._queues.get((tp, producer_id), ())]
        if waiting:
            await asyncio.wait(waiting)
        topic = self._topic(tp)
        for index in holders_of(topic, tp.partition):
            peer = topic.partitions[index].leader
            if peer in self._uncertain:
                # A newer request than those that may still be on their way: they are refused.
                await self._look_up(topic, index, ProducerId(0))

    async def _run(self, key: tuple[TopicPartition, ProducerId], queue: list[QueuedBatch]) -> None:
        tp, _ = key
        try:
            while queue:
                if queue[0].deadline_s <= asyncio.get_running_loop().time():
                    self._finish(queue, [RequestTimedOut(f"{tp}: not forwarded in time: retry")])
                    continue
                joined = join(queue)
                results: Sequence[Receipt | ApiError]
                try:
                    if not self._is_known(tp, joined[0].header):
                        joined = joined[:1]  # the others continue it only if it is appended
                        joined[0].is_looked_up = True
                    results = await self._forward(tp, joined)
                except ApiError as refused:
                    results = [refused] * len(joined)
                if any(isinstance(result, ApiError) for result in results):
                    self._forget(tp, joined[0].header)
                self._finish(queue, results)
        finally:
            del self._queues[key]
            self._finish(queue, [RequestTimedOut("this broker is stopping")] * len(queue))

    def _finish(self, queue: list[QueuedBatch], results: Sequence[Receipt | ApiError]) -> None:
        """Take the first batches out of a queue, but for those that have to be looked up."""
        again: list[QueuedBatch] = []
        for queued, result in zip(queue, results, strict=False):
            if isinstance(result, Receipt):
                queued.receipt.set_result(result)
            elif result.code in _LOOKED_UP_AGAIN and not queued.is_final:
                again.append(queued)
                continue
            else:
                queued.receipt.set_exception(result)
            self.waiting_bytes -= len(queued.batch)
        queue[: len(results)] = again

    async def _forward(
        self, tp: TopicPartition, joined: Sequence[QueuedBatch]
    ) -> Sequence[Receipt | ApiError]:
        """A result for each of these batches, which are appended in their order."""
        first, is_continued = joined[0], False
        route = self._route(tp)
        if first.is_looked_up:
            repeated = await self._find_repeated(tp, first.header)
            if repeated is not None:
                return [repeated]
            if self._route(tp) != route:
                raise NotLeader(f"the route of {tp} has changed: retry")
            is_continued = True
        owner, _ = route
        producer_id = ProducerId(first.header.producer_id)
        if owner != tp.partition:
            producer_id = mapped_id(producer_id, tp.partition)
        for queued in joined:
            if read_producer(queued.batch)[0] != producer_id:
                stamp_producer_id(queued.batch, producer_id)
        leader = self._leaders.get((tp.topic, owner))
        if leader is None:
            results = await self._produce(tp, route, joined, is_continued=is_continued)
        else:
            written = ReceivedPartition(leader, is_continued=is_continued)
            results = await _append_here(leader, written, joined)
        if isinstance(results[-1], Receipt):
            self._note(tp, first.header, route)
        return results

    def _route(self, tp: TopicPartition) -> tuple[int, int]:
        """Where batches are appended, and the revision of the topic that says so."""
        topic = self._topic(tp)
        return owner_of(topic, tp.partition), self._revision(topic)

    def _is_known(self, tp: TopicPartition, header: BatchHeader) -> bool:
        """True if the owner's log tells whether a batch is its producer's next one.

        It has the newest batch of the producer, as far as this broker knows.
        """
        if header.producer_id < 0:
            return True
        key = tp, header.producer_id, header.producer_epoch
        return key in self._continued and self._continued[key] == self._route(tp)

    def _note(self, tp: TopicPartition, header: BatchHeader, route: tuple[int, int]) -> None:
        """The owner of a route has the newest batch of a producer: it was appended there."""
        if header.producer_id < 0:
            return
        while len(self._continued) >= _PRODUCERS_MAX:
            del self._continued[next(iter(self._continued))]
        key = tp, header.producer_id, header.producer_epoch
        self._continued[key] = route

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
            await _wait_settled(leader, end, ACKS_ALL)
        elif isinstance(state, RemoteState) and state.high_watermark < end:
            raise NotEnoughReplicasAfterAppend("the first copy is not committed yet: retry")
        return Receipt(batch.base_offset, end, NO_TIMESTAMP, Offset(-1), is_settled=True)

    # Requests

    async def _produce(
        self,
        tp: TopicPartition,
        route: tuple[int, int],
        joined: Sequence[QueuedBatch],
        *,
        is_continued: bool,
    ) -> list[Receipt | ApiError]:
        topic, (owner, revision) = self._topic(tp), route
        data = [PartitionProduceData(index=owner, records=queued.batch) for queued in joined]

        def request(number: int) -> ProduceRequest:
            return ProduceRequest(
                acks=joined[0].sent_acks,
                timeout_ms=int(_APPEND_S * 1000),
                topic_data=[TopicProduceData(topic_id=topic.id, partition_data=data)],
                broker_token=self._token(),
                topic_revision=revision,
                sequence=number,
                is_continued=is_continued,
            )

        response = await self._send(topic, owner, request, ProduceResponse)
        results = [one for done in response.responses for one in done.partition_responses]
        if len(results) != len(joined):
            raise NotLeader(f"the leader of {topic.name}-{owner} did not respond about all batches")
        return [
            _result(f"{topic.name}-{owner}", queued, result)
            for queued, result in zip(joined, results, strict=True)
        ]

    async def _look_up(
        self, topic: TopicImage, index: int, producer_id: ProducerId
    ) -> RemoteState | None:
        revision = self._revision(topic)

        def request(number: int) -> DescribeProducersRequest:
            return DescribeProducersRequest(
                topics=[DescribeProducersRequestTopic(name=topic.name, partition_indexes=[index])],
                broker_token=self._token(),
                topic_revision=revision,
                sequence=number,
                producer_id=producer_id,
            )

        response = await self._send(topic, index, request, DescribeProducersResponse)
        for one in (one for found in response.topics for one in found.partitions):
            if one.error_code:
                raise _refusal(f"{topic.name}-{index}", one.error_code, one.error_message)
            for state in one.active_producers:
                return _state(state)
            return None
        raise NotLeader(f"the leader of {topic.name}-{index} did not describe the producer")

    async def _send(
        self,
        topic: TopicImage,
        index: int,
        make_request: Callable[[int], Request],
        response_class: type[Response],
    ) -> Response:
        """The response of a partition's leader; the request gets its number as it leaves."""
        peer = topic.partitions[index].leader
        if peer is None:
            raise NotLeader(f"{topic.name}-{index} has no leader")
        number = 0
        try:
            await self._peers.open(peer, _LANE)
            number = next(self._numbers)
            response = await self._peers.send(
                peer, make_request(number), response_class, timeout_s=_RESPONSE_S, lane=_LANE
            )
        except ClientError as problem:
            if number:
                self._uncertain[peer] = max(number, self._uncertain.get(peer, 0))
            raise RequestTimedOut(f"broker {peer} did not respond: {problem}") from problem
        if number > self._uncertain.get(peer, number):
            del self._uncertain[peer]
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


async def _wait_settled(leader: LeaderPartition, end: Offset, acks: int) -> None:
    """Return when what acks promise holds up to `end`; raises RequestTimedOut."""
    if leader.is_settled(end, acks):
        return
    try:
        async with asyncio.timeout(_APPEND_S):
            await wait_called(lambda settled: leader.wait_settled(end, acks, settled))
    except TimeoutError:
        raise RequestTimedOut(f"{leader.tp}: not committed in {_APPEND_S:g} s: retry") from None


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


async def _append_here(
    leader: LeaderPartition, written: ReceivedPartition, joined: Sequence[QueuedBatch]
) -> list[Receipt | ApiError]:
    """Append batches to a partition that is led here, and wait for what their acks promise."""
    results: list[Receipt | ApiError] = []
    unsettled = Offset(0)
    for queued in joined:
        try:
            receipt = written.append(memoryview(queued.batch), queued.acks, queued.now_ms)
        except ApiError as refused:
            results.append(refused)
            continue
        results.append(receipt)
        if not receipt.is_settled and queued.acks != ACKS_NONE:
            unsettled = max(unsettled, receipt.end_offset)
    if unsettled:
        await _wait_settled(leader, unsettled, joined[0].sent_acks)
    return results


def _result(
    target: str, queued: QueuedBatch, produced: PartitionProduceResponse
) -> Receipt | ApiError:
    """The receipt or the error that another broker responded with about a batch."""
    if produced.error_code:
        return _refusal(target, produced.error_code, produced.error_message)
    return Receipt(
        Offset(produced.base_offset),
        Offset(produced.base_offset + queued.header.last_offset_delta + 1),
        TimestampMs(produced.log_append_time_ms),
        Offset(produced.log_start_offset),
        is_settled=True,
    )


def _refusal(target: str, code: int, text: str | None) -> ApiError:
    """The error for a producer; one between brokers is none of its own, and passes."""
    if code in _BETWEEN_BROKERS:
        return NotLeader(f"{target}: {text}: retry")
    return PeerError(code, f"{target}: {text}")


def _retrieve(receipt: "asyncio.Future[Receipt]") -> None:
    if not receipt.cancelled():
        receipt.exception()
