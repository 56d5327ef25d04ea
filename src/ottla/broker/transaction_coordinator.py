"""The transactions of this broker: a shard for each partition of their topic that it leads."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final

from ottla.broker.markers import Markers
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.settings import Settings
from ottla.broker.shards import Led, Shards
from ottla.broker.topic_creation import TRANSACTIONS_TOPIC, TopicCreation
from ottla.clock import Clock
from ottla.cluster.state import ClusterState
from ottla.coordinator.log_entries import Entry, ProducerIdentity, TransactionEnded
from ottla.coordinator.transaction_records import (
    Transaction,
    TransactionRecord,
    from_bytes,
    to_bytes,
)
from ottla.coordinator.transactions import (
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

log = logging.getLogger("ottla.broker")

_END_S: Final = 1.0  # so long whoever begins the next transaction waits for the end of the last


class TransactionCoordinator(Shards[Transactions]):
    """Transactional ids, and the markers of what was prepared: here, or before a crash."""

    topic = TRANSACTIONS_TOPIC

    def __init__(
        self,
        state: ClusterState,
        replicas: Replicas,
        settings: Settings,
        creation: TopicCreation,
        clock: Clock,
        note_defect: Callable[[BaseException], None],
        ids: ProducerIds,
        markers: Markers,
    ) -> None:
        super().__init__(state, replicas, creation, clock, note_defect)
        self._settings = settings
        self._ids = ids
        self.markers = markers
        self._ending: dict[str, asyncio.Event] = {}

    def new_machine(self) -> Transactions:
        return Transactions()

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
        answer: Identified | NeedsProducerId = await self.run(
            init.transactional_id, lambda t, ticket, now_ms: t.init(ticket, init, now_ms)
        )
        if isinstance(answer, NeedsProducerId):
            self._check_room(init.transactional_id)
            return await self.init(replace(init, unused_id=await self._ids.next()))
        return answer

    def _check_room(self, transactional_id: str) -> None:
        """Refuse one more transactional id than may be remembered."""
        known = [led.shard.machine.by_id for led in self._shards.values()]
        ids_max = self._settings.broker.transactional_ids_max
        if sum(map(len, known)) >= ids_max and not any(transactional_id in one for one in known):
            raise PolicyViolation(
                f"the broker remembers {ids_max} transactional ids, as many as"
                " max.transactional.ids allows: use fewer, or raise it"
            )

    async def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        version: int,
    ) -> ErrorCode:
        """The first of a transaction may come while the last one ends: it waits a little."""
        _check_id(transactional_id)

        async def ask() -> ErrorCode:
            error: ErrorCode = await self.run(
                transactional_id,
                lambda t, ticket, now_ms: t.add(
                    ticket, transactional_id, producer, partitions, version, now_ms
                ),
            )
            return error

        error = await ask()
        if error is ErrorCode.CONCURRENT_TRANSACTIONS and await self._wait_end(transactional_id):
            return await ask()
        return error

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
    ) -> list[ErrorCode]:
        """One error for each: whether it is part of the producer's open transaction."""
        _check_id(transactional_id)
        errors: list[ErrorCode] = await self.run(
            transactional_id,
            lambda t, ticket, now_ms: t.verify(ticket, transactional_id, producer, partitions),
        )
        return errors

    async def end(self, end: End) -> Identified:
        _check_id(end.transactional_id)
        answer: Identified | NeedsProducerId = await self.run(
            end.transactional_id, lambda t, ticket, now_ms: t.end(ticket, end, now_ms)
        )
        if isinstance(answer, NeedsProducerId):
            return await self.end(replace(end, unused_id=await self._ids.next()))
        return answer

    # Ends

    async def note_loaded(self, led: Led[Transactions]) -> None:
        for prepared in led.shard.machine.prepared():
            self.note_told(led, prepared)

    def note_told(self, led: Led[Transactions], answer: Any) -> None:
        """A transaction is prepared, and that is committed: it can only end this way now."""
        prepared: Transaction = answer
        self._ending.setdefault(prepared.transactional_id, asyncio.Event())
        self.spawn(self._finish(led, prepared))

    async def _finish(self, led: Led[Transactions], prepared: Transaction) -> None:
        shard = led.shard
        try:
            if await self.markers.write_all(
                prepared, led.partition.leader_epoch, lambda: not shard.is_dropped
            ):
                await shard.run(lambda t, ticket, now_ms: t.complete(ticket, prepared, now_ms))
        except ApiError as problem:  # lost: whoever reads the log next finds it prepared
            log.info("an end is left to the next coordinator", extra={"reason": problem})
        finally:
            over = self._ending.pop(prepared.transactional_id, None)
            if over is not None:
                over.set()

    async def _wait_end(self, transactional_id: str) -> bool:
        """Whether the transaction that was ending has ended, within a moment."""
        ending = self._ending.get(transactional_id)
        if ending is None:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await ending.wait()
        return ending.is_set()

    # Chores

    async def expire(self) -> None:
        """Forget transactional ids that nobody uses any more."""
        idle_ms = self._settings.broker.transactional_id_expiry_ms
        for led in list(self._shards.values()):
            try:
                count = await led.shard.run(
                    lambda t, ticket, now_ms: t.expire(ticket, idle_ms, now_ms)
                )
            except ApiError as problem:
                log.debug("transactional ids do not expire now", extra={"reason": problem})
                continue
            if count:
                log.info(
                    "transactional ids expired", extra={"tp": led.partition.tp, "count": count}
                )


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise InvalidRequest("a transactional id must not be empty")
