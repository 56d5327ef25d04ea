"""What can be asked about transactions, from when the first one shows up."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.broker.coordinator_apis import CoordinatorApis
from ottla.broker.groups import GroupApis
from ottla.broker.late_handlers import Answering
from ottla.broker.pending import Answer, Pending
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.settings import Settings
from ottla.broker.topic_creation import TRANSACTIONS_TOPIC, TopicCreation
from ottla.clock import Clock
from ottla.cluster.state import ClusterState
from ottla.protocol.api import ApiKey
from ottla.protocol.hot_produce import ProduceRequest
from ottla.replication.replicas import Replicas

if TYPE_CHECKING:
    from ottla.broker.held_produces import Admission, HeldProduces
    from ottla.broker.transaction_coordinator import TransactionCoordinator
    from ottla.coordinator.log_entries import TransactionEnded

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


class TransactionApis(CoordinatorApis["TransactionCoordinator"]):
    topic = TRANSACTIONS_TOPIC

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
        super().__init__(state, replicas, settings, creation, clock, note_defect)
        self._groups = groups
        self._ids = ids
        self._held: HeldProduces | None = None

    def hold_produce(
        self,
        request: ProduceRequest,
        version: int,
        keep: "Callable[[], Callable[[Admission], Answer]]",
    ) -> Pending | None:
        """A promise, when the request's transaction has to be asked for first."""
        self._ensure_made()
        assert self._held is not None
        return self._held.hold(request, version, keep)

    def close(self) -> None:
        super().close()
        if self._held is not None:
            self._held.close()

    def _make(self) -> "TransactionCoordinator":
        from ottla.broker.held_produces import HeldProduces  # noqa: PLC0415
        from ottla.broker.markers import Markers  # noqa: PLC0415
        from ottla.broker.transaction_coordinator import TransactionCoordinator  # noqa: PLC0415

        coordinator = TransactionCoordinator(
            self._state,
            self._replicas,
            self._settings,
            self._creation,
            self._clock,
            self._note_defect,
            self._ids,
            Markers(self._replicas, self._clock, self._note_marker),
        )
        self._held = HeldProduces(self._replicas, coordinator, self._note_defect)
        return coordinator

    def _make_handlers(self, coordinator: "TransactionCoordinator") -> Mapping[ApiKey, Answering]:
        from ottla.broker.handlers import (  # noqa: PLC0415
            transaction_admin,
            transactional_offsets,
            transactions,
        )

        return {
            ApiKey.INIT_PRODUCER_ID: transactions.InitProducerId(coordinator),
            ApiKey.ADD_PARTITIONS_TO_TXN: transactions.AddPartitionsToTxn(coordinator, self._state),
            ApiKey.ADD_OFFSETS_TO_TXN: transactions.AddOffsetsToTxn(coordinator, self._groups),
            ApiKey.END_TXN: transactions.EndTxn(coordinator),
            ApiKey.TXN_OFFSET_COMMIT: transactional_offsets.TxnOffsetCommit(
                self._groups.coordinator, coordinator, self._state
            ),
            ApiKey.WRITE_TXN_MARKERS: transaction_admin.WriteTxnMarkers(coordinator.markers),
            ApiKey.DESCRIBE_TRANSACTIONS: transaction_admin.DescribeTransactions(coordinator),
            ApiKey.LIST_TRANSACTIONS: transaction_admin.ListTransactions(coordinator),
        }

    def _note_marker(
        self,
        index: int,
        ended: "TransactionEnded",
        write: Callable[[], "asyncio.Future[None]"],
    ) -> "asyncio.Future[None]":
        return self._groups.coordinator.note_marker(index, ended, write)
