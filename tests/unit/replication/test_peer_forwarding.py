"""Batches for sealed partitions to a broker that leads their target, over real sockets."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fakes import build
from fakes.answering_broker import AnsweringBroker, Script
from fakes.cluster_images import CONFIG, after, alive, broker, with_topic
from fakes.led import led_partition
from fakes.loopback import until
from fakes.memory_files import MemoryFiles
from ottla.cluster.controller.configs import ConfigEdit, EditKind, alter_topic_config
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import Revision
from ottla.config import Durability, TopicConfig
from ottla.errors import (
    ApiError,
    ErrorCode,
    NotLeader,
    OutOfOrderSequence,
    RequestTimedOut,
)
from ottla.model import BrokerId, LeaderEpoch, ProducerId, TopicPartition, Uuid
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponsePartition,
    DescribeProducersResponseTopic,
    ProducerState,
)
from ottla.records.batch import BatchHeader, read_header
from ottla.replication.forward_queue import JOINED_MAX
from ottla.replication.partition import ACKS_ALL, ACKS_LEADER, LeaderPartition, Receipt
from ottla.replication.peer_forwarding import PeerForwarding
from ottla.replication.peers import Peers
from ottla.storage.log import Log

HERE, THERE = BrokerId(1), BrokerId(2)
TOKEN = Uuid(bytes(range(16)))
SEALED = TopicPartition("orders", 3)  # its batches go to orders-0, which the other broker leads
MAPPED = (SEALED.partition + 1) << 40
TIMEOUT_MS = 30_000


class ShiftedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can be put forward."""

    shift_s = 0.0

    def time(self) -> float:
        return super().time() + self.shift_s


class NoFlusher:
    def request(self, log: Log) -> None:
        return


def fail(problem: BaseException) -> None:
    raise AssertionError("a defect") from problem


class Target:
    """The broker that leads the target: it appends what continues a sequence."""

    def __init__(self) -> None:
        self.requests: list[ProduceRequest] = []
        self.appended: list[BatchHeader] = []
        self.next_sequences: dict[int, int] = {}
        self.refused: dict[int, int] = {}  # codes by the number of the batch, once each
        self.before_response: Callable[[], None] = lambda: None
        self._count = 0

    def scripts(self) -> dict[ApiKey, Script]:
        return {ApiKey.PRODUCE: self.produce, ApiKey.DESCRIBE_PRODUCERS: self.describe}

    def produce(self, request: ProduceRequest) -> ProduceResponse:
        self.requests.append(request)
        (topic,) = request.topic_data
        results = [
            self._append(bytes(one.records or b""), is_continued=request.is_continued)
            for one in topic.partition_data
        ]
        self.before_response()
        return ProduceResponse(
            responses=[TopicProduceResponse(topic_id=topic.topic_id, partition_responses=results)]
        )

    def _append(self, batch: bytes, *, is_continued: bool) -> PartitionProduceResponse:
        header = read_header(batch)
        number, self._count = self._count, self._count + 1
        if code := self.refused.pop(number, 0):
            return PartitionProduceResponse(index=0, error_code=code, error_message="refused")
        if header.producer_id >= 0:
            expected = self.next_sequences.get(header.producer_id, -1)
            if header.base_sequence != expected and not is_continued:
                code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                return PartitionProduceResponse(index=0, error_code=code)
            self.next_sequences[header.producer_id] = header.last_sequence + 1
        self.appended.append(header)
        return PartitionProduceResponse(index=0, base_offset=len(self.appended) - 1)

    def describe(self, request: DescribeProducersRequest) -> DescribeProducersResponse:
        (topic,) = request.topics
        described = DescribeProducersResponsePartition(partition_index=topic.partition_indexes[0])
        next_sequence = self.next_sequences.get(request.producer_id)
        if next_sequence is not None and topic.partition_indexes == [0]:
            # The last batch alone, of one record; committed.
            last = [next_sequence - 1, next_sequence - 1, 0, 0, 0]
            described.active_producers = [
                ProducerState(
                    producer_id=request.producer_id, producer_epoch=0, batches=[*last, 1000]
                )
            ]
        return DescribeProducersResponse(
            topics=[DescribeProducersResponseTopic(name=topic.name, partitions=[described])]
        )


