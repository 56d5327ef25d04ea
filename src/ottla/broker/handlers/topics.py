"""CreateTopics (19) 2-7, DeleteTopics (20) 1-6, CreatePartitions (37) 0-3, DeleteRecords (21) 0-2.

Every requested item has a result. The response is sent once this broker serves a new topic, and
once a deletion of records is on disk.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from ottla.broker import slices
from ottla.broker.services import RequestContext, Services
from ottla.cluster.controller.decision import Decision
from ottla.cluster.controller.topics import NewTopic, add_partitions, delete_topic
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.config import TopicConfig, format_value, settings_of
from ottla.errors import (
    ApiError,
    ErrorCode,
    InvalidRequest,
    OffsetOutOfRange,
    RequestTimedOut,
)
from ottla.model import NO_UUID, BrokerId, Offset, TopicPartition, Uuid
from ottla.protocol.codec import Steps
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.replication.waiting import wait_called

_TO_HIGH_WATERMARK: Final = -1
_SOURCE_TOPIC: Final = 1
_SOURCE_DEFAULT: Final = 5
_DELETION_UNITS: Final = 5  # of work, for each partition whose records are deleted


class CreateTopics:
    def __init__(self, services: Services) -> None:
        self._creation = services.topic_creation
        self._settings = services.settings

    async def __call__(
        self, request: CreateTopicsRequest, context: RequestContext
    ) -> CreateTopicsResponse:
        names = [topic.name for topic in request.topics]
        twice = {name for name, count in Counter(names).items() if count > 1}
        fine = [topic for topic in request.topics if topic.name not in twice]
        new = [_new_topic(topic) for topic in fine]
        created = await self._creation.create(new, validate_only=request.validate_only)
        results, pace = {}, slices.Pace()
        for topic, outcome in zip(fine, created, strict=True):
            result = self._result(topic.name, outcome, request.validate_only)
            results[topic.name] = result
            await pace.spend(1 + len(result.configs or ()))
        for name in twice:
            results[name] = CreatableTopicResult(
                name=name,
                error_code=ErrorCode.INVALID_REQUEST,
                error_message="the topic is named twice: send it once",
            )
        return CreateTopicsResponse(topics=[results[name] for name in dict.fromkeys(names)])

    def _result(
        self, name: str, outcome: TopicImage | ApiError, validate_only: bool
    ) -> CreatableTopicResult:
        if isinstance(outcome, ApiError):
            return CreatableTopicResult(
                name=name, error_code=outcome.code, error_message=str(outcome) or None
            )
        return CreatableTopicResult(
            name=name,
            topic_id=NO_UUID if validate_only else outcome.id,
            error_message=None,
            num_partitions=len(outcome.partitions),
            replication_factor=len(outcome.partitions[0].replicas),
            configs=self._configs(outcome),
        )

    def _configs(self, topic: TopicImage) -> list[CreatableTopicConfigs]:
        config = self._settings.topic(topic.config)
        return [
            CreatableTopicConfigs(
                name=row.name,
                value=format_value(getattr(config, field)),
                config_source=_SOURCE_TOPIC if row.name in topic.config else _SOURCE_DEFAULT,
            )
            for field, row in settings_of(TopicConfig)
        ]


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignment={
            a.partition_index: [BrokerId(b) for b in a.broker_ids] for a in topic.assignments
        },
        config={config.name: config.value for config in topic.configs},
    )


class DeleteTopics:
    def __init__(self, services: Services) -> None:
        self._state = services.state
        self._changes = services.changes
        self._settings = services.settings

    async def __call__(
        self, request: DeleteTopicsRequest, context: RequestContext
    ) -> DeleteTopicsResponse:
        image = self._state.image
        unknown: list[DeletableTopicResult] = []
        found: list[DeletableTopicResult] = []
        for requested in request.topics:
            name = requested.name
            if name is None:
                topic = image.topic_by_id(requested.topic_id)
                if topic is None:
                    unknown.append(_unknown_id(requested.topic_id))
                    continue
                name = topic.name
            found.append(DeletableTopicResult(name=name, topic_id=requested.topic_id))
        found += [DeletableTopicResult(name=name) for name in request.topic_names]
        named = Counter(result.name for result in found)
        deleted = await self._changes.each(
            self._decide(result.name or "", named[result.name]) for result in found
        )
        for result, outcome in zip(found, deleted, strict=True):
            if isinstance(outcome, ApiError):
                result.error_code = outcome.code
                result.error_message = str(outcome) or None
            else:
                result.topic_id = outcome.id
        return DeleteTopicsResponse(responses=unknown + found)

    def _decide(self, name: str, count: int) -> Callable[[ClusterImage], Decision[TopicImage]]:
        if count > 1:
            return _refuse_twice
        return partial(delete_topic, name=name, defaults=self._settings.broker)


def _refuse_twice(image: ClusterImage) -> Decision[TopicImage]:
    raise InvalidRequest("the topic is named twice: name it once")


def _unknown_id(topic_id: Uuid) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=None,
        topic_id=topic_id,
        error_code=ErrorCode.UNKNOWN_TOPIC_ID,
        error_message="no topic has this id",
    )


class CreatePartitions:
    """Adds partitions, which cannot be removed again.

    Those whose logs cannot be created exist, and are unavailable until there is room. Their topic
    has that error in the response.
    """

    def __init__(self, services: Services) -> None:
        self._state = services.state
        self._replicas = services.replicas
        self._changes = services.changes
        self._settings = services.settings

    async def __call__(
        self, request: CreatePartitionsRequest, context: RequestContext
    ) -> CreatePartitionsResponse:
        named = Counter(topic.name for topic in request.topics)
        decides = (
            self._decide(topic) if named[topic.name] == 1 else _refuse_twice
            for topic in request.topics
        )
        sizes = (len(topic.assignments or ()) for topic in request.topics)
        grown = await self._changes.each(decides, sizes=sizes, validate_only=request.validate_only)
        return CreatePartitionsResponse(
            results=[
                _grown(topic.name, outcome if request.validate_only else self._served(outcome))
                for topic, outcome in zip(request.topics, grown, strict=True)
            ]
        )

    def _served(self, outcome: TopicImage | ApiError) -> TopicImage | ApiError:
        if isinstance(outcome, ApiError):
            return outcome
        return self._replicas.failure_of(outcome.name) or outcome

    def _decide(self, topic: CreatePartitionsTopic) -> partial[Decision[TopicImage]]:
        assignments = None
        if topic.assignments is not None:
            assignments = [[BrokerId(b) for b in a.broker_ids] for a in topic.assignments]
        return partial(
            add_partitions,
            name=topic.name,
            total=topic.count,
            defaults=self._settings.broker,
            start=self._state.draw_start(),
            assignments=assignments,
        )


def _grown(name: str, outcome: TopicImage | ApiError) -> CreatePartitionsTopicResult:
    if isinstance(outcome, ApiError):
        return CreatePartitionsTopicResult(
            name=name, error_code=outcome.code, error_message=str(outcome) or None
        )
    return CreatePartitionsTopicResult(name=name)


class DeleteRecords:
    def __init__(self, services: Services) -> None:
        self._replicas = services.replicas

    async def __call__(
        self, request: DeleteRecordsRequest, context: RequestContext
    ) -> DeleteRecordsResponse:
        await self._clear(request)
        topics = await slices.finish(self._delete_all(request))
        deleted = [
            result for topic in topics for result in topic.partitions if not result.error_code
        ]
        if deleted:
            try:
                await self._replicas.commit_deletions()
            except ApiError as refused:
                for result in deleted:
                    result.error_code, result.low_watermark = refused.code, -1
        return DeleteRecordsResponse(topics=topics)

    async def _clear(self, request: DeleteRecordsRequest) -> None:
        """Wait until nothing waits any more among the records to delete, or time is up."""
        waits = []
        for topic in request.topics:
            for requested in topic.partitions:
                tp = TopicPartition(topic.name, requested.partition_index)
                partition = self._replicas.leaders.get(tp)
                if partition is None or partition.waiting is None:
                    continue
                end = partition.high_watermark
                if requested.offset == _TO_HIGH_WATERMARK:
                    requested.offset = end  # it rises with what is appended again
                if partition.log.start_offset < requested.offset <= end:
                    clear = partial(partition.waiting.clear, Offset(requested.offset))
                    waits.append(asyncio.ensure_future(wait_called(clear)))
        if waits:
            await asyncio.wait(waits, timeout=max(request.timeout_ms, 0) / 1000)
        for wait in waits:
            wait.cancel()
            if wait.done() and not wait.cancelled():
                wait.exception()  # `_delete` says what is left

    def _delete_all(self, request: DeleteRecordsRequest) -> Steps[list[DeleteRecordsTopicResult]]:
        topics = []
        known: dict[tuple[str, int, int], DeleteRecordsPartitionResult] = {}
        for topic in request.topics:
            partitions: list[DeleteRecordsPartitionResult] = []
            topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
            for requested in topic.partitions:
                key = (topic.name, requested.partition_index, requested.offset)
                if key not in known:
                    known[key] = self._delete(topic.name, requested)
                    yield _DELETION_UNITS
                partitions.append(known[key])
                yield 1
            yield 1
        return topics

    def _delete(
        self, topic: str, requested: DeleteRecordsPartition
    ) -> DeleteRecordsPartitionResult:
        index = requested.partition_index
        try:
            partition = self._replicas.find(TopicPartition(topic, index))
            end = partition.high_watermark
            offset = end if requested.offset == _TO_HIGH_WATERMARK else Offset(requested.offset)
            if not 0 <= offset <= end:
                raise OffsetOutOfRange(f"{partition.tp} has records up to {end}, not {offset}")
            if partition.waiting is not None and partition.waiting.clear(offset) < offset:
                raise RequestTimedOut(f"records of {partition.tp} wait there: try again")
            # An offset before the start is no error: its records are deleted already.
            partition.log.advance_start(max(offset, partition.log.start_offset))
        except ApiError as refused:
            return DeleteRecordsPartitionResult(
                partition_index=index, low_watermark=-1, error_code=refused.code
            )
        return DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=partition.log.start_offset
        )
