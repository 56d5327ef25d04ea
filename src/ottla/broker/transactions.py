"""The handlers of transactions, and what they rest on, imported when the first one shows up.

A broker that only moves records starts without them.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.answers import Answer, Pending
from ottla.broker.groups import GroupApis
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.routes import RequestContext
from ottla.broker.settings import Settings
from ottla.broker.topic_creation import TRANSACTIONS_TOPIC, TopicCreation
from ottla.clock import Clock
from ottla.cluster.image import BrokerImage, ClusterImage
from ottla.cluster.state import ClusterState
from ottla.protocol.api import ApiKey
from ottla.protocol.hot import ProduceRequest
from ottla.replication.replicas import Replicas

if TYPE_CHECKING:
    from ottla.broker.held_produces import Admission, HeldProduces
    from ottla.broker.transaction_coordinator import TransactionCoordinator
    from ottla.coordinator.entries import TransactionEnded

TRANSACTION_KEYS: Final = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
)

Answering = Callable[[Any, RequestContext], Any]


class TransactionApis:
    """Makes the coordinator and all handlers at the first request, or when there are ids."""

    def __init__(
        self,
        state: ClusterState,
        replicas: Replicas,
        settings: Settings,
        creation: TopicCreation,
        clock: Clock,
        groups: GroupApis,
        ids: ProducerIds,
        note_defect: Callable[[BaseException], None],
    ) -> None:
        self._state = state
        self._replicas = replicas
        self._settings = settings
        self._creation = creation
        self._clock = clock
        self._groups = groups
        self._ids = ids
        self._note_defect = note_defect
        self._coordinator: TransactionCoordinator | None = None
        self._held: HeldProduces | None = None
        self._handlers: dict[ApiKey, Answering] = {}

    def answer(self, key: ApiKey, request: Any, context: RequestContext) -> Any:
        self._made()
        return self._handlers[key](request, context)

    async def find(self, transactional_id: str) -> BrokerImage:
        """The broker that coordinates this id."""
        return await self._made().find(transactional_id)

    def hold_produce(
        self,
        request: ProduceRequest,
        version: int,
        keep: "Callable[[], Callable[[Admission], Answer]]",
    ) -> Pending | None:
        """A promise, when the request's transaction has to be asked for first."""
        self._made()
        assert self._held is not None
        return self._held.hold(request, version, keep)

    @property
    def coordinator(self) -> "TransactionCoordinator":
        return self._made()

    def open(self) -> None:
        """The broker begins to serve: what was prepared goes on, what is open times out."""
        if TRANSACTIONS_TOPIC in self._state.image.topics:
            self._made()

    def close(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()
        if self._held is not None:
            self._held.close()

    def note_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if self._coordinator is not None:
            self._coordinator.note_image(old, new)

    async def expire(self) -> None:
        if self._coordinator is not None:
            await self._coordinator.expire()

    def _made(self) -> "TransactionCoordinator":
        if self._coordinator is None:
            self._coordinator = self._make()
            self._coordinator.follow()
        return self._coordinator

    def _make(self) -> "TransactionCoordinator":
        from ottla.broker.handlers import (  # noqa: PLC0415
            transaction_admin,
            transactional_offsets,
            transactions,
        )
        from ottla.broker.held_produces import HeldProduces  # noqa: PLC0415
        from ottla.broker.markers import Markers  # noqa: PLC0415
        from ottla.broker.transaction_coordinator import TransactionCoordinator  # noqa: PLC0415

        markers = Markers(self._replicas, self._clock, self._note_marker)
        coordinator = TransactionCoordinator(
            self._state,
            self._replicas,
            self._settings,
            self._creation,
            self._clock,
            self._note_defect,
            self._ids,
            markers,
        )
        self._held = HeldProduces(self._replicas, coordinator, self._note_defect)
        self._handlers = {
            ApiKey.INIT_PRODUCER_ID: transactions.InitProducerId(coordinator),
            ApiKey.ADD_PARTITIONS_TO_TXN: transactions.AddPartitionsToTxn(coordinator, self._state),
            ApiKey.ADD_OFFSETS_TO_TXN: transactions.AddOffsetsToTxn(coordinator, self._groups),
            ApiKey.END_TXN: transactions.EndTxn(coordinator),
            ApiKey.TXN_OFFSET_COMMIT: transactional_offsets.TxnOffsetCommit(
                self._groups.coordinator, coordinator, self._state
            ),
            ApiKey.WRITE_TXN_MARKERS: transaction_admin.WriteTxnMarkers(markers),
            ApiKey.DESCRIBE_TRANSACTIONS: transaction_admin.DescribeTransactions(coordinator),
            ApiKey.LIST_TRANSACTIONS: transaction_admin.ListTransactions(coordinator),
        }
        return coordinator

    def _note_marker(
        self,
        index: int,
        ended: "TransactionEnded",
        write: Callable[[], "asyncio.Future[None]"],
    ) -> "asyncio.Future[None]":
        return self._groups.coordinator.note_marker(index, ended, write)
