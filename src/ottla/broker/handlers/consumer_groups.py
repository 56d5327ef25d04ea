"""ConsumerGroupHeartbeat (68) 0-1, ConsumerGroupDescribe (69) 0-1.

Every requested group has a result: librdkafka aborts its process otherwise.
"""

from typing import Final

from ottla.broker.authorized_operations import GROUP_OPERATIONS
from ottla.broker.deferred import Deferred
from ottla.broker.services import RequestContext, Services
from ottla.broker.slices import Pace
from ottla.cluster.image import ClusterImage
from ottla.coordinator.groups.consumer_heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResult
from ottla.coordinator.groups.descriptions import ConsumerGroupDescription, DescribedConsumer
from ottla.coordinator.groups.topics import IdPartition, Partitions, by_topic
from ottla.errors import ApiError, ErrorCode, InvalidRequest
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
    DescribedGroup,
    DescribedMember,
    DescribedTopicPartitions,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)

_OWN_ID_FROM: Final = 1  # members make their ids themselves
_DEAD: Final = "Dead"
_CLASSIC: Final = 0  # MemberType
_CONSUMER: Final = 1


class ConsumerGroupHeartbeat:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups

    def __call__(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> (
        ConsumerGroupHeartbeatResponse
        | Deferred[ConsumerHeartbeatResult, ConsumerGroupHeartbeatResponse]
    ):
        group_id = request.group_id
        if not group_id:
            return _refuse_heartbeat(InvalidRequest("a group id must be given"))
        heartbeat = _heartbeat(request, context)
        return _HeartbeatResponse().submit(
            self._coordinator,
            group_id,
            lambda groups, ticket, now_ms: groups.consumer_heartbeat(
                ticket, group_id, heartbeat, now_ms
            ),
        )


class _HeartbeatResponse(Deferred[ConsumerHeartbeatResult, ConsumerGroupHeartbeatResponse]):
    __slots__ = ()

    def build(self, value: ConsumerHeartbeatResult) -> ConsumerGroupHeartbeatResponse:
        return _heartbeat_response(value)

    def refuse(self, error: ApiError) -> ConsumerGroupHeartbeatResponse:
        return _refuse_heartbeat(error)


def _heartbeat_response(result: ConsumerHeartbeatResult) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message or None,
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval_ms=result.interval_ms,
        assignment=None if result.assigned is None else _assignment(result.assigned),
    )


def _refuse_heartbeat(refused: ApiError) -> ConsumerGroupHeartbeatResponse:
    return _heartbeat_response(ConsumerHeartbeatResult(error=refused.code, message=str(refused)))


def _heartbeat(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerHeartbeat:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    timeout_ms = request.rebalance_timeout_ms
    return ConsumerHeartbeat(
        member_id=request.member_id,
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=None if timeout_ms < 0 else timeout_ms,
        topics=None if names is None else frozenset(names),
        pattern=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None
        if owned is None
        else frozenset(IdPartition(item.topic_id, p) for item in owned for p in item.partitions),
        client_id=context.client_id or "",
        client_host=f"/{context.peer}",  # as Kafka writes it; tools strip the slash
        makes_own_id=context.version >= _OWN_ID_FROM,
    )


def _assignment(assigned: Partitions) -> HeartbeatAssignment:
    return HeartbeatAssignment(
        topic_partitions=[
            HeartbeatTopicPartitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in by_topic(assigned).items()
        ]
    )


class ConsumerGroupDescribe:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups
        self._state = services.state

    async def __call__(
        self, request: ConsumerGroupDescribeRequest, context: RequestContext
    ) -> ConsumerGroupDescribeResponse:
        groups, pace = [], Pace()
        for group_id in request.group_ids:
            described = await self._describe(group_id)
            if request.include_authorized_operations and not described.error_code:
                described.authorized_operations = GROUP_OPERATIONS
            groups.append(described)
            await pace.spend(4 + sum(map(_units, described.members)))
        return ConsumerGroupDescribeResponse(groups=groups)

    async def _describe(self, group_id: str) -> DescribedGroup:
        if not group_id:
            return _refusal(group_id, ErrorCode.INVALID_GROUP_ID, "a group id must be given")
        try:
            found: ConsumerGroupDescription | None = await self._coordinator.run(
                group_id, lambda groups, ticket, now_ms: groups.describe_consumer(ticket, group_id)
            )
        except ApiError as refused:
            return _refusal(group_id, refused.code, str(refused))
        if found is None:
            text = f"there is no consumer group {group_id[:100]!r}"
            return _refusal(group_id, ErrorCode.GROUP_ID_NOT_FOUND, text)
        image = self._state.image
        return DescribedGroup(
            group_id=group_id,
            group_state=found.state,
            group_epoch=found.epoch,
            assignment_epoch=found.target_epoch,
            assignor_name=found.assignor,
            members=[_member(member, image) for member in found.members],
        )


def _units(member: DescribedMember) -> int:
    """Units of work of a member: its topics and its partitions."""
    assignments = (member.assignment, member.target_assignment)
    topics = (topic for assignment in assignments for topic in assignment.topic_partitions)
    partitions = (len(topic.partitions) for topic in topics)
    return 4 + len(member.subscribed_topic_names) + sum(partitions)


def _refusal(group_id: str, code: ErrorCode, text: str) -> DescribedGroup:
    return DescribedGroup(
        group_id=group_id, group_state=_DEAD, error_code=code, error_message=text or None
    )


def _member(member: DescribedConsumer, image: ClusterImage) -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.pattern,
        assignment=_described(member.assigned, image),
        target_assignment=_described(member.target, image),
        member_type=_CLASSIC if member.is_classic else _CONSUMER,
    )


def _described(partitions: Partitions, image: ClusterImage) -> DescribedAssignment:
    """The assignment without deleted topics, which have no name any more."""
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(
                topic_id=topic_id, topic_name=image.topic_names[topic_id], partitions=found
            )
            for topic_id, found in by_topic(partitions).items()
            if topic_id in image.topic_names
        ]
    )
