"""Requests on transactions: list, describe, fence a producer, abort in a partition."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import TRANSPORT_ERRORS, Refused, check
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

_FENCING_TIMEOUT_MS: Final = 1  # no transaction is opened with it


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSummary:
    """A listed transactional id."""

    transactional_id: str
    producer_id: ProducerId
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id and its transaction; `started_ms` is None if none is open."""

    transactional_id: str
    state: str
    producer_id: ProducerId
    producer_epoch: int
    timeout_ms: int
    started_ms: TimestampMs | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that is open in a partition."""

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
    response = await client.send_to_broker(broker, request, ListTransactionsResponse)
    check(response.error_code, "transactions")
    if response.unknown_state_filters:
        unknown = ", ".join(response.unknown_state_filters)
        raise Refused(ErrorCode.INVALID_REQUEST, "transactions", f"unknown state: {unknown}")
    return [
        TransactionSummary(
            transactional_id=one.transactional_id,
            producer_id=ProducerId(one.producer_id),
            state=one.transaction_state,
        )
        for one in response.transaction_states
    ]


async def describe_transaction(client: Client, transactional_id: str) -> TransactionDescription:
    """The description by its coordinator; an unknown id is `Refused`."""
    return await client.retry(lambda: _describe(client, transactional_id))


async def describe_transactions(
    client: Client, transactional_ids: Iterable[str]
) -> dict[str, TransactionDescription]:
    """Descriptions of these ids by their coordinators; unknown ones are left out."""

    async def find(transactional_id: str) -> TransactionDescription | None:
        try:
            return await client.retry(
                lambda: _describe(client, transactional_id), on=TRANSPORT_ERRORS
            )
        except Refused as problem:
            if problem.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            return None

    found = await asyncio.gather(*map(find, transactional_ids))
    return {one.transactional_id: one for one in found if one is not None}


async def _describe(client: Client, transactional_id: str) -> TransactionDescription:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    response = await client.send_to_transaction_coordinator(
        transactional_id, request, DescribeTransactionsResponse
    )
    (one,) = response.transaction_states
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
    """Abort the open transaction of an id and fence its producer, with InitProducerId."""
    await describe_transaction(
        client, transactional_id
    )  # fails for an unknown id, which must not be created
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=_FENCING_TIMEOUT_MS
    )

    async def attempt() -> None:
        response = await client.send_to_transaction_coordinator(
            transactional_id, request, InitProducerIdResponse
        )
        check(response.error_code, f"transactional id {transactional_id}")

    await client.retry(attempt)


async def open_transactions(client: Client, tp: TopicPartition) -> list[OpenTransaction]:
    """The open transactions of a partition, oldest first."""
    topic = DescribeProducersRequestTopic(name=tp.topic, partition_indexes=[tp.partition])
    response = await client.send_to_broker(
        await client.leader_of(tp),
        DescribeProducersRequest(topics=[topic]),
        DescribeProducersResponse,
    )
    (partition,) = response.topics[0].partitions
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
    """Abort a transaction in one partition, for one that no coordinator will end."""
    tp = hanging.tp
    marker = WritableTxnMarker(
        producer_id=hanging.producer_id,
        producer_epoch=hanging.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
        coordinator_epoch=max(hanging.coordinator_epoch, 0),
        transaction_version=0,
    )
    response = await client.send_to_broker(
        await client.leader_of(tp),
        WriteTxnMarkersRequest(markers=[marker]),
        WriteTxnMarkersResponse,
    )
    check(response.markers[0].topics[0].partitions[0].error_code, str(tp))
