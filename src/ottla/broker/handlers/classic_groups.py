"""JoinGroup (11) 0-9, SyncGroup (14) 0-5, Heartbeat (12) 0-4, LeaveGroup (13) 0-5.

The response to a join is sent when its rebalance ends, that to a sync when the leader has synced:
both hold back requests behind them on their connection, as in Kafka. While groups are being read
from the log, a heartbeat succeeds and a sync gets REBALANCE_IN_PROGRESS: clients of these APIs know
no error for it.
"""

from collections.abc import Sequence
from typing import Final

from ottla.broker.deferred import Deferred
from ottla.broker.services import RequestContext, Services
from ottla.broker.slices import finish, parts
from ottla.coordinator.groups.classic_protocol import Join, Joined, Protocol, Sync, Synced
from ottla.errors import ApiError, CoordinatorLoadInProgress, ErrorCode
from ottla.protocol.codec import Steps
from ottla.protocol.messages.classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

_KNOWN_ID_FROM: Final = 4  # JoinGroup: a new member first fetches an id
_NULL_PROTOCOL_FROM: Final = 7
_SKIPPING_FROM: Final = 9
_MANY_LEAVE_FROM: Final = 3
_PROTOCOLS_MAX: Final = 100  # of a member: each rebalance looks at those of all
_LEAVES_PER_TURN: Final = 1000  # members that leave in one turn of the loop


class JoinGroup:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups

    async def __call__(
        self, request: JoinGroupRequest, context: RequestContext
    ) -> JoinGroupResponse:
        try:
            joined = await self._join(request, context)
        except ApiError as refused:
            joined = Joined(error=refused.code, member_id=request.member_id)
        no_protocol = None if context.version >= _NULL_PROTOCOL_FROM else ""
        return JoinGroupResponse(
            error_code=joined.error,
            generation_id=joined.generation,
            protocol_type=joined.protocol_type,
            protocol_name=no_protocol if joined.protocol is None else joined.protocol,
            leader=joined.leader,
            skip_assignment=joined.skips_assignment,
            member_id=joined.member_id,
            members=[
                JoinGroupResponseMember(
                    member_id=member_id, group_instance_id=instance_id, metadata=metadata
                )
                for member_id, instance_id, metadata in joined.members
            ],
        )

    async def _join(self, request: JoinGroupRequest, context: RequestContext) -> Joined:
        group_id = request.group_id
        if not group_id:
            return Joined(error=ErrorCode.INVALID_GROUP_ID, member_id=request.member_id)
        if len(request.protocols) > _PROTOCOLS_MAX:
            return Joined(error=ErrorCode.INVALID_REQUEST, member_id=request.member_id)
        join = _join(request, context)
        joined: Joined = await self._coordinator.run(
            group_id, lambda groups, ticket, now_ms: groups.join(ticket, group_id, join, now_ms)
        )
        return joined


def _join(request: JoinGroupRequest, context: RequestContext) -> Join:
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if rebalance_timeout_ms < 0:  # version 0 does not say
        rebalance_timeout_ms = request.session_timeout_ms
    return Join(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=f"/{context.peer}",  # as Kafka writes it; tools strip the slash
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(p.name, p.metadata) for p in request.protocols),
        needs_known_id=context.version >= _KNOWN_ID_FROM,
        supports_skip_assignment=context.version >= _SKIPPING_FROM,
    )


class SyncGroup:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups

    def __call__(
        self, request: SyncGroupRequest, context: RequestContext
    ) -> SyncGroupResponse | Deferred[Synced, SyncGroupResponse]:
        group_id = request.group_id
        if not group_id:
            return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        sync = Sync(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments={a.member_id: a.assignment for a in request.assignments},
        )
        return _SyncResponse().submit(
            self._coordinator,
            group_id,
            lambda groups, ticket, now_ms: groups.sync(ticket, group_id, sync, now_ms),
        )


class _SyncResponse(Deferred[Synced, SyncGroupResponse]):
    __slots__ = ()

    def build(self, value: Synced) -> SyncGroupResponse:
        return SyncGroupResponse(
            error_code=value.error,
            protocol_type=value.protocol_type,
            protocol_name=value.protocol,
            assignment=value.assignment,
        )

    def refuse(self, error: ApiError) -> SyncGroupResponse:
        """REBALANCE_IN_PROGRESS while the log is read: the rebalance under way is lost."""
        is_loading = isinstance(error, CoordinatorLoadInProgress)
        code = ErrorCode.REBALANCE_IN_PROGRESS if is_loading else error.code
        return SyncGroupResponse(error_code=code)


class Heartbeat:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups

    def __call__(
        self, request: HeartbeatRequest, context: RequestContext
    ) -> HeartbeatResponse | Deferred[ErrorCode, HeartbeatResponse]:
        if not request.group_id:
            return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        return _HeartbeatResponse().submit(
            self._coordinator,
            request.group_id,
            lambda groups, ticket, now_ms: groups.heartbeat(
                ticket,
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id,
                now_ms,
            ),
        )


class _HeartbeatResponse(Deferred[ErrorCode, HeartbeatResponse]):
    __slots__ = ()

    def build(self, value: ErrorCode) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=value)

    def refuse(self, error: ApiError) -> HeartbeatResponse:
        """No error while the log is read: on any other response a client leaves its group."""
        is_loading = isinstance(error, CoordinatorLoadInProgress)
        return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else error.code)


class LeaveGroup:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups

    async def __call__(
        self, request: LeaveGroupRequest, context: RequestContext
    ) -> LeaveGroupResponse:
        identities: list[tuple[str, str | None]] = [(request.member_id, None)]
        if context.version >= _MANY_LEAVE_FROM:
            identities = [(m.member_id, m.group_instance_id) for m in request.members]
        if not request.group_id:
            return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        errors: list[ErrorCode] = []
        try:
            for part in parts(identities, _LEAVES_PER_TURN):
                errors += await self._leave(request.group_id, part)
        except ApiError as refused:
            return LeaveGroupResponse(error_code=refused.code)
        if context.version < _MANY_LEAVE_FROM:
            return LeaveGroupResponse(error_code=errors[0])
        return await finish(_left(identities, errors))

    async def _leave(
        self, group_id: str, identities: Sequence[tuple[str, str | None]]
    ) -> list[ErrorCode]:
        errors: list[ErrorCode] = await self._coordinator.run(
            group_id,
            lambda groups, ticket, now_ms: groups.leave(ticket, group_id, identities, now_ms),
        )
        return errors


def _left(
    identities: Sequence[tuple[str, str | None]], errors: Sequence[ErrorCode]
) -> Steps[LeaveGroupResponse]:
    response = LeaveGroupResponse()
    for (member_id, instance_id), error in zip(identities, errors, strict=True):
        response.members.append(
            MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=error)
        )
        yield 1
    return response