@dataclass
class Scene:
    """A broker that forwards, the one that it forwards to, and the cluster as it knows it."""

    there: AnsweringBroker
    target: Target
    image: ClusterImage
    leaders: dict[tuple[str, int], LeaderPartition]
    forwarding: PeerForwarding
    peers: Peers

    def send(self, *, timeout_ms: int = TIMEOUT_MS, **batch: Any) -> "asyncio.Future[Receipt]":
        sent = memoryview(build.batch(**{"count": 1, **batch}))
        return self.forwarding.forward(SEALED, sent, ACKS_ALL, build.NOW_MS, timeout_ms=timeout_ms)

    def send_next(self, sequence: int) -> "asyncio.Future[Receipt]":
        return self.send(producer_id=7, producer_epoch=0, base_sequence=sequence)

    def resize(self, active: int) -> None:
        edit = ConfigEdit(EditKind.SET, "active.partitions", str(active))
        self.image = after(self.image, alter_topic_config(self.image, "orders", [edit], CONFIG))


def led_here(index: int, *, isr: tuple[BrokerId, ...] = (HERE,)) -> LeaderPartition:
    config = TopicConfig(durability=Durability.REPLICATED)
    return led_partition(
        TopicPartition("orders", index),
        build.log(MemoryFiles(), config, directory=Path(f"orders-{index}")),
        broker_id=HERE,
        leader_epoch=LeaderEpoch(0),
        replicas=(HERE, THERE),
        isr=isr,
        flusher=NoFlusher(),
        soon=lambda callback: callback(),
    )


def run(scenario: Callable[[Scene], Awaitable[None]]) -> None:
    """`orders` has 3 active partitions of 6; this broker leads 3 to 5, the other one 0 to 2."""

    async def main() -> None:
        target = Target()
        async with asyncio.timeout(60), AnsweringBroker(target.scripts()) as there:
            ours = replace(broker(HERE), token=TOKEN)
            other = broker(THERE, there.endpoint.port, host=there.endpoint.host)
            image = ClusterImage().apply([*alive(ours, 1), *alive(other, 1)], Revision(1))
            image = with_topic(image, (2, 1), (2, 1), (2, 1), (1, 2), (1, 2), (1, 2))
            leaders = {("orders", index): led_here(index) for index in range(3, 6)}
            peers = Peers(HERE, lambda: scene.image, fail)
            forwarding = PeerForwarding(peers, lambda: scene.image, leaders)
            scene = Scene(there, target, image, leaders, forwarding, peers)
            scene.resize(3)
            try:
                await scenario(scene)
            finally:
                peers.close()

    with asyncio.Runner(loop_factory=ShiftedLoop) as runner:
        runner.run(main())


async def error_of(receipt: "asyncio.Future[Receipt]") -> ApiError:
    with pytest.raises(ApiError) as caught:
        await receipt
    return caught.value


def test_batches_that_wait_share_a_request_and_keep_their_order() -> None:
    async def scenario(scene: Scene) -> None:
        receipts = [scene.send(count=1 + number % 3) for number in range(3 * JOINED_MAX)]
        offsets = [(await receipt).base_offset for receipt in receipts]
        assert offsets == list(range(len(receipts)))
        counts = [header.record_count for header in scene.target.appended]
        assert counts == [1 + number % 3 for number in range(len(receipts))]
        assert len(scene.target.requests) == 3
        assert scene.forwarding.waiting_bytes == 0

    run(scenario)


def test_batches_with_other_acks_do_not_share_a_request() -> None:
    async def scenario(scene: Scene) -> None:
        batch = memoryview(build.batch(1))
        receipts = [
            scene.forwarding.forward(SEALED, batch, acks, build.NOW_MS, timeout_ms=TIMEOUT_MS)
            for acks in (ACKS_ALL, ACKS_ALL, ACKS_LEADER, ACKS_ALL)
        ]
        for receipt in receipts:
            await receipt
        sent = [(one.acks, len(one.topic_data[0].partition_data)) for one in scene.target.requests]
        assert sent == [(ACKS_ALL, 2), (ACKS_LEADER, 1), (ACKS_ALL, 1)]

    run(scenario)


