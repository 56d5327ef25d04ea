"""AddPartitionsToTxn (24), 0 to 5; AddOffsetsToTxn (25), 0 to 4; EndTxn (26), 0 to 5.

A producer that was replaced gets PRODUCER_FENCED (90), in versions whose clients do not know it
INVALID_PRODUCER_EPOCH (47). EndTxn responds when the end is decided, and not when every partition
has its marker; with version 5 (transaction version 2) the response has the identity to go on
with. AddPartitionsToTxn and AddOffsetsToTxn wait up to a second if the transaction before is
still ending, and then respond CONCURRENT_TRANSACTIONS.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ottla.broker.services import RequestContext, Services
from ottla.broker.slices import Pace, finish
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.transactions import BUMPING_VERSION, End, Identified
from ottla.errors import ApiError, ErrorCode
from ottla.model import ProducerEpoch, ProducerId, TopicPartition
from ottla.protocol.codec import Steps
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
)

_FENCED_FROM: Final = 2
_MANY_FROM: Final = 4
_ABORTABLE_FROM: Final = 5
_END_BUMPS_FROM: Final = 5

Errors = dict[TopicPartition, ErrorCode]


class AddPartitionsToTxn:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.transactions
        self._state = services.state

    async def __call__(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> AddPartitionsToTxnResponse:
        if context.version >= _MANY_FROM:
            return AddPartitionsToTxnResponse(
                results_by_transaction=await self._answer_brokers(request, context.version)
            )
        topics = request.v3_and_below_topics
        producer = _producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        errors = await self._add(request.v3_and_below_transactional_id, producer, topics, 0)
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=await finish(
                _by_topic(
                    topics,
                    {tp: _fenced(e, context.version) for tp, e in errors.items()},
                )
            )
        )

    async def _answer_brokers(
        self, request: AddPartitionsToTxnRequest, version: int
    ) -> list[AddPartitionsToTxnResult]:
        """An id that is named again is refused: each word on it is written down as a whole."""
        results, pace = [], Pace()
        named = Counter(transaction.transactional_id for transaction in request.transactions)
        for transaction in request.transactions:
            if named[transaction.transactional_id] > 1:
                results.append(await finish(_refused(transaction, ErrorCode.INVALID_REQUEST)))
            else:
                results.append(await self._answer_broker(transaction, version))
            await pace.spend(4)
        return results

    async def _answer_broker(
        self, transaction: AddPartitionsToTxnTransaction, version: int
    ) -> AddPartitionsToTxnResult:
        """One broker asks another for the producers that write to it."""
        producer = _producer(transaction.producer_id, transaction.producer_epoch)
        asked = transaction.transactional_id, producer, transaction.topics
        if transaction.verify_only:
            errors = await self._verify(*asked, version)
        else:
            errors = await self._add(*asked, BUMPING_VERSION)
        return AddPartitionsToTxnResult(
            transactional_id=transaction.transactional_id,
            topic_results=await finish(_by_topic(transaction.topics, errors)),
        )

    async def _add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        topics: Sequence[AddPartitionsToTxnTopic],
        version: int,
    ) -> Errors:
        """All of them or none."""
        tps = await finish(_partitions(topics))
        image = self._state.image
        if any(image.partition(tp) is None for tp in tps):
            unknown, other = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
            return {tp: unknown if image.partition(tp) is None else other for tp in tps}
        try:
            error = await self._coordinator.add(transactional_id, producer, tps, version)
        except ApiError as refused:
            error = refused.code
        return dict.fromkeys(tps, error)

    async def _verify(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        topics: Sequence[AddPartitionsToTxnTopic],
        version: int,
    ) -> Errors:
        tps = await finish(_partitions(topics))
        try:
            errors = await self._coordinator.verify(transactional_id, producer, tps)
        except ApiError as refused:
            errors = [refused.code] * len(tps)
        if version < _ABORTABLE_FROM:
            abortable, older = ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE
            errors = [older if error is abortable else error for error in errors]
        return dict(zip(tps, errors, strict=True))


class AddOffsetsToTxn:
    """The partition that a group's offsets are in joins the transaction."""

    def __init__(self, services: Services) -> None:
        self._coordinator = services.transactions
        self._groups = services.groups

    async def __call__(
        self, request: AddOffsetsToTxnRequest, context: RequestContext
    ) -> AddOffsetsToTxnResponse:
        producer = _producer(request.producer_id, request.producer_epoch)
        try:
            await self._groups.find(request.group_id)
            tp = self._groups.partition_of(request.group_id)
            error = await self._coordinator.add(request.transactional_id, producer, [tp], 0)
        except ApiError as refused:
            error = refused.code
        return AddOffsetsToTxnResponse(error_code=_fenced(error, context.version))


class EndTxn:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.transactions

    async def __call__(self, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
        bumps = context.version >= _END_BUMPS_FROM
        end = End(
            transactional_id=request.transactional_id,
            producer=_producer(request.producer_id, request.producer_epoch),
            is_commit=request.committed,
            version=BUMPING_VERSION if bumps else 0,
        )
        try:
            answer = await self._coordinator.end(end)
        except ApiError as refused:
            answer = Identified(refused.code)
        error = _fenced(answer.error, context.version)
        if not bumps or answer.producer is None:
            return EndTxnResponse(error_code=error)
        return EndTxnResponse(
            error_code=error,
            producer_id=answer.producer.id,
            producer_epoch=answer.producer.epoch,
        )


def _producer(producer_id: int, producer_epoch: int) -> ProducerIdentity:
    return ProducerIdentity(ProducerId(producer_id), ProducerEpoch(producer_epoch))


def _fenced(error: ErrorCode, version: int) -> ErrorCode:
    """Older clients know only one error for having been replaced."""
    if error is ErrorCode.PRODUCER_FENCED and version < _FENCED_FROM:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _partitions(topics: Sequence[AddPartitionsToTxnTopic]) -> Steps[list[TopicPartition]]:
    found: dict[TopicPartition, None] = {}
    for topic in topics:
        for index in topic.partitions:
            found[TopicPartition(topic.name, index)] = None
            yield 1
        yield 1
    return list(found)


def _refused(
    transaction: AddPartitionsToTxnTransaction, error: ErrorCode
) -> Steps[AddPartitionsToTxnResult]:
    tps = yield from _partitions(transaction.topics)
    results = yield from _by_topic(transaction.topics, dict.fromkeys(tps, error))
    return AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id, topic_results=results
    )


def _by_topic(
    topics: Sequence[AddPartitionsToTxnTopic], errors: Errors
) -> Steps[list[AddPartitionsToTxnTopicResult]]:
    """Every partition that was asked for is answered, also one that was named twice."""
    results = []
    for topic in topics:
        partitions: list[AddPartitionsToTxnPartitionResult] = []
        results.append(
            AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=partitions)
        )
        for index in topic.partitions:
            partitions.append(
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=errors[TopicPartition(topic.name, index)],
                )
            )
            yield 1
        yield 1
    return results
