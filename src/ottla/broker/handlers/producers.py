"""InitProducerId (22), versions 0 to 5, and DescribeProducers (61), version 0.

Not done: transactional ids, which are refused with UNSUPPORTED_VERSION.
"""

from collections.abc import Iterator
from typing import Final

from ottla.broker.routes import RequestContext
from ottla.cluster.state import ClusterState
from ottla.errors import ApiError, ErrorCode
from ottla.model import ProducerId, TopicPartition
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

_BLOCK_SIZE: Final = 1000
_EPOCH_MAX: Final = 2**15 - 2  # the last epoch is kept free, as in Kafka


class InitProducerId:
    """Hands out producer ids from blocks that the coordination store gives away only once."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._block: Iterator[int] = iter(())

    async def __call__(
        self, request: InitProducerIdRequest, context: RequestContext
    ) -> InitProducerIdResponse:
        if request.transactional_id is not None:
            return InitProducerIdResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        if request.producer_id >= 0 and 0 <= request.producer_epoch < _EPOCH_MAX:
            # A producer that recovers keeps its id and goes on in the next epoch (KIP-360).
            return InitProducerIdResponse(
                producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
            )
        try:
            return InitProducerIdResponse(producer_id=await self._next_id(), producer_epoch=0)
        except ApiError as refused:
            return InitProducerIdResponse(error_code=refused.code)

    async def _next_id(self) -> ProducerId:
        while (next_id := next(self._block, None)) is None:
            self._block = iter(await self._state.allocate_producer_ids(_BLOCK_SIZE))
        return ProducerId(next_id)


class DescribeProducers:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def __call__(
        self, request: DescribeProducersRequest, context: RequestContext
    ) -> DescribeProducersResponse:
        return DescribeProducersResponse(
            topics=[
                DescribeProducersResponseTopic(
                    name=topic.name,
                    partitions=[
                        self._describe(TopicPartition(topic.name, index))
                        for index in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )

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