def test_a_producer_is_looked_up_once_and_its_other_batches_share_a_request() -> None:
    async def scenario(scene: Scene) -> None:
        receipts = [scene.send_next(sequence) for sequence in range(5)]
        assert [(await receipt).base_offset for receipt in receipts] == [0, 1, 2, 3, 4]
        requests = scene.target.requests
        assert [one.is_continued for one in requests] == [True, False]
        assert [len(one.topic_data[0].partition_data) for one in requests] == [1, 4]
        assert {header.producer_id for header in scene.target.appended} == {MAPPED + 7}
        assert scene.there.names_asked().count("DESCRIBE_PRODUCERS") == 1

    run(scenario)


def test_batches_behind_one_that_is_refused_do_not_overtake_it() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.send_next(0)
        scene.target.refused = {2: ErrorCode.NOT_ENOUGH_REPLICAS}
        receipts = [scene.send_next(sequence) for sequence in range(1, 5)]
        assert (await receipts[0]).base_offset == 1
        assert (await error_of(receipts[1])).code == ErrorCode.NOT_ENOUGH_REPLICAS
        for receipt in receipts[2:]:
            assert isinstance(await error_of(receipt), OutOfOrderSequence)
        again = [scene.send_next(sequence) for sequence in range(2, 5)]
        assert [(await receipt).base_offset for receipt in again] == [2, 3, 4]
        assert [header.base_sequence for header in scene.target.appended] == [0, 1, 2, 3, 4]

    run(scenario)


def test_batches_of_a_producer_that_the_target_has_forgotten_are_appended() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.send_next(0)
        scene.target.next_sequences.clear()
        receipts = [scene.send_next(sequence) for sequence in range(1, 5)]
        assert [(await receipt).base_offset for receipt in receipts] == [1, 2, 3, 4]

    run(scenario)


def test_a_producer_is_looked_up_if_the_route_has_changed_while_its_batch_was_under_way() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.send_next(0)
        scene.target.before_response = lambda: scene.resize(2)
        await scene.send_next(1)
        scene.target.before_response = lambda: None
        count = scene.there.names_asked().count("DESCRIBE_PRODUCERS")
        await scene.send_next(2)
        assert scene.there.names_asked().count("DESCRIBE_PRODUCERS") > count

    run(scenario)


def test_a_batch_has_its_own_producer_again_if_its_partition_is_opened_meanwhile() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.send_next(0)
        scene.target.next_sequences.clear()  # so that the next one is refused, and looked up
        scene.target.before_response = lambda: scene.resize(6)
        await scene.send_next(1)
        opened = scene.leaders[SEALED]
        assert opened.log.end_offset == 1
        assert opened.producer(ProducerId(7)) is not None

    run(scenario)


def test_a_request_that_may_still_arrive_is_made_void_once() -> None:
    async def scenario(scene: Scene) -> None:
        asked = asyncio.Event()
        scene.there.scripts[ApiKey.PRODUCE] = lambda request: asked.set()
        receipt = scene.send()
        await asked.wait()
        scene.there.hang_up()
        assert isinstance(await error_of(receipt), RequestTimedOut)
        for _ in range(3):
            await scene.forwarding.settle(SEALED, ProducerId(7))
        assert scene.there.names_asked() == ["PRODUCE", "DESCRIBE_PRODUCERS"]
        (_, _, late), (_, _, newer) = scene.there.asked
        assert late.sequence < newer.sequence

    run(scenario)


def test_a_batch_that_waits_longer_than_its_request_is_not_sent() -> None:
    async def scenario(scene: Scene) -> None:
        produce = scene.there.scripts[ApiKey.PRODUCE]
        silent = asyncio.Event()
        scene.there.scripts[ApiKey.PRODUCE] = lambda request: silent.set()
        first = scene.send()
        await silent.wait()
        late, patient = scene.send(timeout_ms=2_000), scene.send()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ShiftedLoop)
        loop.shift_s = 3.0
        scene.there.scripts[ApiKey.PRODUCE] = produce
        scene.there.hang_up()
        assert isinstance(await error_of(first), RequestTimedOut)
        assert isinstance(await error_of(late), RequestTimedOut)
        assert (await patient).base_offset == 0
        assert len(scene.target.appended) == 1

    run(scenario)


