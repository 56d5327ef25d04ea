"""WriteTxnMarkers (27), 1 to 2; DescribeTransactions (65), 0; ListTransactions (66), 0 to 2.

Markers come from coordinators of other brokers, and from administrators who end a hanging
transaction, which no coordinator knows. A broker proves who it is with its registration's token; a
sender without one may abort, and is refused with 31 if it commits. The response is sent once the
markers are committed; one that is older than the partition's producer epoch or coordinator epoch is
refused with 47 or 52, and one for another leader epoch with 74 or 75.

ListTransactions takes regular expressions, but none that could take long: no group may repeat or
look around, and at most two parts of an expression may repeat.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from hmac import compare_digest
from typing import Final, NamedTuple

from ottla.broker.services import RequestContext, Services
from ottla.broker.slices import Pace, finish, parts
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.markers import TransactionEnd
from ottla.coordinator.transactions.records import State, Transaction
from ottla.errors import ApiError, ClusterAuthorizationFailed, ErrorCode, InvalidRequest
from ottla.model import NO_EPOCH, NO_UUID, ProducerEpoch, ProducerId, TopicPartition
from ottla.protocol.codec import Steps
from ottla.protocol.messages.transactions import (
    DescribedTransaction,
    DescribedTransactionTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
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
_BROKER_S: Final = 2.0  # for a marker of a broker to be committed: it sends it again


class _Wanted(NamedTuple):
    """A marker for one partition; `number` is that of the request's marker."""

    number: int
    tp: TopicPartition
    end: TransactionEnd
    leader_epoch: int  # that the coordinator knows; NO_EPOCH for any


class WriteTxnMarkers:
    def __init__(self, services: Services) -> None:
        self._markers = services.transactions.markers
        self._state = services.state
        self._sequences: dict[bytes, int] = {}  # of the newest request of each broker, by token

    async def __call__(
        self, request: WriteTxnMarkersRequest, context: RequestContext
    ) -> WriteTxnMarkersResponse:
        wanted = await finish(_wanted(request))
        try:
            self._check_sender(request)
        except ApiError as refused:
            errors = [refused.code] * len(wanted)
        else:
            errors = await self._write_all(request, wanted)
        return WriteTxnMarkersResponse(markers=await finish(_marked(request, wanted, errors)))

    def _check_sender(self, request: WriteTxnMarkersRequest) -> None:
        """Refuse commits of a sender that is not a broker; administrators only abort."""
        token = request.broker_token
        if token == NO_UUID:
            if any(marker.transaction_result for marker in request.markers):
                raise ClusterAuthorizationFailed("only brokers of this cluster commit transactions")
            return
        registered = self._state.image.registered.values()
        if not any(one.token and compare_digest(one.token, token) for one in registered):
            raise ClusterAuthorizationFailed("only brokers of this cluster prove who they are")
        if request.sequence > self._sequences.get(token, 0):
            known = {one.token for one in registered}
            self._sequences = {one: last for one, last in self._sequences.items() if one in known}
            self._sequences[token] = request.sequence

    async def _write_all(
        self, request: WriteTxnMarkersRequest, wanted: Sequence[_Wanted]
    ) -> list[ErrorCode]:
        errors, pace = list[ErrorCode](), Pace()
        for part in parts(wanted, _MARKERS_PER_TURN):
            errors += await asyncio.gather(*(self._write(request, one) for one in part))
            await pace.spend(len(part))
        return errors

    async def _write(self, request: WriteTxnMarkersRequest, wanted: _Wanted) -> ErrorCode:
        """Write a marker; one that takes long must not hold up others of the same broker."""
        is_broker = request.broker_token != NO_UUID
        try:
            if is_broker and request.sequence < self._sequences.get(request.broker_token, 0):
                raise InvalidRequest("the broker has sent a later request: this one is outdated")
            async with asyncio.timeout(_BROKER_S if is_broker else None):
                await self._markers.write(wanted.tp, wanted.end, wanted.leader_epoch)
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT
        except ApiError as refused:
            return refused.code
        return ErrorCode.NONE


def _wanted(request: WriteTxnMarkersRequest) -> Steps[list[_Wanted]]:
    """Every marker of a request, in its order."""
    wanted = []
    for number, marker in enumerate(request.markers):
        end = TransactionEnd(
            ProducerIdentity(ProducerId(marker.producer_id), ProducerEpoch(marker.producer_epoch)),
            marker.transaction_result,
            marker.coordinator_epoch,
            marker.transaction_version,
        )
        for topic in marker.topics:
            epochs = dict(zip(topic.partition_indexes, topic.leader_epochs, strict=False))
            for index in topic.partition_indexes:
                tp = TopicPartition(topic.name, index)
                wanted.append(_Wanted(number, tp, end, epochs.get(index, NO_EPOCH)))
                yield 1
        yield 1
    return wanted


def _marked(
    request: WriteTxnMarkersRequest, wanted: Sequence[_Wanted], errors: Sequence[ErrorCode]
) -> Steps[list[WritableTxnMarkerResult]]:
    results = [WritableTxnMarkerResult(producer_id=one.producer_id) for one in request.markers]
    topics: dict[tuple[int, str], WritableTxnMarkerTopicResult] = {}
    for (number, tp, _, _), error in zip(wanted, errors, strict=True):
        topic = topics.get((number, tp.topic))
        if topic is None:
            topic = topics[number, tp.topic] = WritableTxnMarkerTopicResult(name=tp.topic)
            results[number].topics.append(topic)
        topic.partitions.append(
            WritableTxnMarkerPartitionResult(partition_index=tp.partition, error_code=error)
        )
        yield 1
    return results


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
