"""InitProducerId (22), versions 0 to 5, and DescribeProducers (61), version 0."""

from collections.abc import Coroutine
from typing import Any, Final

from ottla.broker import slices
from ottla.broker.services import RequestContext, Services
from ottla.broker.transaction_versions import known_error
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.transactions import Init
from ottla.errors import ApiError
from ottla.model import NO_UUID, ProducerEpoch, ProducerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.codec import Steps
from ottla.protocol.hot_produce import Forwarder
from ottla.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponsePartition,
    DescribeProducersResponseTopic,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducerState,
)

_EPOCH_MAX: Final = 2**15 - 2  # the last epoch is kept free, as in Kafka


class InitProducerId:
    """Assigns producer ids; those of transactional ids come from the transaction coordinator."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(
        self, request: InitProducerIdRequest, context: RequestContext
    ) -> InitProducerIdResponse:
        if request.transactional_id is not None:
            return await self._init_transactional(request.transactional_id, request, context)
        if request.producer_id >= 0 and 0 <= request.producer_epoch < _EPOCH_MAX:
            # A producer that recovers keeps its id and goes on in the next epoch (KIP-360).
            return InitProducerIdResponse(
                producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
            )
        try:
            producer_id = await self._services.producer_ids.next()
        except ApiError as refused:
            return InitProducerIdResponse(error_code=refused.code)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    async def _init_transactional(
        self, transactional_id: str, request: InitProducerIdRequest, context: RequestContext
    ) -> InitProducerIdResponse:
        expected = None
        if request.producer_id >= 0:
            expected = ProducerIdentity(
                ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch)
            )
        init = Init(
            transactional_id=transactional_id,
            timeout_ms=request.transaction_timeout_ms,
            expected=expected,
        )
        try:
            error, producer = await self._services.transactions.init(init)
        except ApiError as refused:
            error, producer = refused.code, None
        if producer is not None:
            return InitProducerIdResponse(producer_id=producer.id, producer_epoch=producer.epoch)
        code = known_error(ApiKey.INIT_PRODUCER_ID, context.version, error)
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)


class DescribeProducers:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._replicas = services.replicas

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
                tp = TopicPartition(topic.name, index)
                if request.broker_token != NO_UUID:
                    described = self._describe_one(tp, request)
                else:
                    described = self._describe(tp)
                partitions.append(described)
                yield 1 + len(described.active_producers)
            yield 1
        return response

    def _describe_one(
        self, tp: TopicPartition, request: DescribeProducersRequest
    ) -> DescribeProducersResponsePartition:
        """A producer with its last batches, for a broker that forwards batches of it."""
        from ottla.replication.peer_forwarding import describe_batches  # noqa: PLC0415

        described = DescribeProducersResponsePartition(partition_index=tp.partition)
        forwarder = Forwarder(
            request.broker_token, request.topic_revision, request.sequence, is_continued=False
        )
        try:
            self._services.forwarding.check_forwarder(forwarder, tp.topic)
            leader = self._replicas.find(tp)
        except ApiError as refused:
            described.error_code, described.error_message = refused.code, str(refused)
            return described
        producer = leader.producer(ProducerId(request.producer_id))
        if producer is not None:
            described.active_producers = [
                ProducerState(
                    producer_id=request.producer_id,
                    producer_epoch=producer.epoch,
                    batches=describe_batches(leader, producer.batches),
                )
            ]
        return described

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
