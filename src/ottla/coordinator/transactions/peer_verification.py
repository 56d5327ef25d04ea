"""Verification by the transaction coordinators of other brokers, with AddPartitionsToTxn (KIP-890).

Partitions that need the same coordinator at the same time share a request, and one is under way to
it at a time.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.errors import ApiError, ErrorCode, NotCoordinator
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.replication.peers import PeerBatches, Peers

_RESPONSE_S: Final = 5.0
_TRANSACTIONS_MAX: Final = 500  # of one request

Errors = list[ErrorCode]


class _Item(NamedTuple):
    """A transaction, and partitions to add or to verify."""

    transactional_id: str
    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]
    only_verify: bool


class PeerVerification:
    """Asks the transaction coordinators of other brokers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._batches: PeerBatches[_Item, Errors] = PeerBatches(
            peers, self._exchange, items_max=_TRANSACTIONS_MAX, key=_key
        )

    async def add(
        self,
        peer: BrokerId,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
    ) -> ErrorCode:
        """Add partitions to the transaction of a producer of version 2, all or none."""
        item = _Item(transactional_id, producer, tuple(partitions), only_verify=False)
        errors = await self._batches.ask(peer, item)
        return next((error for error in errors if error is not ErrorCode.NONE), ErrorCode.NONE)

    async def verify(
        self,
        peer: BrokerId,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
    ) -> Errors:
        """An error for each partition that is not part of the producer's open transaction."""
        item = _Item(transactional_id, producer, tuple(partitions), only_verify=True)
        return await self._batches.ask(peer, item)

    async def _exchange(
        self, peer: BrokerId, items: Sequence[_Item]
    ) -> Sequence[Errors | ApiError]:
        request = AddPartitionsToTxnRequest(transactions=[_transaction(item) for item in items])
        response = await self._peers.send(
            peer, request, AddPartitionsToTxnResponse, timeout_s=_RESPONSE_S, lane="verification"
        )
        codes = {
            (result.transactional_id, TopicPartition(topic.name, one.partition_index)): ErrorCode(
                one.partition_error_code
            )
            for result in response.results_by_transaction
            for topic in result.topic_results
            for one in topic.results_by_partition
        }
        missing = NotCoordinator(f"broker {peer} did not respond about the transaction")
        return [
            [codes[item.transactional_id, tp] for tp in item.partitions]
            if all((item.transactional_id, tp) in codes for tp in item.partitions)
            else missing
            for item in items
        ]


def _key(item: _Item) -> str:
    return item.transactional_id  # a coordinator refuses an id that a request names twice


def _transaction(item: _Item) -> AddPartitionsToTxnTransaction:
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for tp in item.partitions:
        topic = topics.setdefault(tp.topic, AddPartitionsToTxnTopic(name=tp.topic))
        topic.partitions.append(tp.partition)
    return AddPartitionsToTxnTransaction(
        transactional_id=item.transactional_id,
        producer_id=item.producer.id,
        producer_epoch=item.producer.epoch,
        verify_only=item.only_verify,
        topics=list(topics.values()),
    )
