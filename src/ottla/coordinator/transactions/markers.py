"""Markers: control batches that end a transaction in each of its partitions.

The coordinator writes one into each partition of a prepared transaction, and tries again until all
of them have it; an administrator can do the same for a transaction that no coordinator knows.
A partition of the offsets topic gets its marker through the group coordinator, whose shard has to
replay it in the order of the log.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from ottla.clock import Clock
from ottla.coordinator.runtime.internal_topics import OFFSETS_TOPIC
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.runtime.shard_log import committed
from ottla.coordinator.transactions.records import Transaction
from ottla.coordinator.transactions.transactions import BUMPING_VERSION
from ottla.errors import (
    ApiError,
    CoordinatorFenced,
    InvalidProducerEpoch,
    NotLeader,
    UnknownTopicOrPartition,
)
from ottla.model import NO_EPOCH, ProducerId, TopicPartition
from ottla.records.batch import Marker, MarkerKind
from ottla.replication.partition import LeaderPartition
from ottla.replication.replicas import Replicas

log = logging.getLogger("ottla.coordinator")

_RETRY_MIN_S: Final = 0.05
_RETRY_MAX_S: Final = 1.0
_MARKERS_PER_TURN: Final = 200  # markers that are written in one turn of the loop


# The partitions that a producer's marker for one is written to, each with the producer's id there.
MarkerTargets = Callable[
    [TopicPartition, ProducerId], Awaitable[Sequence[tuple[TopicPartition, ProducerId]]]
]

_FINAL: Final = (InvalidProducerEpoch, CoordinatorFenced)


class GroupMarkers(Protocol):
    """The group coordinator's door for markers."""

    def append_marker(
        self, index: int, marker: Marker, producer: ProducerIdentity
    ) -> "asyncio.Future[None]": ...


class TransactionEnd(NamedTuple):
    """The content of a marker, and the epoch of the coordinator that decided it."""

    producer: ProducerIdentity
    is_commit: bool
    coordinator_epoch: int
    version: int = 0  # of the transaction protocol; from 2 on the epoch is a new one

    @classmethod
    def of(cls, prepared: Transaction, coordinator_epoch: int) -> "TransactionEnd":
        return cls(prepared.producer, prepared.is_commit, coordinator_epoch, prepared.version)


