"""The transaction coordinator: transactional ids, in partitions of `__transaction_state`."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from ottla.clock import Clock
from ottla.cluster.state import ClusterState
from ottla.coordinator.runtime.coordinator import Coordinator
from ottla.coordinator.runtime.decision import Ticket
from ottla.coordinator.runtime.internal_topics import TRANSACTIONS_TOPIC, TopicCreator
from ottla.coordinator.runtime.log_entries import Entry, ProducerIdentity, TransactionEnded
from ottla.coordinator.runtime.shard import Shard
from ottla.coordinator.transactions.markers import Markers
from ottla.coordinator.transactions.producer_ids import ProducerIds
from ottla.coordinator.transactions.records import (
    Transaction,
    TransactionRecord,
    from_bytes,
    to_bytes,
)
from ottla.coordinator.transactions.transactions import (
    End,
    Identified,
    Init,
    NeedsProducerId,
    Transactions,
)
from ottla.errors import (
    ApiError,
    ErrorCode,
    InvalidRequest,
    InvalidTransactionTimeout,
    PolicyViolation,
)
from ottla.model import TopicPartition
from ottla.replication.replicas import Replicas
from ottla.settings import Settings

log = logging.getLogger("ottla.coordinator")

_END_S: Final = 1.0  # timeout of a first write that waits for the end of the last transaction

TransactionShard = Shard[Transactions, TransactionRecord]


class TransactionCoordinator(Coordinator[Transactions, TransactionRecord]):
    """Transactional ids, and the markers of transactions that were prepared here or before."""

    topic = TRANSACTIONS_TOPIC

    def __init__(
        self,
        state: ClusterState,
        replicas: Replicas,
        topics: TopicCreator,
        clock: Clock,
        note_defect: Callable[[BaseException], None],
        *,
        settings: Settings,
        ids: ProducerIds,
        markers: Markers,
    ) -> None:
        super().__init__(state, replicas, topics, clock, note_defect)
        self._settings = settings
        self._ids = ids
        self.markers = markers
        self._ending: dict[str, asyncio.Event] = {}

    def new_machine(self, index: int) -> Transactions:
        return Transactions(_PreparedTicket(self, index))

    def encode(self, record: TransactionRecord) -> Entry:
        return Entry(*to_bytes(record))

    def decode(self, entry: Entry | TransactionEnded) -> TransactionRecord | None:
        if isinstance(entry, TransactionEnded) or entry.key is None:
            return None
        return from_bytes(entry.key, entry.value)

    # Producers

    async def init(self, init: Init) -> Identified:
        _check_id(init.transactional_id)
        if not 0 < init.timeout_ms <= self._settings.broker.transaction_timeout_max_ms:
            raise InvalidTransactionTimeout(
                f"{init.timeout_ms} ms are not between 1 and transaction.max.timeout.ms,"
                f" {self._settings.broker.transaction_timeout_max_ms}"
            )
        identified: Identified | NeedsProducerId = await self.run(
            init.transactional_id, lambda t, ticket, now_ms: t.init(ticket, init, now_ms)
        )
        if isinstance(identified, NeedsProducerId):
            self._check_room(init.transactional_id)
            return await self.init(replace(init, unused_id=await self._ids.next()))
        return identified

    def _check_room(self, transactional_id: str) -> None:
        """Refuse one transactional id more than may be kept."""
        known = [shard.machine.by_id for shard in self._shards.values()]
        ids_max = self._settings.broker.transactional_ids_max
        if sum(map(len, known)) >= ids_max and not any(transactional_id in one for one in known):
            raise PolicyViolation(
                f"the broker keeps {ids_max} transactional ids, as many as"
                " max.transactional.ids allows: use fewer, or raise it"
            )

    async def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        version: int,
    ) -> ErrorCode:
        """Add partitions; while the last transaction ends, the first of the next waits a little."""
        request = transactional_id, producer, partitions, version
        error = await self.add_now(*request)
        if error is ErrorCode.CONCURRENT_TRANSACTIONS and await self._wait_end(transactional_id):
            return await self.add_now(*request)
        return error

    async def add_now(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        version: int,
    ) -> ErrorCode:
        """Add partitions, unless the last transaction is still ending."""
        _check_id(transactional_id)
        return await self.run(
            transactional_id,
            lambda t, ticket, now_ms: t.add(
                ticket, transactional_id, producer, partitions, version, now_ms
            ),
        )

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
    ) -> list[ErrorCode]:
        """An error for each partition that is not part of the producer's open transaction."""
        _check_id(transactional_id)
        return await self.run(
            transactional_id,
            lambda t, ticket, now_ms: t.verify(ticket, transactional_id, producer, partitions),
        )

    async def end(self, end: End) -> Identified:
        _check_id(end.transactional_id)
        identified: Identified | NeedsProducerId = await self.run(
            end.transactional_id, lambda t, ticket, now_ms: t.end(ticket, end, now_ms)
        )
        if isinstance(identified, NeedsProducerId):
            return await self.end(replace(end, unused_id=await self._ids.next()))
        return identified

    # Ends

    async def note_loaded(self, shard: TransactionShard) -> None:
        for prepared in shard.machine.prepared():
            self._begin_end(shard, prepared)

    def note_prepared(self, index: int, prepared: Transaction) -> None:
        """Write the markers of a transaction whose prepared end is committed."""
        shard = self._shards.get(index)
        if shard is not None:  # else the next coordinator finds it prepared
            self._begin_end(shard, prepared)

    def _begin_end(self, shard: TransactionShard, prepared: Transaction) -> None:
        assert prepared.is_prepared, "only a prepared transaction ends"
        self._ending.setdefault(prepared.transactional_id, asyncio.Event())
        self.spawn(self._finish(shard, prepared))

    async def _finish(self, shard: TransactionShard, prepared: Transaction) -> None:
        try:
            if await self.markers.write_all(
                prepared, shard.log.partition.leader_epoch, lambda: not shard.is_dropped
            ):
                await shard.run(lambda t, ticket, now_ms: t.complete(ticket, prepared, now_ms))
        except ApiError as problem:  # the next coordinator finds it prepared
            log.info(
                "transaction end left to the next coordinator",
                extra={"transactional_id": prepared.transactional_id, "reason": problem},
            )
        finally:
            ended = self._ending.pop(prepared.transactional_id, None)
            if ended is not None:
                ended.set()

    async def _wait_end(self, transactional_id: str) -> bool:
        """True if the transaction that was ending has ended within the timeout."""
        ending = self._ending.get(transactional_id)
        if ending is None:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await ending.wait()
        return ending.is_set()

    # Expiry

    async def expire(self) -> None:
        """Drop transactional ids that have not been used for too long."""
        idle_ms = self._settings.broker.transactional_id_expiry_ms
        for shard in list(self._shards.values()):
            try:
                count: int = await shard.run(
                    lambda t, ticket, now_ms: t.expire(ticket, idle_ms, now_ms)
                )
            except ApiError as problem:
                log.debug(
                    "transactional id expiry postponed",
                    extra={"tp": shard.log.partition.tp, "reason": problem},
                )
                continue
            if count:
                extra = {"tp": shard.log.partition.tp, "count": count}
                log.info("transactional ids expired", extra=extra)


class _PreparedTicket(Ticket[Transaction]):
    """Starts the end of each transaction that the machine of one shard has prepared."""

    __slots__ = ("_coordinator", "_index")

    def __init__(self, coordinator: TransactionCoordinator, index: int) -> None:
        self._coordinator = coordinator
        self._index = index

    def deliver(self, value: Transaction) -> None:
        self._coordinator.note_prepared(self._index, value)

    def fail(self, error: ApiError) -> None:
        raise AssertionError("the owner of a shard is not one of its waiting requests") from error


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise InvalidRequest("a transactional id must not be empty")
