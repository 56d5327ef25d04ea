"""Produce requests that wait for their transaction: which ones, and what becomes of them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import cast

import pytest

from fakes import build
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from ottla.broker.pending import Pending, Response
from ottla.broker.produce_verification import ProduceVerification, Verifications
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.coordinator import TransactionCoordinator
from ottla.errors import (
    ApiError,
    ErrorCode,
    InvalidTxnState,
    NotCoordinator,
    NotEnoughReplicas,
    TransactionAbortable,
    UnknownTopicOrPartition,
)
from ottla.model import BrokerId, ProducerEpoch, ProducerId, TopicPartition
from ottla.protocol.hot_fields import TopicKey
from ottla.protocol.hot_produce import ProduceRequest
from ottla.records.batch import Marker, MarkerKind
from ottla.replication.forwarding import ForwardedPartition
from ottla.replication.partition import LeaderPartition
from ottla.replication.replicas import Replicas
from ottla.storage.log import Log

BROKER = BrokerId(0)
PRODUCER = ProducerIdentity(ProducerId(7), ProducerEpoch(1))
OLD, NEW = 11, 12  # versions of Produce: before transaction version 2, and of it


class NoDisk:
    """A flusher that never gets anything onto the disk."""

    def request(self, log: Log) -> None:
        return


class FakeReplicas:
    """Leads the first two partitions of `orders`."""

    def __init__(self) -> None:
        self.partitions = {
            ("orders", index): led_partition(
                TopicPartition("orders", index),
                build.log(MemoryFiles()),
                broker_id=BROKER,
                leader_epoch=build.EPOCH,
                replicas=(BROKER,),
                isr=frozenset({BROKER}),
                flusher=NoDisk(),
                soon=lambda wake: wake(),
            )
            for index in (0, 1)
        }

    @property
    def writable(self) -> "FakeReplicas":
        return self

    def locate(self, key: TopicKey, index: int) -> LeaderPartition:
        if (key, index) not in self.partitions:
            raise UnknownTopicOrPartition(f"there is no partition {key!r}-{index}")
        return self.partitions[key, index]  # type: ignore[index]


class FakeCoordinator:
    """Responds when the test lets it; notes what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, ProducerIdentity, list[TopicPartition]]] = []
        self.error: ErrorCode | ApiError = ErrorCode.NONE
        self.may_respond = asyncio.Event()
        self.may_respond.set()

    async def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        version: int,
    ) -> ErrorCode:
        return await self._respond("add", transactional_id, producer, partitions)

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
    ) -> list[ErrorCode]:
        error = await self._respond("verify", transactional_id, producer, partitions)
        return [error] * len(partitions)

    async def _respond(
        self,
        call: str,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
    ) -> ErrorCode:
        self.calls.append((call, transactional_id, producer, list(partitions)))
        await self.may_respond.wait()
        if isinstance(self.error, ApiError):
            raise self.error
        return self.error


def unrouted(tp: TopicPartition) -> ForwardedPartition:
    raise AssertionError(f"{tp} is not sealed")


class Bench:
    def __init__(self) -> None:
        self.replicas = FakeReplicas()
        self.coordinator = FakeCoordinator()
        self.defects: list[BaseException] = []
        self.retaken: list[Verifications] = []
        self.response: Response = b"response"
        self.verification = ProduceVerification(
            cast("Replicas", self.replicas),
            cast("TransactionCoordinator", self.coordinator),
            self.defects.append,
            unrouted,
        )

    def hold(self, *batches: tuple[int, bytes | None], version: int = NEW) -> Pending | None:
        """Hand over a request with these batches of `orders`."""
        views = [(index, None if one is None else memoryview(one)) for index, one in batches]
        request = ProduceRequest("transfer", -1, 1000, [("orders", views)])
        return self.verification.hold(request, version, lambda: self._retake)

    def _retake(self, verifications: Verifications) -> Response:
        self.retaken.append(verifications)
        return self.response

    def append(self, index: int, *, producer: ProducerIdentity = PRODUCER) -> None:
        """Open the producer's transaction in a partition."""
        log = self.replicas.partitions["orders", index].log
        log.append_as_leader(bytearray(batch(producer)), build.EPOCH, build.NOW_MS)

    def end(self, index: int) -> None:
        self.replicas.partitions["orders", index].log.append_marker(
            Marker(MarkerKind.ABORT, 0), PRODUCER.id, PRODUCER.epoch, build.EPOCH, build.NOW_MS
        )


