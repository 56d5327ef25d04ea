"""What clients ask before they write or read."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from ottla.broker.groups import GroupApis
from ottla.broker.late_handlers import Answering, LateHandlers
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.topic_creation import TopicCreation
from ottla.broker.transactions import TransactionApis
from ottla.cluster.state import ClusterState
from ottla.protocol.api import ApiKey
from ottla.replication.replicas import Replicas

QUESTION_KEYS: Final = (
    ApiKey.METADATA,
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.DESCRIBE_PRODUCERS,
)


class Questions(LateHandlers):
    def __init__(
        self,
        state: ClusterState,
        replicas: Replicas,
        creation: TopicCreation,
        groups: GroupApis,
        transactions: TransactionApis,
        producer_ids: ProducerIds,
    ) -> None:
        super().__init__()
        self._state = state
        self._replicas = replicas
        self._creation = creation
        self._groups = groups
        self._transactions = transactions
        self._producer_ids = producer_ids

    def _make_handlers(self) -> Mapping[ApiKey, Answering]:
        from ottla.broker.handlers import (  # noqa: PLC0415
            coordination,
            metadata,
            offsets,
            producers,
        )

        replicas, transactions = self._replicas, self._transactions
        return {
            ApiKey.METADATA: metadata.Metadata(self._state, replicas, self._creation),
            ApiKey.LIST_OFFSETS: offsets.ListOffsets(replicas),
            ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.OffsetForLeaderEpoch(replicas),
            ApiKey.FIND_COORDINATOR: coordination.FindCoordinator(
                {
                    coordination.GROUP: self._groups.find,
                    coordination.TRANSACTION: transactions.find,
                }
            ),
            ApiKey.INIT_PRODUCER_ID: producers.InitProducerId(
                self._producer_ids, partial(transactions.answer, ApiKey.INIT_PRODUCER_ID)
            ),
            ApiKey.DESCRIBE_PRODUCERS: producers.DescribeProducers(replicas),
        }
