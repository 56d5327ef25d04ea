"""ShareGroupHeartbeat (76) 1, ShareGroupDescribe (77) 1.

A heartbeat that assigns partitions for the first time is answered when the share coordinator has
their state, so that a member can fetch what it is assigned.
"""

from collections.abc import Coroutine
from typing import Any, Final

from ottla.broker.authorized_operations import GROUP_OPERATIONS
from ottla.broker.services import RequestContext, Services
from ottla.broker.slices import Pace
from ottla.cluster.image import ClusterImage
from ottla.coordinator.groups.descriptions import DescribedSharer, ShareGroupDescription
from ottla.coordinator.groups.share_group import ShareHeartbeat, ShareHeartbeatResult
from ottla.coordinator.groups.topics import by_topic
from ottla.errors import ApiError, ErrorCode, InvalidRequest
from ottla.protocol.messages.share_groups import (
    DescribedAssignment,
    DescribedGroup,
    DescribedMember,
    DescribedTopicPartitions,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

_DEAD: Final = "Dead"


class ShareGroupHeartbeat:
    def __init__(self, services: Services) -> None:
        self._services = services

    def __call__(
        self, request: ShareGroupHeartbeatRequest, context: RequestContext
    ) -> ShareGroupHeartbeatResponse | Coroutine[Any, Any, ShareGroupHeartbeatResponse]:
        if not request.group_id:
            return _refuse(InvalidRequest("a group id must be given"))
        return self._beat(request.group_id, _heartbeat(request, context))

    async def _beat(self, group_id: str, heartbeat: ShareHeartbeat) -> ShareGroupHeartbeatResponse:
        try:
            result: ShareHeartbeatResult = await self._services.groups.run(
                group_id,
                lambda groups, ticket, now_ms: groups.share_heartbeat(
                    ticket, group_id, heartbeat, now_ms
                ),
            )
            if result.initializing:
                await self._services.share_group_states.initialize(group_id)
        except ApiError as refused:
            return _refuse(refused)
        return _response(result)


def _heartbeat(request: ShareGroupHeartbeatRequest, context: RequestContext) -> ShareHeartbeat:
    names = request.subscribed_topic_names
    return ShareHeartbeat(
        member_id=request.member_id,
        epoch=request.member_epoch,
        rack_id=request.rack_id,
        topics=None if names is None else frozenset(names),
        client_id=context.client_id or "",
        client_host=f"/{context.peer}",  # as Kafka writes it; tools strip the slash
    )


def _response(result: ShareHeartbeatResult) -> ShareGroupHeartbeatResponse:
    assignment = None
    if result.assigned is not None:
        assignment = HeartbeatAssignment(
            topic_partitions=[
                HeartbeatTopicPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in by_topic(result.assigned).items()
            ]
        )
    return ShareGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message or None,
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval_ms=result.interval_ms,
        assignment=assignment,
    )


def _refuse(refused: ApiError) -> ShareGroupHeartbeatResponse:
    return _response(ShareHeartbeatResult(error=refused.code, message=str(refused)))


class ShareGroupDescribe:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(
        self, request: ShareGroupDescribeRequest, context: RequestContext
    ) -> ShareGroupDescribeResponse:
        groups, pace = [], Pace()
        for group_id in request.group_ids:
            described = await self._describe(group_id)
            if request.include_authorized_operations and not described.error_code:
                described.authorized_operations = GROUP_OPERATIONS
            groups.append(described)
            await pace.spend(4 + sum(map(_units, described.members)))
        return ShareGroupDescribeResponse(groups=groups)

    async def _describe(self, group_id: str) -> DescribedGroup:
        if not group_id:
            return _refusal(group_id, ErrorCode.INVALID_GROUP_ID, "a group id must be given")
        try:
            found: ShareGroupDescription | None = await self._services.groups.run(
                group_id, lambda groups, ticket, now_ms: groups.describe_share(ticket, group_id)
            )
        except ApiError as refused:
            return _refusal(group_id, refused.code, str(refused))
        if found is None:
            text = f"there is no share group {group_id[:100]!r}"
            return _refusal(group_id, ErrorCode.GROUP_ID_NOT_FOUND, text)
        image = self._services.state.image
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
    partitions = (len(topic.partitions) for topic in member.assignment.topic_partitions)
    return 4 + len(member.subscribed_topic_names) + sum(partitions)


def _refusal(group_id: str, code: ErrorCode, text: str) -> DescribedGroup:
    return DescribedGroup(
        group_id=group_id, group_state=_DEAD, error_code=code, error_message=text or None
    )


def _member(member: DescribedSharer, image: ClusterImage) -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        assignment=DescribedAssignment(
            topic_partitions=[
                DescribedTopicPartitions(
                    topic_id=topic_id, topic_name=image.topic_names[topic_id], partitions=found
                )
                for topic_id, found in by_topic(member.assigned).items()
                if topic_id in image.topic_names
            ]
        ),
    )
