"""WriteTxnMarkers (27), 1 to 2; DescribeTransactions (65), 0; ListTransactions (66), 0 to 2.

Markers come from coordinators, and from administrators who end a hanging transaction, which no
coordinator knows. The response is sent once the markers are committed; one that is older than the
partition's producer epoch or coordinator epoch is refused with 47 or 52.

ListTransactions takes regular expressions, but none that could take long: no group may repeat or
look around, and at most two parts of an expression may repeat.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from ottla.broker.services import RequestContext, Services
from ottla.broker.slices import Pace, finish, parts
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.markers import TransactionEnd
from ottla.coordinator.transactions.records import State, Transaction
from ottla.errors import ApiError, ErrorCode
from ottla.model import ProducerEpoch, ProducerId, TopicPartition
from ottla.protocol.codec import Steps
from ottla.protocol.messages.transactions import (
    DescribedTransaction,
    DescribedTransactionTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_STATES: Final = {state.title: state for state in State}
_SLOW: Final = re.compile(r"\(\?|\\\d|\)[*+?{]|(?:[*+{].*){3}", re.DOTALL)
_MATCHED_LENGTH_MAX: Final = 1000
_MARKERS_PER_TURN: Final = 100  # markers that are written in one turn of the loop


class WriteTxnMarkers:
    def __init__(self, services: Services) -> None:
        self._markers = services.transactions.markers

    async def __call__(
        self, request: WriteTxnMarkersRequest, context: RequestContext
    ) -> WriteTxnMarkersResponse:
        markers, pace = [], Pace()
        for marker in request.markers:
            markers.append(await self._write(marker, pace))
            await pace.spend(2)
        return WriteTxnMarkersResponse(markers=markers)

    async def _write(self, marker: WritableTxnMarker, pace: Pace) -> WritableTxnMarkerResult:
        end = TransactionEnd(
            ProducerIdentity(ProducerId(marker.producer_id), ProducerEpoch(marker.producer_epoch)),
            marker.transaction_result,
            marker.coordinator_epoch,
            marker.transaction_version,
        )
        tps = [
            TopicPartition(topic.name, index)
            for topic in marker.topics
            for index in topic.partition_indexes
        ]
        errors: list[ErrorCode] = []
        for part in parts(tps, _MARKERS_PER_TURN):
            errors += await asyncio.gather(*(self._write_one(tp, end) for tp in part))
            await pace.spend(len(part))
        topics = await finish(_marked(tps, errors))
        return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)

    async def _write_one(self, tp: TopicPartition, end: TransactionEnd) -> ErrorCode:
        try:
            await self._markers.write(tp, end)
        except ApiError as refused:
            return refused.code
        return ErrorCode.NONE


def _marked(
    tps: Sequence[TopicPartition], errors: Sequence[ErrorCode]
) -> Steps[list[WritableTxnMarkerTopicResult]]:
    by_topic: defaultdict[str, list[WritableTxnMarkerPartitionResult]] = defaultdict(list)
    for tp, error in zip(tps, errors, strict=True):
        by_topic[tp.topic].append(
            WritableTxnMarkerPartitionResult(partition_index=tp.partition, error_code=error)
        )
        yield 1
    return [
        WritableTxnMarkerTopicResult(name=name, partitions=partitions)
        for name, partitions in by_topic.items()
    ]


class DescribeTransactions:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.transactions

    async def __call__(
        self, request: DescribeTransactionsRequest, context: RequestContext
    ) -> DescribeTransactionsResponse:
        described, pace = [], Pace()
        for transactional_id in request.transactional_ids:
            found = await self._describe(transactional_id)
            described.append(found)
            await pace.spend(4 + sum(len(topic.partitions) for topic in found.topics))
        return DescribeTransactionsResponse(transaction_states=described)

    async def _describe(self, transactional_id: str) -> DescribedTransaction:
        if not transactional_id:
            return _no_transaction(transactional_id, ErrorCode.INVALID_REQUEST)
        try:
            found: Transaction | None = await self._coordinator.run(
                transactional_id,
                lambda t, ticket, now_ms: t.describe(ticket, transactional_id),
            )
        except ApiError as refused:
            return _no_transaction(transactional_id, refused.code)
        if found is None:
            return _no_transaction(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        by_topic: defaultdict[str, list[int]] = defaultdict(list)
        for topic, index in sorted(found.partitions):
            by_topic[topic].append(index)
        return DescribedTransaction(
            transactional_id=transactional_id,
            transaction_state=found.state.title,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.started_ms,
            producer_id=found.producer.id,
            producer_epoch=found.producer.epoch,
            topics=[
                DescribedTransactionTopic(topic=topic, partitions=indexes)
                for topic, indexes in by_topic.items()
            ],
        )


def _no_transaction(transactional_id: str, error: ErrorCode) -> DescribedTransaction:
    return DescribedTransaction(
        error_code=error,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )


class ListTransactions:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.transactions

    async def __call__(
        self, request: ListTransactionsRequest, context: RequestContext
    ) -> ListTransactionsResponse:
        unknown = [title for title in request.state_filters if title not in _STATES]
        states = {_STATES[title] for title in request.state_filters if title in _STATES}
        pattern = request.transactional_id_pattern
        try:
            matches = _matcher(pattern) if pattern else None
        except re.error:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        try:
            shards: list[list[Transaction]] = await self._coordinator.run_everywhere(
                lambda t, ticket, now_ms: t.list(ticket)
            )
        except ApiError as refused:
            return ListTransactionsResponse(error_code=refused.code)
        before_ms = self._coordinator.now_ms() - request.duration_filter
        producer_ids = frozenset(request.producer_id_filters)

        def is_listed(found: Transaction) -> bool:
            return (
                (not request.state_filters or found.state in states)
                and (not producer_ids or found.producer.id in producer_ids)
                and (request.duration_filter < 0 or _is_open_since(found, before_ms))
                and (matches is None or matches(found.transactional_id))
            )

        return ListTransactionsResponse(
            unknown_state_filters=unknown,
            transaction_states=await finish(_listed(shards, is_listed)),
        )


def _listed(
    shards: Sequence[Sequence[Transaction]], is_listed: Callable[[Transaction], bool]
) -> Steps[list[ListedTransaction]]:
    listed = []
    for shard in shards:
        for found in shard:
            if is_listed(found):
                listed.append(
                    ListedTransaction(
                        transactional_id=found.transactional_id,
                        producer_id=found.producer.id,
                        transaction_state=found.state.title,
                    )
                )
            # An expression in which two parts repeat tries every pair of positions.
            yield 1 + min(len(found.transactional_id), _MATCHED_LENGTH_MAX) ** 2 // 2000
    return listed


def _matcher(pattern: str) -> Callable[[str], bool]:
    if len(pattern) > _MATCHED_LENGTH_MAX or _SLOW.search(pattern):
        raise re.error("this expression could take too long")
    expression = re.compile(pattern)
    return lambda text: len(text) <= _MATCHED_LENGTH_MAX and expression.fullmatch(text) is not None


def _is_open_since(found: Transaction, before_ms: int) -> bool:
    """True if the transaction has begun before `before_ms` and not ended."""
    return 0 <= found.started_ms < before_ms and (found.state is State.ONGOING or found.is_prepared)
