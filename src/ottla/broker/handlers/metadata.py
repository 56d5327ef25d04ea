"""Metadata (3), versions 0 to 13, and DescribeTopicPartitions (75), version 0.

A topic that does not exist is created when the request and the broker's settings allow it.
"""

from collections.abc import Coroutine, Iterable
from typing import Any

from ottla.broker import slices
from ottla.broker.authorized_operations import (
    CLUSTER_OPERATIONS,
    NOT_REQUESTED,
    TOPIC_OPERATIONS,
)
from ottla.broker.services import RequestContext, Services
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.values import BrokerImage, PartitionImage
from ottla.errors import ApiError, ErrorCode
from ottla.model import NO_UUID, TopicPartition, topic_name_problem
from ottla.protocol.codec import Steps
from ottla.protocol.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_PARTITIONS_PER_PAGE_MAX = 2000
_IDS_FROM = 12  # versions 10 and 11 have a field for topic ids, but no topic can be named by it


class Metadata:
    """Brokers, topics and leaders of the image that this broker has."""

    def __init__(self, services: Services) -> None:
        self._state = services.state
        self._replicas = services.replicas
        self._creation = services.topic_creation

    def __call__(
        self, request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
        topics = request.topics
        if topics is None or (context.version == 0 and not topics):
            return slices.start(self._describe_all(request))
        if context.version < _IDS_FROM and any(topic.name is None for topic in topics):
            return self._response(request, [_nameless(topic) for topic in topics])
        topics = _once(topics, by_id=context.version >= _IDS_FROM)
        creates = request.allow_auto_topic_creation and self._creation.is_automatic
        is_long = len(topics) > slices.UNITS_PER_SLICE
        if creates and (is_long or any(map(self._is_missing, topics))):
            return self._create_and_describe(request, topics)
        return slices.start(self._describe_requested(request, topics, {}))

    async def _create_and_describe(
        self, request: MetadataRequest, topics: list[MetadataRequestTopic]
    ) -> MetadataResponse:
        missing = await slices.finish(self._missing(topics))
        refused = await self._creation.create_automatically(missing) if missing else {}
        return await slices.finish(self._describe_requested(request, topics, refused))

    def _missing(self, topics: list[MetadataRequestTopic]) -> Steps[list[str]]:
        missing = []
        for topic in topics:
            if topic.name is not None and self._is_missing(topic):
                missing.append(topic.name)
            yield 1
        return missing

    def _is_missing(self, topic: MetadataRequestTopic) -> bool:
        """True if the topic does not exist and its name is valid."""
        return (
            topic.name is not None
            and topic.name not in self._state.image.topics
            and topic_name_problem(topic.name) is None
        )

    def _describe_all(self, request: MetadataRequest) -> Steps[MetadataResponse]:
        image = self._state.image
        described = []
        for topic in image.topics.values():
            described.append(self._describe(image, topic))
            yield 1 + len(topic.partitions)
        return self._response(request, described)

    def _describe_requested(
        self,
        request: MetadataRequest,
        topics: list[MetadataRequestTopic],
        refused: dict[str, ApiError],
    ) -> Steps[MetadataResponse]:
        image = self._state.image
        described = []
        for requested in topics:
            topic = self._describe_one(image, requested, refused)
            described.append(topic)
            yield 1 + len(topic.partitions)
        return self._response(request, described)

    def _response(
        self, request: MetadataRequest, topics: list[MetadataResponseTopic]
    ) -> MetadataResponse:
        image = self._state.image
        if request.include_topic_authorized_operations:
            for topic in topics:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
        names_cluster = request.include_cluster_authorized_operations
        return MetadataResponse(
            brokers=[_broker(broker) for broker in self._brokers()],
            cluster_id=image.cluster_id,
            controller_id=-1 if image.controller_id is None else image.controller_id,
            topics=topics,
            cluster_authorized_operations=CLUSTER_OPERATIONS if names_cluster else NOT_REQUESTED,
        )

    def _brokers(self) -> list[BrokerImage]:
        """The live brokers, and those that died shortly before."""
        return self._state.brokers_to_ask() + self._replicas.following.deaths.recent()

    def _describe_one(
        self, image: ClusterImage, requested: MetadataRequestTopic, refused: dict[str, ApiError]
    ) -> MetadataResponseTopic:
        if requested.name is None:
            by_id = image.topic_by_id(requested.topic_id)
            if by_id is not None:
                return self._describe(image, by_id)
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=requested.topic_id
            )
        topic = image.topics.get(requested.name)
        if topic is not None:
            return self._describe(image, topic)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic_name_problem(requested.name) is not None:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif requested.name in refused:
            code = refused[requested.name].code
        return MetadataResponseTopic(error_code=code, name=requested.name, topic_id=NO_UUID)

    def _describe(self, image: ClusterImage, topic: TopicImage) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.is_internal,
            partitions=[
                self._partition(image, TopicPartition(topic.name, index), partition)
                for index, partition in enumerate(topic.partitions[: topic.listed_count])
            ],
        )

    def _partition(
        self, image: ClusterImage, tp: TopicPartition, partition: PartitionImage
    ) -> MetadataResponsePartition:
        is_led = self._replicas.is_ready(tp, partition)
        return MetadataResponsePartition(
            error_code=0 if is_led else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=tp.partition,
            leader_id=-1 if partition.leader is None or not is_led else partition.leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            offline_replicas=_offline(image, partition),
        )


