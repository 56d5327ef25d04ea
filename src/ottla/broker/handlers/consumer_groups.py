"""ConsumerGroupHeartbeat (68) 0-1, ConsumerGroupDescribe (69) 0-1.

Every group that is asked about is answered: librdkafka aborts its process otherwise.
Not done: authorised operations, which are answered as "not known".
"""

from typing import Final

from ottla.broker.services import RequestContext, Services
from ottla.broker.slices import Pace
from ottla.cluster.image import ClusterImage
from ottla.coordinator.groups.consumer_heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResult
from ottla.coordinator.groups.descriptions import ConsumerGroupDescription, DescribedConsumer
from ottla.coordinator.groups.topics import IdPartition, Partitions, by_topic
from ottla.errors import ApiError, ErrorCode
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

_OWN_ID_FROM: Final = 1  # the version from which on members make their ids themselves
_DEAD: Final = "Dead"
_CLASSIC: Final = 0  # MemberType
_CONSUMER: Final = 1


class ConsumerGroupHeartbeat:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups

    async def __call__(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> ConsumerGroupHeartbeatResponse:
        try:
            answer = await self._beat(request.group_id, _beat(request, context))
        except ApiError as refused:
            answer = ConsumerHeartbeatResult(error=refused.code, message=str(refused))
        return ConsumerGroupHeartbeatResponse(
            error_code=answer.error,
            error_message=answer.message or None,
            member_id=answer.member_id,
            member_epoch=answer.epoch,
            heartbeat_interval_ms=answer.interval_ms,
            assignment=None if answer.assigned is None else _assignment(answer.assigned),
        )

    async def _beat(self, group_id: str, beat: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        if not group_id:
            return ConsumerHeartbeatResult(
                error=ErrorCode.INVALID_REQUEST, message="a group id must be given"
            )
        answer: ConsumerHeartbeatResult = await self._coordinator.run(
            group_id,
            lambda groups, ticket, now_ms: groups.consumer_heartbeat(
                ticket, group_id, beat, now_ms
            ),
        )
        return answer


def _beat(request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> ConsumerHeartbeat:
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
        client_host=f"/{context.peer}",  # as Kafka writes it, which tools strip
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
    """How much work a member is: what it reads and what it has."""
    assignments = (member.assignment, member.target_assignment)
    partitions = (len(t.partitions) for one in assignments for t in one.topic_partitions)
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
    """Topics that are deleted are left out: they have no name any more."""
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(
                topic_id=topic_id, topic_name=image.topic_names[topic_id], partitions=found
            )
            for topic_id, found in by_topic(partitions).items()
            if topic_id in image.topic_names
        ]
    )
