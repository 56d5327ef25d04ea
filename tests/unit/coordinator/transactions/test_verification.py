"""A transaction's first write to a partition: verified by its coordinator, void after a marker."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.coordinator import TransactionCoordinator
from ottla.coordinator.transactions.verification import (
    TransactionalWriter,
    Verification,
    is_verified,
    verify_partitions,
)
from ottla.errors import (
    ApiError,
    ErrorCode,
    NotCoordinator,
    ProducerFenced,
    TransactionAbortable,
)
from ottla.model import ProducerEpoch, ProducerId, TopicPartition
from ottla.replication.partition import LeaderPartition

PRODUCER = ProducerIdentity(ProducerId(7), ProducerEpoch(1))


@dataclass
class FakeProducer:
    marker_count: int = 0
    open_epoch: int | None = None

    def has_open(self, epoch: int) -> bool:
        return self.open_epoch == epoch


@dataclass
class FakeLog:
    producers: dict[int, FakeProducer] = field(default_factory=dict)


@dataclass
class FakePartition:
    tp: TopicPartition
    log: FakeLog = field(default_factory=FakeLog)

    def producer(self, producer_id: ProducerId) -> FakeProducer | None:
        return self.log.producers.get(producer_id)


class FakeCoordinator:
    """Responds with one error, and notes whether it was to add or to verify."""

    def __init__(self, error: ErrorCode | ApiError = ErrorCode.NONE) -> None:
        self.error = error
        self.calls: list[str] = []

    async def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        version: int,
    ) -> ErrorCode:
        self.calls.append("add")
        return self._result()

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
    ) -> list[ErrorCode]:
        self.calls.append("verify")
        return [self._result()] * len(partitions)

    def _result(self) -> ErrorCode:
        if isinstance(self.error, ApiError):
            raise self.error
        return self.error


def verify(
    coordinator: FakeCoordinator, *partitions: FakePartition, version: int = 2
) -> list[Verification]:
    writer = TransactionalWriter("t", PRODUCER, version)
    return asyncio.run(
        verify_partitions(
            cast("TransactionCoordinator", coordinator),
            writer,
            cast("list[LeaderPartition]", list(partitions)),
        )
    )


@pytest.fixture
def partition() -> FakePartition:
    return FakePartition(TopicPartition("t", 0))


@pytest.mark.parametrize(("version", "call"), [(0, "verify"), (1, "verify"), (2, "add")])
def test_partitions_are_added_for_version_2_and_verified_for_older_producers(
    partition: FakePartition, version: int, call: str
) -> None:
    coordinator = FakeCoordinator()
    (verification,) = verify(coordinator, partition, version=version)
    verification.check()
    assert coordinator.calls == [call]


def test_all_partitions_are_verified_in_one_request() -> None:
    partitions = [FakePartition(TopicPartition("t", index)) for index in range(3)]
    coordinator = FakeCoordinator(ErrorCode.PRODUCER_FENCED)
    verifications = verify(coordinator, *partitions)
    verified: list[object] = [v.partition for v in verifications]
    assert verified == partitions
    assert coordinator.calls == ["add"]
    for verification in verifications:
        with pytest.raises(ProducerFenced):
            verification.check()


def test_a_coordinator_that_fails_refuses_the_write(partition: FakePartition) -> None:
    (verification,) = verify(FakeCoordinator(NotCoordinator("lost")), partition)
    with pytest.raises(NotCoordinator):
        verification.check()


def test_a_verification_is_void_once_the_transaction_has_ended(partition: FakePartition) -> None:
    (verification,) = verify(FakeCoordinator(), partition)
    verification.check()
    partition.log.producers[PRODUCER.id] = FakeProducer(marker_count=1)
    with pytest.raises(TransactionAbortable, match="ended"):
        verification.check()


def test_a_partition_with_an_open_transaction_needs_no_verification(
    partition: FakePartition,
) -> None:
    led = cast("LeaderPartition", partition)
    assert not is_verified(led, PRODUCER)
    partition.log.producers[PRODUCER.id] = FakeProducer(open_epoch=0)
    assert not is_verified(led, PRODUCER), "of an older epoch"
    partition.log.producers[PRODUCER.id] = FakeProducer(open_epoch=1)
    assert is_verified(led, PRODUCER)