class DescribeTopicPartitions:
    """Topics in the order of their names, a page at a time."""

    def __init__(self, services: Services) -> None:
        self._state = services.state
        self._replicas = services.replicas

    def __call__(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext
    ) -> DescribeTopicPartitionsResponse | Coroutine[Any, Any, DescribeTopicPartitionsResponse]:
        return slices.start(self._page(request))

    def _page(
        self, request: DescribeTopicPartitionsRequest
    ) -> Steps[DescribeTopicPartitionsResponse]:
        image = self._state.image
        names = sorted({t.name for t in request.topics} or image.topics)
        first = 0
        if request.cursor is not None:
            cursor = request.cursor
            names = [name for name in names if name >= cursor.topic_name]
            first = cursor.partition_index if names[:1] == [cursor.topic_name] else 0
        left = min(max(request.response_partition_limit, 1), _PARTITIONS_PER_PAGE_MAX)
        response = DescribeTopicPartitionsResponse()
        for name in names:
            if left == 0:
                response.next_cursor = Cursor(topic_name=name, partition_index=0)
                break
            described, end, total = self._describe(image, name, first, left)
            response.topics.append(described)
            left -= len(described.partitions)
            first = 0
            yield 1 + len(described.partitions)
            if end < total:
                response.next_cursor = Cursor(topic_name=name, partition_index=end)
                break
        return response

    def _describe(
        self, image: ClusterImage, name: str, first: int, limit: int
    ) -> tuple[DescribeTopicPartitionsResponseTopic, int, int]:
        topic = image.topics.get(name)
        if topic is None:
            problem = topic_name_problem(name)
            code = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if problem is None
                else ErrorCode.INVALID_TOPIC_EXCEPTION
            )
            return DescribeTopicPartitionsResponseTopic(error_code=code, name=name), 0, 0
        end = min(topic.listed_count, first + limit)
        partitions = [
            DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=-1 if partition.leader is None else partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=[],  # null makes the Java client fail
                last_known_elr=[],
                offline_replicas=_offline(image, partition),
            )
            for index, partition in enumerate(topic.partitions[:end])
            if index >= first
        ]
        described = DescribeTopicPartitionsResponseTopic(
            name=name,
            topic_id=topic.id,
            is_internal=topic.is_internal,
            partitions=partitions,
            topic_authorized_operations=TOPIC_OPERATIONS,
        )
        return described, end, topic.listed_count


def _once(topics: Iterable[MetadataRequestTopic], *, by_id: bool) -> list[MetadataRequestTopic]:
    """The topics without repetitions, as in Kafka."""
    if by_id:
        topics = map(_id_before_name, topics)
    return list({(topic.name, topic.topic_id): topic for topic in topics}.values())


def _id_before_name(requested: MetadataRequestTopic) -> MetadataRequestTopic:
    """Without its name if it has an id: the Java client sends an empty one there."""
    if requested.topic_id == NO_UUID:
        return requested
    return MetadataRequestTopic(topic_id=requested.topic_id, name=None)


def _nameless(requested: MetadataRequestTopic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.INVALID_REQUEST, name=requested.name or "", topic_id=requested.topic_id
    )


def _broker(broker: BrokerImage) -> MetadataResponseBroker:
    return MetadataResponseBroker(
        node_id=broker.id, host=broker.endpoint.host, port=broker.endpoint.port, rack=broker.rack
    )


def _offline(image: ClusterImage, partition: PartitionImage) -> list[int]:
    return [broker for broker in partition.replicas if broker not in image.brokers]