def test_batches_beyond_the_memory_for_them_are_refused_until_there_is_room() -> None:
    async def scenario(scene: Scene) -> None:
        batch = memoryview(build.batch(value=bytes(1 << 20)))

        def send(number: int) -> "asyncio.Future[Receipt]":
            tp = TopicPartition("orders", 3 + number % 3)  # each has a queue
            return scene.forwarding.forward(
                tp, batch, ACKS_ALL, build.NOW_MS, timeout_ms=TIMEOUT_MS
            )

        receipts = [send(number) for number in range(63)]
        with pytest.raises(RequestTimedOut):
            send(63)
        await asyncio.gather(*receipts)
        assert scene.forwarding.waiting_bytes == 0
        assert (await scene.send()).base_offset == len(receipts)

    run(scenario)


def test_an_error_between_brokers_is_one_that_producers_retry() -> None:
    async def scenario(scene: Scene) -> None:
        scene.target.refused = {0: ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
        assert isinstance(await error_of(scene.send()), NotLeader)

    run(scenario)


def test_requests_leave_in_the_order_of_their_numbers_when_a_connection_is_opened() -> None:
    async def scenario(scene: Scene) -> None:
        receipts = [
            scene.send(producer_id=number, producer_epoch=0, base_sequence=0)
            for number in range(10)
        ]
        for receipt in receipts:
            await receipt
        numbers = [request.sequence for _, _, request in scene.there.asked]
        assert numbers == sorted(numbers)
        assert len(numbers) == 20
        assert scene.there.connection_count == 1

    run(scenario)


def test_a_target_that_cannot_be_reached_is_a_timeout_for_all_that_wait() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.there.__aexit__()
        receipts = [scene.send(), scene.send(), scene.send_next(0), scene.send_next(1)]
        for receipt in receipts:
            assert isinstance(await error_of(receipt), RequestTimedOut)
        await scene.there.__aenter__()
        scene.there.hang_up()

    run(scenario)


def test_a_partition_that_is_led_elsewhere_now_is_a_retriable_error() -> None:
    async def scenario(scene: Scene) -> None:
        receipts = [scene.send(), scene.send_next(0)]
        scene.leaders.pop(SEALED)
        for receipt in receipts:
            assert isinstance(await error_of(receipt), NotLeader)

    run(scenario)


def test_batches_whose_target_is_led_here_meanwhile_are_appended_to_it() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.send_next(0)
        target = scene.leaders["orders", 0] = led_here(0)
        receipts = [scene.send_next(sequence) for sequence in range(1, 4)]
        plain = scene.send()
        # The other broker has not told this one about sequence 0: it is looked up in the log here.
        assert [(await receipt).base_offset for receipt in receipts] == [0, 1, 2]
        assert (await plain).is_settled
        known = target.producer(ProducerId(MAPPED + 7))
        assert known is not None
        assert known.next_sequence == 4

    run(scenario)


def test_a_batch_that_is_not_committed_here_in_time_does_not_hold_those_behind_it() -> None:
    async def scenario(scene: Scene) -> None:
        scene.leaders["orders", 0] = led_here(0, isr=(HERE, THERE))
        receipt = scene.send()
        await until(lambda: scene.leaders["orders", 0].log.end_offset > 0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ShiftedLoop)
        loop.shift_s = 9.0
        assert isinstance(await error_of(receipt), RequestTimedOut)

    run(scenario)


def test_the_end_of_this_broker_is_a_retriable_error_for_what_waits() -> None:
    async def scenario(scene: Scene) -> None:
        asked = asyncio.Event()
        scene.there.scripts[ApiKey.PRODUCE] = lambda request: asked.set()
        receipts = [scene.send()]
        await asked.wait()
        receipts += [scene.send(), scene.send()]
        scene.peers.close()
        for receipt in receipts:
            assert isinstance(await error_of(receipt), RequestTimedOut)
        assert scene.forwarding.waiting_bytes == 0

    run(scenario)
