"""DescribeShareGroupOffsets (90) 0-1, AlterShareGroupOffsets (91), DeleteShareGroupOffsets (92).

Offsets of a share group are the start offsets of its partitions: everything below is finished.
They are changed while the group has no members; its partitions begin anew with them.
"""

from typing import Final

from ottla.broker.partition_bounds import Bounds
from ottla.broker.services import RequestContext, Services
from ottla.coordinator.groups.topics import IdPartition
from ottla.errors import (
    ApiError,
    ErrorCode,
    InvalidRequest,
    UnknownTopicOrPartition,
)
from ottla.model import NO_UUID, Offset, TopicPartition, Uuid
from ottla.protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from ottla.queues.share_state import StateSummary

_UNKNOWN: Final = -1


class DescribeShareGroupOffsets:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(
        self, request: DescribeShareGroupOffsetsRequest, context: RequestContext
    ) -> DescribeShareGroupOffsetsResponse:
        return DescribeShareGroupOffsetsResponse(
            groups=[await self._describe(group) for group in request.groups]
        )

    async def _describe(
        self, group: DescribeShareGroupOffsetsRequestGroup
    ) -> DescribeShareGroupOffsetsResponseGroup:
        group_id = group.group_id
        try:
            states = self._services.share_group_states
            known = await states.known(group_id)
            wanted = self._wanted(group, sorted(known))
            ids = [IdPartition(t, p) for t, p in wanted.values() if IdPartition(t, p) in known]
            summaries = await states.summarize(group_id, ids)
            ends = await self._services.partition_bounds.find(wanted)
        except ApiError as refused:
            return DescribeShareGroupOffsetsResponseGroup(
                group_id=group_id, error_code=refused.code, error_message=str(refused)
            )
        topics: dict[str, DescribeShareGroupOffsetsResponseTopic] = {}
        for tp, partition in wanted.items():
            topic = topics.get(tp.topic)
            if topic is None:
                topic = topics[tp.topic] = DescribeShareGroupOffsetsResponseTopic(
                    topic_name=tp.topic, topic_id=partition.topic_id
                )
            topic.partitions.append(_partition(tp, summaries.get(partition), ends.get(tp)))
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=group_id, topics=list(topics.values())
        )

    def _wanted(
        self, group: DescribeShareGroupOffsetsRequestGroup, known: list[IdPartition]
    ) -> dict[TopicPartition, IdPartition]:
        image = self._services.state.image
        if group.topics is None:
            return {
                TopicPartition(image.topic_names[p.topic_id], p.partition): p
                for p in known
                if p.topic_id in image.topic_names
            }
        found = {}
        for topic in group.topics:
            topic_image = image.topics.get(topic.topic_name)
            topic_id = NO_UUID if topic_image is None else topic_image.id
            for index in topic.partitions:
                tp = TopicPartition(topic.topic_name, index)
                found[tp] = IdPartition(topic_id, index)
        return found


def _partition(
    tp: TopicPartition, summary: StateSummary | ApiError | None, bounds: Bounds | None
) -> DescribeShareGroupOffsetsResponsePartition:
    result = DescribeShareGroupOffsetsResponsePartition(
        partition_index=tp.partition, start_offset=_UNKNOWN, leader_epoch=0, lag=_UNKNOWN
    )
    if isinstance(summary, ApiError):
        result.error_code, result.error_message = summary.code, str(summary)
    elif summary is not None:
        result.start_offset = summary.start_offset
        result.leader_epoch = max(summary.leader_epoch, 0)
        result.lag = _lag(summary, bounds)
    return result


def _lag(summary: StateSummary, bounds: Bounds | None) -> int:
    """Records that are not finished; -1 if that is not known."""
    if bounds is None or summary.start_offset < 0 or summary.complete_count < 0:
        return _UNKNOWN
    start = max(summary.start_offset, bounds.start)
    return max(bounds.end - start - summary.complete_count, 0)


class AlterShareGroupOffsets:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(
        self, request: AlterShareGroupOffsetsRequest, context: RequestContext
    ) -> AlterShareGroupOffsetsResponse:
        group_id, image = request.group_id, self._services.state.image
        starts: dict[IdPartition, Offset] = {}
        for topic in request.topics:
            known = image.topics.get(topic.topic_name)
            for partition in topic.partitions:
                index = partition.partition_index
                if known is not None and 0 <= index < len(known.partitions):
                    starts[IdPartition(known.id, index)] = Offset(partition.start_offset)
        try:
            if not group_id:
                raise InvalidRequest("a group id must be given")
            if any(start < 0 for start in starts.values()):
                raise InvalidRequest("a start offset must not be negative")
            failed = await self._services.share_group_states.begin_anew(group_id, starts)
            self._services.share_partitions.drop_group(group_id)
        except ApiError as refused:
            return AlterShareGroupOffsetsResponse(
                error_code=refused.code, error_message=str(refused)
            )
        return AlterShareGroupOffsetsResponse(
            responses=[self._topic(topic, failed) for topic in request.topics]
        )

    def _topic(
        self,
        topic: AlterShareGroupOffsetsRequestTopic,
        failed: dict[IdPartition, ApiError],
    ) -> AlterShareGroupOffsetsResponseTopic:
        known = self._services.state.image.topics.get(topic.topic_name)
        topic_id = NO_UUID if known is None else known.id
        results = []
        for partition in topic.partitions:
            index = partition.partition_index
            problem = failed.get(IdPartition(topic_id, index))
            if known is None or not 0 <= index < len(known.partitions):
                problem = UnknownTopicOrPartition(
                    f"there is no partition {topic.topic_name}-{index}"
                )
            results.append(
                AlterShareGroupOffsetsResponsePartition(
                    partition_index=index,
                    error_code=0 if problem is None else problem.code,
                    error_message=None if problem is None else str(problem),
                )
            )
        return AlterShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name, topic_id=topic_id, partitions=results
        )


class DeleteShareGroupOffsets:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(
        self, request: DeleteShareGroupOffsetsRequest, context: RequestContext
    ) -> DeleteShareGroupOffsetsResponse:
        image = self._services.state.image
        ids: dict[str, Uuid] = {
            topic.topic_name: image.topics[topic.topic_name].id
            for topic in request.topics
            if topic.topic_name in image.topics
        }
        try:
            states = self._services.share_group_states
            read = {p.topic_id for p in await states.known(request.group_id)}
            gone = frozenset(topic_id for topic_id in ids.values() if topic_id in read)
            await states.delete(request.group_id, gone)
            self._services.share_partitions.drop_group(request.group_id)
        except ApiError as refused:
            return DeleteShareGroupOffsetsResponse(
                error_code=refused.code, error_message=str(refused)
            )
        return DeleteShareGroupOffsetsResponse(
            responses=[
                _deleted(topic.topic_name, ids.get(topic.topic_name)) for topic in request.topics
            ]
        )


def _deleted(name: str, topic_id: Uuid | None) -> DeleteShareGroupOffsetsResponseTopic:
    if topic_id is None:
        return DeleteShareGroupOffsetsResponseTopic(
            topic_name=name,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"there is no topic {name!r}",
        )
    return DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id)