def batch(
    producer: ProducerIdentity = PRODUCER, *, is_transactional: bool = True, sequence: int = 0
) -> bytes:
    return bytes(
        build.batch(
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
    )


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench()
        async with asyncio.timeout(20):
            await scenario(bench)
        assert bench.defects == []

    asyncio.run(main())


def test_the_first_batch_of_a_transaction_waits_and_holds_back_what_follows() -> None:
    async def scenario(bench: Bench) -> None:
        bench.coordinator.may_respond.clear()
        pending = bench.hold((0, batch()))
        assert pending is not None
        assert pending.is_barrier
        await settle()
        assert (pending.parts, bench.retaken) == (None, [])
        bench.coordinator.may_respond.set()
        await settle()
        assert pending.parts == b"response"
        assert bench.coordinator.calls == [
            ("add", "transfer", PRODUCER, [TopicPartition("orders", 0)])
        ]

    run(scenario)


def test_older_producers_have_added_the_partition_themselves() -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.hold((0, batch()), version=OLD) is not None
        await settle()
        assert [call for call, *_ in bench.coordinator.calls] == ["verify"]

    run(scenario)


def test_a_transaction_that_is_open_in_the_partition_waits_no_more() -> None:
    async def scenario(bench: Bench) -> None:
        bench.append(0)
        assert bench.hold((0, batch(sequence=1))) is None
        newer = ProducerIdentity(PRODUCER.id, ProducerEpoch(2))
        assert bench.hold((0, batch(newer))) is not None, "of another epoch"
        bench.end(0)
        assert bench.hold((0, batch(sequence=1))) is not None, "the next one"
        await settle()

    run(scenario)


@pytest.mark.parametrize(
    ("index", "content"),
    [
        (0, None),
        (0, batch()[:60]),
        (0, batch(is_transactional=False)),
        (9, batch()),
    ],
    ids=["no batch", "less than a header", "no transaction", "no such partition"],
)
def test_what_the_append_refuses_or_does_not_check_waits_for_nothing(
    index: int, content: bytes | None
) -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.hold((index, content)) is None
        assert bench.hold((index, content), (1, batch())) is not None
        await settle()
        ((_, _, _, partitions),) = bench.coordinator.calls
        assert partitions == [TopicPartition("orders", 1)]

    run(scenario)


def test_each_producer_of_a_request_is_verified_for_its_partitions() -> None:
    async def scenario(bench: Bench) -> None:
        other = ProducerIdentity(ProducerId(8), ProducerEpoch(0))
        assert bench.hold((0, batch()), (1, batch(other))) is not None
        await settle()
        assert [(producer, tps) for _, _, producer, tps in bench.coordinator.calls] == [
            (PRODUCER, [TopicPartition("orders", 0)]),
            (other, [TopicPartition("orders", 1)]),
        ]

    run(scenario)


@pytest.mark.parametrize(
    ("error", "version", "refusal"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, NEW, TransactionAbortable),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, InvalidTxnState),
        (NotCoordinator("it has moved"), NEW, NotEnoughReplicas),
    ],
)
def test_a_refusal_reaches_the_append_as_an_error_that_the_client_knows(
    error: ErrorCode | ApiError, version: int, refusal: type[ApiError]
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.coordinator.error = error
        assert bench.hold((0, batch()), version=version) is not None
        await settle()
        (verifications,) = bench.retaken
        first, second = bench.replicas.partitions.values()
        with pytest.raises(refusal):
            verifications.check(first, memoryview(batch()))
        bench.append(1)
        verifications.check(second, memoryview(batch()))  # its transaction is open

    run(scenario)


def test_a_transaction_that_ended_while_it_was_verified_writes_nothing_more() -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.hold((0, batch())) is not None
        await settle()
        (verifications,) = bench.retaken
        first, _ = bench.replicas.partitions.values()
        verifications.check(first, memoryview(batch()))
        bench.end(0)
        with pytest.raises(TransactionAbortable, match="ended"):
            verifications.check(first, memoryview(batch()))

    run(scenario)


def test_what_was_open_when_the_request_came_is_verified_again_if_it_ended_meanwhile() -> None:
    async def scenario(bench: Bench) -> None:
        bench.append(1)
        assert bench.hold((0, batch()), (1, batch())) is not None
        await settle()
        (verifications,) = bench.retaken
        _, second = bench.replicas.partitions.values()
        verifications.check(second, memoryview(batch()))
        bench.end(1)
        with pytest.raises(NotEnoughReplicas, match="verified again"):
            verifications.check(second, memoryview(batch()))
        plain = build.batch()
        verifications.check(second, memoryview(plain))  # it belongs to no transaction

    run(scenario)


def test_a_response_that_still_waits_for_the_disk_completes_the_first_when_it_is_there() -> None:
    async def scenario(bench: Bench) -> None:
        bench.response = durable = Pending(is_barrier=False)
        pending = bench.hold((0, batch()))
        assert pending is not None
        await settle()
        assert pending.parts is None
        durable.complete(b"on disk")
        assert pending.parts == b"on disk"

    run(scenario)


def test_a_request_that_waits_for_a_coordinator_that_stops_is_refused() -> None:
    async def scenario(bench: Bench) -> None:
        bench.coordinator.may_respond.clear()
        pending = bench.hold((0, batch()))
        assert pending is not None
        await settle()
        bench.coordinator.error = NotCoordinator("this broker coordinates no more")
        bench.coordinator.may_respond.set()
        await settle()
        assert pending.parts == b"response"
        (verifications,) = bench.retaken
        with pytest.raises(NotEnoughReplicas, match="coordinates no more"):
            verifications.check(bench.replicas.partitions["orders", 0], memoryview(batch()))

    run(scenario)


def test_a_mistake_of_ours_is_reported_as_a_defect() -> None:
    async def main() -> None:
        bench = Bench()
        bench.response = None  # a transactional produce always has one
        bench.hold((0, batch()))
        await settle()
        (defect,) = bench.defects
        assert isinstance(defect, AssertionError)

    asyncio.run(main())
