"""DescribeGroups (15) 0-6, ListGroups (16) 0-5, DeleteGroups (42) 0-2.

Every requested group has a result: librdkafka aborts its process otherwise.
Not done: authorised operations, which are "not known" in responses.
"""

from typing import Final

from ottla.broker.authorized_operations import GROUP_OPERATIONS
from ottla.broker.services import RequestContext, Services
from ottla.broker.slices import Pace, finish
from ottla.coordinator.groups.descriptions import GroupDescription
from ottla.coordinator.groups.descriptions import ListedGroup as Listed
from ottla.coordinator.runtime.internal_topics import SHARE_STATE_TOPIC
from ottla.errors import ApiError, ErrorCode
from ottla.protocol.codec import Steps
from ottla.protocol.messages.classic_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

_NOT_FOUND_FROM: Final = 6  # DescribeGroups: before, a group that does not exist is a dead one
_DEAD: Final = "Dead"


class DescribeGroups:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups

    async def __call__(
        self, request: DescribeGroupsRequest, context: RequestContext
    ) -> DescribeGroupsResponse:
        groups, pace = [], Pace()
        for group_id in request.groups:
            described = await self._describe(group_id, context.version)
            if request.include_authorized_operations and not described.error_code:
                described.authorized_operations = GROUP_OPERATIONS
            groups.append(described)
            await pace.spend(4 + len(described.members))
        return DescribeGroupsResponse(groups=groups)

    async def _describe(self, group_id: str, version: int) -> DescribedGroup:
        try:
            found: GroupDescription | None = await self._coordinator.run(
                group_id, lambda groups, ticket, now_ms: groups.describe(ticket, group_id)
            )
        except ApiError as refused:
            return DescribedGroup(
                group_id=group_id, error_code=refused.code, error_message=str(refused) or None
            )
        if found is None:
            return _absent(group_id, version)
        return DescribedGroup(
            group_id=group_id,
            group_state=found.state,
            protocol_type=found.protocol_type,
            protocol_data=found.protocol,
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata,
                    member_assignment=member.assignment,
                )
                for member in found.members
            ],
        )


def _absent(group_id: str, version: int) -> DescribedGroup:
    if version < _NOT_FOUND_FROM:
        return DescribedGroup(group_id=group_id, group_state=_DEAD)
    return DescribedGroup(
        group_id=group_id,
        group_state=_DEAD,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"there is no classic group {group_id[:100]!r}",
    )


class ListGroups:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups

    async def __call__(
        self, request: ListGroupsRequest, context: RequestContext
    ) -> ListGroupsResponse:
        try:
            shards: list[list[Listed]] = await self._coordinator.run_everywhere(
                lambda groups, ticket, now_ms: groups.list(ticket)
            )
        except ApiError as refused:
            return ListGroupsResponse(error_code=refused.code)
        return await finish(_listed(request, shards))


def _listed(request: ListGroupsRequest, shards: list[list[Listed]]) -> Steps[ListGroupsResponse]:
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    response = ListGroupsResponse()
    for listed in shards:
        for group in listed:
            yield 1
            if (not states or group.state.lower() in states) and (
                not types or group.type.lower() in types
            ):
                response.groups.append(
                    ListedGroup(
                        group_id=group.group_id,
                        protocol_type=group.protocol_type,
                        group_state=group.state,
                        group_type=group.type,
                    )
                )
    return response


class DeleteGroups:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups
        self._services = services

    async def __call__(
        self, request: DeleteGroupsRequest, context: RequestContext
    ) -> DeleteGroupsResponse:
        results, pace = [], Pace()
        for group_id in dict.fromkeys(request.groups_names):
            code = await self._delete(group_id)
            results.append(DeletableGroupResult(group_id=group_id, error_code=code))
            await pace.spend(4)
        return DeleteGroupsResponse(results=results)

    async def _delete(self, group_id: str) -> ErrorCode:
        try:
            if SHARE_STATE_TOPIC in self._services.state.image.topics:
                await self._services.share_group_states.delete(group_id)
            code: ErrorCode = await self._coordinator.run(
                group_id, lambda groups, ticket, now_ms: groups.delete(ticket, group_id, now_ms)
            )
        except ApiError as refused:
            return refused.code
        return code
