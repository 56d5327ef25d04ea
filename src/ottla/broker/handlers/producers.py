"""InitProducerId (22), versions 0 to 5, and DescribeProducers (61), version 0."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from ottla.broker import slices
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.routes import RequestContext
from ottla.errors import ApiError
from ottla.model import TopicPartition
from ottla.protocol.codec import Steps
from ottla.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponsePartition,
    DescribeProducersResponseTopic,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducerState,
)
from ottla.replication.replicas import Replicas

_EPOCH_MAX: Final = 2**15 - 2  # the last epoch is kept free, as in Kafka


class InitProducerId:
    """For producers without a transactional id; `transactional` answers the others."""

    def __init__(
        self,
        ids: ProducerIds,
        transactional: Callable[
            [InitProducerIdRequest, RequestContext], Coroutine[Any, Any, InitProducerIdResponse]
        ],
    ) -> None:
        self._ids = ids
        self._transactional = transactional

    async def __call__(
        self, request: InitProducerIdRequest, context: RequestContext
    ) -> InitProducerIdResponse:
        if request.transactional_id is not None:
            return await self._transactional(request, context)
        if request.producer_id >= 0 and 0 <= request.producer_epoch < _EPOCH_MAX:
            # A producer that recovers keeps its id and goes on in the next epoch (KIP-360).
            return InitProducerIdResponse(
                producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
            )
        try:
            return InitProducerIdResponse(producer_id=await self._ids.next(), producer_epoch=0)
        except ApiError as refused:
            return InitProducerIdResponse(error_code=refused.code)


class DescribeProducers:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def __call__(
        self, request: DescribeProducersRequest, context: RequestContext
    ) -> DescribeProducersResponse | Coroutine[Any, Any, DescribeProducersResponse]:
        return slices.start(self._describe_all(request))

    def _describe_all(self, request: DescribeProducersRequest) -> Steps[DescribeProducersResponse]:
        response = DescribeProducersResponse()
        for topic in request.topics:
            partitions: list[DescribeProducersResponsePartition] = []
            response.topics.append(
                DescribeProducersResponseTopic(name=topic.name, partitions=partitions)
            )
            for index in topic.partition_indexes:
                described = self._describe(TopicPartition(topic.name, index))
                partitions.append(described)
                yield 1 + len(described.active_producers)
            yield 1
        return response

    def _describe(self, tp: TopicPartition) -> DescribeProducersResponsePartition:
        try:
            log = self._replicas.find(tp).log
        except ApiError as refused:
            return DescribeProducersResponsePartition(
                partition_index=tp.partition,
                error_code=refused.code,
                error_message=str(refused) or None,
            )
        return DescribeProducersResponsePartition(
            partition_index=tp.partition,
            active_producers=[
                ProducerState(
                    producer_id=producer_id,
                    producer_epoch=producer.epoch,
                    last_sequence=producer.batches[-1].last_sequence if producer.batches else -1,
                    last_timestamp=producer.last_seen_ms,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.transaction_start,
                )
                for producer_id, producer in log.producers.items()
            ],
        )
