"""What can be asked about transactions: list and describe them, end them for their producers."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import Refused, check
from ottla.client.producer import TRANSPORT_PROBLEMS
from ottla.errors import ErrorCode
from ottla.model import BrokerId, Offset, ProducerId, TimestampMs, TopicPartition
from ottla.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersRequestTopic,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from ottla.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_FENCING_TIMEOUT_MS: Final = 1  # nobody will open a transaction with it


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSummary:
    """A transactional id in a list of them."""

    transactional_id: str
    producer_id: ProducerId
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id with what is open under it; `started_ms` is None when nothing is."""

    transactional_id: str
    state: str
    producer_id: ProducerId
    producer_epoch: int
    timeout_ms: int
    started_ms: TimestampMs | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction as a partition knows it: begun here, and not ended."""

    tp: TopicPartition
    producer_id: ProducerId
    producer_epoch: int
    coordinator_epoch: int
    start_offset: Offset


async def list_transactions(
    client: Client,
    *,
    states: Sequence[str] = (),
    pattern: str | None = None,
    open_for_ms: int = -1,
) -> list[TransactionSummary]:
    """Every transactional id that matches, of all coordinators."""
    request = ListTransactionsRequest(
        state_filters=list(states),
        duration_filter=open_for_ms,
        transactional_id_pattern=pattern,
    )
    brokers = (await client.describe([])).brokers
    lists = await asyncio.gather(
        *(client.retry(partial(_list_at, client, broker, request)) for broker in brokers)
    )
    return sorted((one for part in lists for one in part), key=lambda one: one.transactional_id)


async def _list_at(
    client: Client, broker: BrokerId, request: ListTransactionsRequest
) -> list[TransactionSummary]:
    answer = await client.ask_broker(broker, request, ListTransactionsResponse)
    check(answer.error_code, "transactions")
    if answer.unknown_state_filters:
        unknown = ", ".join(answer.unknown_state_filters)
        raise Refused(ErrorCode.INVALID_REQUEST, "transactions", f"no such state: {unknown}")
    return [
        TransactionSummary(
            transactional_id=one.transactional_id,
            producer_id=ProducerId(one.producer_id),
            state=one.transaction_state,
        )
        for one in answer.transaction_states
    ]


async def describe_transaction(client: Client, transactional_id: str) -> TransactionDescription:
    """What its coordinator knows; an unknown id is `Refused`."""
    return await client.retry(lambda: _describe(client, transactional_id))


async def describe_transactions(
    client: Client, transactional_ids: Iterable[str]
) -> dict[str, TransactionDescription]:
    """What coordinators know of these ids; unknown ones are left out."""

    async def find(transactional_id: str) -> TransactionDescription | None:
        try:
            return await client.retry(
                lambda: _describe(client, transactional_id), on=TRANSPORT_PROBLEMS
            )
        except Refused as problem:
            if problem.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            return None

    found = await asyncio.gather(*map(find, transactional_ids))
    return {one.transactional_id: one for one in found if one is not None}


async def _describe(client: Client, transactional_id: str) -> TransactionDescription:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    answer = await client.ask_transaction_coordinator(
        transactional_id, request, DescribeTransactionsResponse
    )
    (one,) = answer.transaction_states
    check(one.error_code, f"transactional id {transactional_id}")
    return TransactionDescription(
        transactional_id=transactional_id,
        state=one.transaction_state,
        producer_id=ProducerId(one.producer_id),
        producer_epoch=one.producer_epoch,
        timeout_ms=one.transaction_timeout_ms,
        started_ms=TimestampMs(one.transaction_start_time_ms) if one.topics else None,
        partitions=tuple(
            TopicPartition(topic.topic, index) for topic in one.topics for index in topic.partitions
        ),
    )


async def fence_producer(client: Client, transactional_id: str) -> None:
    """Abort what is open under an id and fence its producer, by taking the producer's place."""
    await describe_transaction(client, transactional_id)  # do not make one that nobody has
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=_FENCING_TIMEOUT_MS
    )

    async def attempt() -> None:
        answer = await client.ask_transaction_coordinator(
            transactional_id, request, InitProducerIdResponse
        )
        check(answer.error_code, f"transactional id {transactional_id}")

    await client.retry(attempt)


async def open_transactions(client: Client, tp: TopicPartition) -> list[OpenTransaction]:
    """What is open in a partition, first things first."""
    topic = DescribeProducersRequestTopic(name=tp.topic, partition_indexes=[tp.partition])
    answer = await client.ask_broker(
        await client.leader_of(tp),
        DescribeProducersRequest(topics=[topic]),
        DescribeProducersResponse,
    )
    (partition,) = answer.topics[0].partitions
    check(partition.error_code, str(tp), partition.error_message)
    found = [
        OpenTransaction(
            tp=tp,
            producer_id=ProducerId(one.producer_id),
            producer_epoch=one.producer_epoch,
            coordinator_epoch=one.coordinator_epoch,
            start_offset=Offset(one.current_txn_start_offset),
        )
        for one in partition.active_producers
        if one.current_txn_start_offset >= 0
    ]
    return sorted(found, key=lambda one: one.start_offset)


async def abort_in_partition(client: Client, hanging: OpenTransaction) -> None:
    """End a transaction in one partition only: for one that no coordinator will end."""
    tp = hanging.tp
    marker = WritableTxnMarker(
        producer_id=hanging.producer_id,
        producer_epoch=hanging.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
        coordinator_epoch=max(hanging.coordinator_epoch, 0),
        transaction_version=0,
    )
    answer = await client.ask_broker(
        await client.leader_of(tp),
        WriteTxnMarkersRequest(markers=[marker]),
        WriteTxnMarkersResponse,
    )
    check(answer.markers[0].topics[0].partitions[0].error_code, str(tp))
