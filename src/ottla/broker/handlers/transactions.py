"""AddPartitionsToTxn (24), 0 to 5; AddOffsetsToTxn (25), 0 to 4; EndTxn (26), 0 to 5.

A producer that was replaced gets PRODUCER_FENCED (90), in versions whose clients do not know it
INVALID_PRODUCER_EPOCH (47). EndTxn responds when the end is decided, and not when every partition
has its marker; with version 5 (transaction version 2) the response has the identity to go on
with. AddPartitionsToTxn and AddOffsetsToTxn wait up to a second if the transaction before is
still ending, and then respond CONCURRENT_TRANSACTIONS; a broker, which sends version 4 or newer for
its producers, gets that at once.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from ottla.broker.services import RequestContext, Services
from ottla.broker.slices import Pace, finish, parts
from ottla.broker.transaction_versions import known_error, transaction_version
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.transactions import BUMPING_VERSION, End
from ottla.errors import ApiError, ErrorCode
from ottla.model import ProducerEpoch, ProducerId, TopicPartition
from ottla.protocol.api import ApiKey
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

_MANY_FROM: Final = 4
_TRANSACTIONS_PER_TURN: Final = 100  # that are decided about in one turn of the loop

Errors = dict[TopicPartition, ErrorCode]
Add = Callable[[str, ProducerIdentity, Collection[TopicPartition], int], Awaitable[ErrorCode]]


class AddPartitionsToTxn:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.transactions
        self._state = services.state

    async def __call__(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> AddPartitionsToTxnResponse:
        if context.version >= _MANY_FROM:
            return AddPartitionsToTxnResponse(
                results_by_transaction=await self._add_for_brokers(request, context.version)
            )
        topics = request.v3_and_below_topics
        producer = _producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        errors = await self._add(
            self._coordinator.add,
            request.v3_and_below_transactional_id,
            producer,
            topics,
            context.version,
        )
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=await finish(
                _by_topic(topics, _known(errors, context.version))
            )
        )

    async def _add_for_brokers(
        self, request: AddPartitionsToTxnRequest, version: int
    ) -> list[AddPartitionsToTxnResult]:
        """The results of all transactions; an id that is named twice is refused both times."""
        results, pace = list[AddPartitionsToTxnResult](), Pace()
        named = Counter(transaction.transactional_id for transaction in request.transactions)

        async def add(transaction: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
            if named[transaction.transactional_id] > 1:
                return await finish(_refused(transaction, ErrorCode.INVALID_REQUEST))
            return await self._add_for_broker(transaction, version)

        for part in parts(request.transactions, _TRANSACTIONS_PER_TURN):
            results += await asyncio.gather(*map(add, part))
            await pace.spend(4 * len(part))
        return results

    async def _add_for_broker(
        self, transaction: AddPartitionsToTxnTransaction, version: int
    ) -> AddPartitionsToTxnResult:
        """Add or verify partitions for another broker, whose producers write to them.

        While the last transaction ends, that broker repeats the request: others do not wait for it.
        """
        producer = _producer(transaction.producer_id, transaction.producer_epoch)
        request = transaction.transactional_id, producer, transaction.topics
        if transaction.verify_only:
            errors = await self._verify(*request)
        else:
            errors = await self._add(self._coordinator.add_now, *request, version)
        return AddPartitionsToTxnResult(
            transactional_id=transaction.transactional_id,
            topic_results=await finish(_by_topic(transaction.topics, _known(errors, version))),
        )

    async def _add(
        self,
        add: Add,
        transactional_id: str,
        producer: ProducerIdentity,
        topics: Sequence[AddPartitionsToTxnTopic],
        version: int,
    ) -> Errors:
        """Add all partitions or none; the error of each."""
        tps = await finish(_partitions(topics))
        image = self._state.image
        if any(image.partition(tp) is None for tp in tps):
            unknown, other = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
            return {tp: unknown if image.partition(tp) is None else other for tp in tps}
        try:
            protocol = transaction_version(ApiKey.ADD_PARTITIONS_TO_TXN, version)
            error = await add(transactional_id, producer, tps, protocol)
        except ApiError as refused:
            error = refused.code
        return dict.fromkeys(tps, error)

    async def _verify(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        topics: Sequence[AddPartitionsToTxnTopic],
    ) -> Errors:
        tps = await finish(_partitions(topics))
        try:
            errors = await self._coordinator.verify(transactional_id, producer, tps)
        except ApiError as refused:
            errors = [refused.code] * len(tps)
        return dict(zip(tps, errors, strict=True))


class AddOffsetsToTxn:
    """Adds the partition of a group's offsets to the transaction."""

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
        code = known_error(ApiKey.ADD_OFFSETS_TO_TXN, context.version, error)
        return AddOffsetsToTxnResponse(error_code=code)


class EndTxn:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.transactions

    async def __call__(self, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
        version = transaction_version(ApiKey.END_TXN, context.version)
        end = End(
            transactional_id=request.transactional_id,
            producer=_producer(request.producer_id, request.producer_epoch),
            is_commit=request.committed,
            version=version,
        )
        try:
            error, following = await self._coordinator.end(end)
        except ApiError as refused:
            error, following = refused.code, None
        code = known_error(ApiKey.END_TXN, context.version, error)
        if version < BUMPING_VERSION or following is None:
            return EndTxnResponse(error_code=code)
        return EndTxnResponse(
            error_code=code, producer_id=following.id, producer_epoch=following.epoch
        )


def _producer(producer_id: int, producer_epoch: int) -> ProducerIdentity:
    return ProducerIdentity(ProducerId(producer_id), ProducerEpoch(producer_epoch))


def _known(errors: Errors, version: int) -> Errors:
    """The errors as clients of this version of AddPartitionsToTxn know them."""
    api = ApiKey.ADD_PARTITIONS_TO_TXN
    return {tp: known_error(api, version, error) for tp, error in errors.items()}


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
    """A result for every requested partition, also for one that was named twice."""
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
