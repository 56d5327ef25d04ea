"""Every partition learns how its transaction ended: once, in time, from the right coordinator."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from fakes import build
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from ottla.clock import SystemClock
from ottla.config import Durability, TopicConfig
from ottla.coordinator.runtime.internal_topics import OFFSETS_TOPIC
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.runtime.shard_log import committed
from ottla.coordinator.transactions.markers import GroupMarkers, Markers, TransactionEnd
from ottla.coordinator.transactions.records import State, Transaction
from ottla.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    InvalidProducerEpoch,
    NotLeader,
    UnknownTopicOrPartition,
)
from ottla.model import BrokerId, LeaderEpoch, ProducerEpoch, ProducerId, TopicPartition
from ottla.records.batch import Marker, MarkerKind
from ottla.replication.partition import ACKS_ALL, LeaderPartition
from ottla.replication.replicas import Replicas
from ottla.storage.log import Log

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
PRODUCER = ProducerIdentity(ProducerId(9), ProducerEpoch(1))
PREPARED = Transaction(
    transactional_id="t",
    producer=PRODUCER,
    timeout_ms=1000,
    state=State.PREPARE_COMMIT,
    partitions=frozenset({A, B}),
    changed_ms=build.NOW_MS,
    version=2,
)


class NoFlusher:
    def request(self, log: Log) -> None:
        raise AssertionError("these topics do not wait for a disk")


class FakeReplicas:
    """Partitions that come and go as the test says."""

    def __init__(self, *tps: TopicPartition) -> None:
        self.leaders = self.writable = {tp: partition(tp) for tp in tps}
        self.known = {A, B, OFFSETS}
        self.asked = asyncio.Event()

    def absence(self, topic: str, index: int) -> ApiError:
        self.asked.set()
        is_known = TopicPartition(topic, index) in self.known
        return NotLeader("not here") if is_known else UnknownTopicOrPartition("not anywhere")


def partition(tp: TopicPartition) -> LeaderPartition:
    """A partition in which the producer has a transaction open."""
    config = TopicConfig(durability=Durability.REPLICATED)
    led = led_partition(
        tp,
        build.log(MemoryFiles(), config),
        broker_id=BrokerId(0),
        leader_epoch=LeaderEpoch(3),
        replicas=(BrokerId(0),),
        isr=frozenset({BrokerId(0)}),
        flusher=NoFlusher(),
        soon=lambda callback: callback(),
    )
    batch = build.batch(
        producer_id=PRODUCER.id, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    led.append(memoryview(batch), ACKS_ALL, build.NOW_MS)
    return led


class NoGroups:
    def append_marker(
        self, index: int, marker: Marker, producer: ProducerIdentity
    ) -> "asyncio.Future[None]":
        raise AssertionError("no partition of groups is concerned")


async def nowhere(tp: TopicPartition, end: TransactionEnd) -> None:
    raise NotLeader("its leader cannot be reached")


async def no_targets(
    tp: TopicPartition, producer_id: ProducerId
) -> list[tuple[TopicPartition, ProducerId]]:
    raise AssertionError(f"{tp} is not sealed")


def markers(replicas: FakeReplicas, groups: GroupMarkers | None = None) -> Markers:
    return Markers(
        cast("Replicas", replicas),
        SystemClock(),
        lambda: groups or NoGroups(),
        nowhere,
        no_targets,
    )


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(main())


def is_open(led: LeaderPartition) -> bool:
    known = led.log.producers.get(PRODUCER.id)
    assert known is not None
    return known.transaction_start >= 0


def test_every_partition_gets_one_marker_however_often_it_is_written() -> None:
    async def scenario() -> None:
        replicas = FakeReplicas(A, B)
        for _ in range(2):
            assert await markers(replicas).write_all(PREPARED, 5, lambda: True)
            for led in replicas.leaders.values():
                assert not is_open(led)
                assert led.log.end_offset == led.high_watermark == 2

    run(scenario)


def test_a_partition_that_is_away_gets_its_marker_when_it_is_back() -> None:
    async def scenario() -> None:
        replicas = FakeReplicas(A)
        writing = asyncio.ensure_future(markers(replicas).write_all(PREPARED, 5, lambda: True))
        await replicas.asked.wait()
        assert not writing.done()
        replicas.leaders[B] = partition(B)
        assert await writing
        assert not is_open(replicas.leaders[B])
        assert replicas.leaders[A].log.end_offset == 2, "it had its marker the first time"

    run(scenario)


def test_a_partition_that_was_deleted_needs_none() -> None:
    async def scenario() -> None:
        replicas = FakeReplicas(A)
        replicas.known = {A}
        assert await markers(replicas).write_all(PREPARED, 5, lambda: True)

    run(scenario)


def test_nobody_writes_for_a_coordinator_that_is_no_more() -> None:
    async def scenario() -> None:
        replicas = FakeReplicas()
        writing = asyncio.ensure_future(
            markers(replicas).write_all(PREPARED, 5, lambda: not replicas.asked.is_set())
        )
        assert not await writing

    run(scenario)


def test_a_marker_that_was_overtaken_is_given_up() -> None:
    async def scenario() -> None:
        replicas = FakeReplicas(A, B)
        end = TransactionEnd.of(PREPARED, 9)
        await markers(replicas).write(A, end)
        newer = PREPARED.producer._replace(epoch=ProducerEpoch(2))
        await markers(replicas).write(A, end._replace(producer=newer))
        assert await markers(replicas).write_all(PREPARED, 9, lambda: True)
        assert replicas.leaders[A].log.end_offset == 3

    run(scenario)


class StoppingGroups:
    """A group coordinator whose marker never commits: the broker stops first."""

    def __init__(self) -> None:
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def append_marker(
        self, index: int, marker: Marker, producer: ProducerIdentity
    ) -> "asyncio.Future[None]":
        return self.written


def test_a_marker_that_fails_after_its_writer_was_cancelled_is_no_unretrieved_exception() -> None:
    async def scenario() -> None:
        reported: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: reported.append(context)
        )
        groups = StoppingGroups()
        end = TransactionEnd.of(PREPARED, 5)
        writing = asyncio.ensure_future(markers(FakeReplicas(OFFSETS), groups).write(OFFSETS, end))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        groups.written.set_exception(NotLeader("the broker is stopping"))
        await asyncio.sleep(0)
        del groups, writing
        gc.collect()
        assert reported == []

    run(scenario)


def test_a_late_marker_does_not_end_the_next_transaction() -> None:
    async def scenario() -> None:
        replicas = FakeReplicas(A)
        end = TransactionEnd.of(PREPARED, 5)
        await markers(replicas).write(A, end)
        led = replicas.leaders[A]
        batch = build.batch(
            producer_id=PRODUCER.id, producer_epoch=1, base_sequence=0, is_transactional=True
        )
        led.append(memoryview(batch), ACKS_ALL, build.NOW_MS)
        with pytest.raises(InvalidProducerEpoch):
            await markers(replicas).write(A, end)
        assert is_open(led)

    run(scenario)


class LoadingGroups:
    """A group coordinator that refuses the first marker, for its shard reads its log."""

    def __init__(self, led: LeaderPartition) -> None:
        self.markers: list[tuple[int, Marker, ProducerIdentity]] = []
        self._led = led

    def append_marker(
        self, index: int, marker: Marker, producer: ProducerIdentity
    ) -> "asyncio.Future[None]":
        self.markers.append((index, marker, producer))
        if len(self.markers) == 1:
            raise CoordinatorLoadInProgress("the log is being read")
        end = self._led.append_marker(marker, producer.id, producer.epoch, build.NOW_MS)
        return committed(self._led, end)


def test_a_groups_shard_writes_its_marker_and_may_not_be_ready() -> None:
    async def scenario() -> None:
        replicas = FakeReplicas(OFFSETS)
        groups = LoadingGroups(replicas.leaders[OFFSETS])
        prepared = Transaction(
            transactional_id="t",
            producer=PRODUCER,
            timeout_ms=1000,
            state=State.PREPARE_ABORT,
            partitions=frozenset({OFFSETS}),
            changed_ms=build.NOW_MS,
        )
        assert await markers(replicas, groups).write_all(prepared, 5, lambda: True)
        assert groups.markers == [(0, Marker(MarkerKind.ABORT, 5), PRODUCER)] * 2
        assert replicas.leaders[OFFSETS].log.end_offset == 2

    run(scenario)