class Markers:
    """Writer of markers.

    `groups` returns the group coordinator of this broker; `write_remotely` has the broker that
    leads a partition write a marker, and returns once it is committed there. `targets` returns the
    partitions that may have a producer's batches for one from which they are forwarded, or were.
    """

    def __init__(
        self,
        replicas: Replicas,
        clock: Clock,
        groups: Callable[[], GroupMarkers],
        write_remotely: Callable[[TopicPartition, TransactionEnd], Awaitable[None]],
        targets: MarkerTargets,
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        self._groups = groups
        self._write_remotely = write_remotely
        self._targets = targets

    async def write_all(
        self, prepared: Transaction, coordinator_epoch: int, is_coordinator: Callable[[], bool]
    ) -> bool:
        """True once every partition has its marker; False if another coordinator has to go on."""
        assert prepared.is_prepared, "markers are written when the end is decided"
        end = TransactionEnd.of(prepared, coordinator_epoch)
        left = sorted(prepared.partitions)
        pause_s = _RETRY_MIN_S
        while is_coordinator():
            written: list[bool] = []
            for first in range(0, len(left), _MARKERS_PER_TURN):
                part = left[first : first + _MARKERS_PER_TURN]
                written += await asyncio.gather(*(self._try(tp, end) for tp in part))
            left = [tp for tp, done in zip(left, written, strict=True) if not done]
            if not left:
                return True
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _RETRY_MAX_S)
        return False

    async def _try(self, tp: TopicPartition, end: TransactionEnd) -> bool:
        """True if this partition needs no marker any more."""
        try:
            await self._write_anywhere(tp, end)
        except UnknownTopicOrPartition:
            return True  # deleted, and its records with it
        except _FINAL as replaced:
            log.info("marker skipped", extra={"tp": tp, "reason": replaced})
            return True
        except ApiError as problem:
            log.debug("marker postponed", extra={"tp": tp, "reason": problem})
            return False
        return True

    async def _write_anywhere(self, tp: TopicPartition, end: TransactionEnd) -> None:
        if tp in self._replicas.leaders or not self._is_elsewhere(tp):
            await self.write(tp, end)
        else:
            await self._write_remotely(tp, end)

    def _is_elsewhere(self, tp: TopicPartition) -> bool:
        """True if another broker may lead the partition; it exists, and is not led here."""
        return isinstance(self._replicas.absence(tp.topic, tp.partition), NotLeader)

    async def write(
        self, tp: TopicPartition, end: TransactionEnd, leader_epoch: int = NO_EPOCH
    ) -> None:
        """Write a marker into a partition that is led here, in this epoch if one is given.

        Returns once the marker is committed; raises an ApiError if it is refused.
        """
        partition = self._replicas.leaders.get(tp)
        if partition is None:
            raise self._replicas.absence(tp.topic, tp.partition)
        partition.check_epoch(leader_epoch)
        if tp not in self._replicas.writable:
            await self._write_to_targets(partition, end)
            return
        await self._commit_here(partition, end)

    async def _write_to_targets(self, partition: LeaderPartition, end: TransactionEnd) -> None:
        """Write a marker wherever the producer's batches for this partition are."""
        writes: list[Awaitable[None]] = []
        for tp, producer_id in await self._targets(partition.tp, end.producer.id):
            if tp == partition.tp:
                writes.append(self._commit_here(partition, end))
            else:
                mapped = end.producer._replace(id=producer_id)
                writes.append(self._write_anywhere(tp, end._replace(producer=mapped)))
        done = await asyncio.gather(*writes, return_exceptions=True)
        problems = [one for one in done if one is not None]
        # An error after which the marker is tried again comes before one that is final.
        problems.sort(key=lambda one: isinstance(one, _FINAL))
        if problems:
            raise problems[0]

    async def _commit_here(self, partition: LeaderPartition, end: TransactionEnd) -> None:
        written = self._write_here(partition, end)
        written.add_done_callback(_retrieve)  # a caller that is cancelled does not
        # A caller that stops waiting must not cancel the commit that a shard waits for. `shield`
        # would, from Python 3.14 on, report an exception that comes later as one of the loop.
        await asyncio.wait([written])
        written.result()

    def _write_here(
        self, partition: LeaderPartition, end: TransactionEnd
    ) -> "asyncio.Future[None]":
        if _has_marker(partition, end):
            return committed(partition, partition.log.end_offset)
        producer = end.producer
        kind = MarkerKind.COMMIT if end.is_commit else MarkerKind.ABORT
        marker = Marker(kind, end.coordinator_epoch)
        if partition.tp.topic == OFFSETS_TOPIC:
            return self._groups().append_marker(partition.tp.partition, marker, producer)
        now_ms = self._clock.now_ms()
        reached = partition.append_marker(marker, producer.id, producer.epoch, now_ms)
        return committed(partition, reached)


def _retrieve(written: "asyncio.Future[None]") -> None:
    if not written.cancelled():
        written.exception()


def _has_marker(partition: LeaderPartition, end: TransactionEnd) -> bool:
    """True if the partition has the marker: each end has its own epoch from version 2 on.

    A producer that has written in that epoch has begun its next transaction.
    """
    known = partition.log.producers.get(end.producer.id)
    if end.version < BUMPING_VERSION or known is None or known.epoch != end.producer.epoch:
        return False
    if known.transaction_start >= 0:
        raise InvalidProducerEpoch(f"producer {end.producer} has begun another transaction")
    return True
