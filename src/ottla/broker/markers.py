"""Markers: how every partition of a transaction learns that it has ended, and how.

A marker is a control batch in the partition itself. The coordinator writes one into each
partition of a prepared transaction, again and again until all of them have it; an administrator
can do the same for a transaction that no coordinator knows. A partition of the groups' topic gets
its marker through the shard that leads it, which must learn of it in the order of the log.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from ottla.broker.shards import commit_of
from ottla.broker.slices import parts
from ottla.broker.topic_creation import OFFSETS_TOPIC
from ottla.clock import Clock
from ottla.coordinator.log_entries import ProducerIdentity, TransactionEnded
from ottla.coordinator.transaction_records import Transaction
from ottla.coordinator.transactions import BUMPING_VERSION
from ottla.errors import (
    ApiError,
    CoordinatorFenced,
    InvalidProducerEpoch,
    NotLeader,
    UnknownTopicOrPartition,
)
from ottla.model import TopicPartition
from ottla.records.batch import Marker, MarkerKind
from ottla.replication.partition import LeaderPartition
from ottla.replication.replicas import Replicas

log = logging.getLogger("ottla.broker")

_RETRY_MIN_S: Final = 0.05
_RETRY_MAX_S: Final = 2.0
_TOGETHER: Final = 200  # markers that are written in one turn of the loop

Written = Callable[[], "asyncio.Future[None]"]
NoteMarker = Callable[[int, TransactionEnded, Written], "asyncio.Future[None]"]


class TransactionEnd(NamedTuple):
    """What a marker says, and on whose word."""

    producer: ProducerIdentity
    is_commit: bool
    coordinator_epoch: int
    version: int = 0  # of the transaction protocol; from 2 on the epoch is a new one

    @classmethod
    def of(cls, prepared: Transaction, coordinator_epoch: int) -> "TransactionEnd":
        return cls(prepared.producer, prepared.is_commit, coordinator_epoch, prepared.version)


async def _nobody(tp: TopicPartition, end: TransactionEnd) -> None:
    raise NotLeader(f"this broker does not lead {tp}")


class Markers:
    """Writes them. `note_marker` is the groups' side, `elsewhere` asks another broker."""

    def __init__(
        self,
        replicas: Replicas,
        clock: Clock,
        note_marker: NoteMarker,
        elsewhere: Callable[[TopicPartition, TransactionEnd], Awaitable[None]] = _nobody,
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        self._note_marker = note_marker
        self._elsewhere = elsewhere

    async def write_all(
        self, prepared: Transaction, coordinator_epoch: int, is_wanted: Callable[[], bool]
    ) -> bool:
        """True once every partition has its marker, False when it is no longer wanted from us."""
        end = TransactionEnd.of(prepared, coordinator_epoch)
        left = sorted(prepared.partitions)
        pause_s = _RETRY_MIN_S
        while is_wanted():
            written: list[bool] = []
            for part in parts(left, _TOGETHER):
                written += await asyncio.gather(*(self._try(tp, end) for tp in part))
            left = [tp for tp, done in zip(left, written, strict=True) if not done]
            if not left:
                return True
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _RETRY_MAX_S)
        return False

    async def _try(self, tp: TopicPartition, end: TransactionEnd) -> bool:
        """Whether this partition needs no marker any more."""
        try:
            await self.write(tp, end)
        except UnknownTopicOrPartition:
            return True  # deleted, and its records with it
        except (InvalidProducerEpoch, CoordinatorFenced) as replaced:
            log.info("a marker comes too late", extra={"tp": tp, "reason": replaced})
            return True
        except ApiError as problem:
            log.debug("a marker has to wait", extra={"tp": tp, "reason": problem})
            return False
        return True

    async def write(self, tp: TopicPartition, end: TransactionEnd) -> None:
        """Returns once the marker is committed; refused with an ApiError."""
        partition = self._replicas.leaders.get(tp)
        if partition is not None:
            # Written is written: who gives up waiting must not cancel what a shard counts on.
            await asyncio.shield(self._write_here(partition, end))
            return
        absence = self._replicas.absence(tp.topic, tp.partition)
        if not isinstance(absence, NotLeader):
            raise absence
        await self._elsewhere(tp, end)

    def _write_here(
        self, partition: LeaderPartition, end: TransactionEnd
    ) -> "asyncio.Future[None]":
        producer = end.producer

        def write() -> "asyncio.Future[None]":
            marker = Marker(
                MarkerKind.COMMIT if end.is_commit else MarkerKind.ABORT, end.coordinator_epoch
            )
            reached = partition.append_marker(
                marker, producer.id, producer.epoch, self._clock.now_ms()
            )
            return commit_of(partition, reached)

        if _is_there(partition, end):
            return commit_of(partition, partition.log.end_offset)
        if partition.tp.topic != OFFSETS_TOPIC:
            return write()
        ended = TransactionEnded(producer, end.is_commit)
        return self._note_marker(partition.tp.partition, ended, write)


def _is_there(partition: LeaderPartition, end: TransactionEnd) -> bool:
    """Whether the partition knows already: each end has its own epoch from version 2 on.

    A producer that has written in that epoch is a transaction further.
    """
    known = partition.log.producers.get(end.producer.id)
    if end.version < BUMPING_VERSION or known is None or known.epoch != end.producer.epoch:
        return False
    if known.transaction_start >= 0:
        raise InvalidProducerEpoch(f"producer {end.producer} has begun another transaction")
    return True
