"""Verification of a transaction's first write to a partition by its coordinator (KIP-890).

The coordinator must know the partition, for it will write the marker there. Otherwise a batch
that arrives after the end of its transaction would open one that never ends, and readers of
committed records would never get past it. For producers of transaction version 2 the
coordinator adds the partition; for older ones it only checks that they added it.

The transaction may end while the coordinator is asked. A partition that got a marker of the
producer meanwhile refuses the write all the same.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol

from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.transactions import BUMPING_VERSION
from ottla.errors import (
    ApiError,
    ConcurrentTransactions,
    ErrorCode,
    InvalidProducerIdMapping,
    NotCoordinator,
    ProducerFenced,
    TransactionAbortable,
)
from ottla.model import ProducerId, TopicPartition
from ottla.storage.producers import Producer

_REFUSALS: Final[dict[ErrorCode, ApiError]] = {
    error.code: error
    for error in (
        ConcurrentTransactions("the producer's last transaction is still ending"),
        InvalidProducerIdMapping("another producer has this transactional id"),
        ProducerFenced("a newer producer has this transactional id"),
        TransactionAbortable("the partition is not part of the producer's transaction"),
    )
}


class WrittenPartition(Protocol):
    """A partition that a producer sends batches to, wherever these are appended."""

    @property
    def tp(self) -> TopicPartition: ...

    def producer(self, producer_id: ProducerId) -> Producer | None:
        """The state of a producer where its batches are appended."""
        ...


class Verifier(Protocol):
    """A transaction coordinator, here or on another broker, as far as partitions need it."""

    async def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        version: int,
    ) -> ErrorCode:
        """Add partitions to the producer's transaction, all or none."""
        ...

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
    ) -> list[ErrorCode]:
        """An error for each partition that is not part of the producer's open transaction."""
        ...


class TransactionalWriter(NamedTuple):
    """A producer that writes within its transaction."""

    transactional_id: str
    producer: ProducerIdentity
    version: int  # of the transaction protocol


class Verification(NamedTuple):
    """The coordinator's verdict on one partition, and what makes it void."""

    partition: WrittenPartition
    producer: ProducerIdentity
    marker_count: int
    refusal: ApiError | None

    def check(self) -> None:
        """Refuse a write that the transaction must not have. Call it right before the append."""
        if self.refusal is not None:
            raise self.refusal
        if self.marker_count != _marker_count(self.partition, self.producer):
            raise TransactionAbortable("the transaction has ended meanwhile")


def is_verified(partition: WrittenPartition, producer: ProducerIdentity) -> bool:
    """True if the partition's log has an open transaction of this producer."""
    known = partition.producer(producer.id)
    return known is not None and known.has_open(producer.epoch)


async def verify_partitions(
    coordinator: Verifier,
    writer: TransactionalWriter,
    partitions: Sequence[WrittenPartition],
) -> list[Verification]:
    """Verify all of them at once; if the coordinator fails, its error refuses them all."""
    counts = [_marker_count(partition, writer.producer) for partition in partitions]
    refusals: Sequence[ApiError | None]
    try:
        refusals = [
            None if error is ErrorCode.NONE else _refusal(error)
            for error in await _verify(coordinator, writer, partitions)
        ]
    except ApiError as problem:
        refusals = [problem] * len(partitions)
    return [
        Verification(partition, writer.producer, count, refusal)
        for partition, count, refusal in zip(partitions, counts, refusals, strict=True)
    ]


async def _verify(
    coordinator: Verifier,
    writer: TransactionalWriter,
    partitions: Sequence[WrittenPartition],
) -> list[ErrorCode]:
    transactional_id, producer, version = writer
    tps = [partition.tp for partition in partitions]
    if version < BUMPING_VERSION:
        return await coordinator.verify(transactional_id, producer, tps)
    return [await coordinator.add(transactional_id, producer, tps, version)] * len(tps)


def _refusal(error: ErrorCode) -> ApiError:
    """The refusal of a write; an error that says nothing of the transaction may be over soon."""
    known = _REFUSALS.get(error)
    return known or NotCoordinator(f"the transaction coordinator responded {error.name}")


def _marker_count(partition: WrittenPartition, producer: ProducerIdentity) -> int:
    known = partition.producer(producer.id)
    return 0 if known is None else known.marker_count
