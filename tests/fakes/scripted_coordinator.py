"""A coordinator that answers what a test tells it to, and otherwise lets its one member lead."""

from collections import deque
from typing import Any

from fakes.answering_broker import AnsweringBroker, OneTopic, Script
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ottla.protocol.messages.coordination import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

MEMBER_ID = "member-1"


class ScriptedCoordinator:
    """Errors are taken from `errors` by API, one for each request; then all goes well."""

    def __init__(self, topic: OneTopic | None = None) -> None:
        self.topic = topic or OneTopic("orders", 2)
        self.errors: dict[ApiKey, deque[ErrorCode | None]] = {}
        self.generation = 0
        self.broker = AnsweringBroker(
            {
                ApiKey.METADATA: self.topic,
                ApiKey.FIND_COORDINATOR: self._find,
                ApiKey.JOIN_GROUP: self._join,
                ApiKey.SYNC_GROUP: self._sync,
                ApiKey.HEARTBEAT: self._heartbeat,
                ApiKey.LEAVE_GROUP: self._leave,
                ApiKey.OFFSET_COMMIT: self._commit,
            }
        )

    def will_answer(self, key: ApiKey, *errors: ErrorCode | None) -> None:
        """The next requests of this API fail like that; None is silence."""
        self.errors[key] = deque(errors)

    def script(self, key: ApiKey, script: Script) -> None:
        self.broker.scripts[key] = script

    def asked(self, key: ApiKey) -> list[Any]:
        """Every request of one API, in order."""
        return [request for asked_key, _, request in self.broker.asked if asked_key is key]

    def _next_error(self, key: ApiKey) -> ErrorCode | None:
        errors = self.errors.get(key)
        return errors.popleft() if errors else ErrorCode.NONE

    def _find(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse | None:
        code = self._next_error(ApiKey.FIND_COORDINATOR)
        if code is None:
            return None
        host, port = self.broker.endpoint
        found = Coordinator(
            key=request.key, node_id=0, host=host, port=port, error_code=code, error_message=None
        )
        return FindCoordinatorResponse(
            coordinators=[found], node_id=0, host=host, port=port, error_code=code
        )

    def _join(self, request: JoinGroupRequest) -> JoinGroupResponse | None:
        code = self._next_error(ApiKey.JOIN_GROUP)
        if code is None:
            return None
        if code is not ErrorCode.NONE:
            return JoinGroupResponse(error_code=code, protocol_name=None, member_id=MEMBER_ID)
        self.generation += 1
        chosen = request.protocols[0]
        member_id = request.member_id or MEMBER_ID
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=request.protocol_type,
            protocol_name=chosen.name,
            leader=member_id,
            member_id=member_id,
            members=[JoinGroupResponseMember(member_id=member_id, metadata=chosen.metadata)],
        )

    def _sync(self, request: SyncGroupRequest) -> SyncGroupResponse | None:
        code = self._next_error(ApiKey.SYNC_GROUP)
        if code is None:
            return None
        if code is not ErrorCode.NONE:
            return SyncGroupResponse(error_code=code)
        return SyncGroupResponse(assignment=request.assignments[0].assignment)

    def _heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse | None:
        code = self._next_error(ApiKey.HEARTBEAT)
        return None if code is None else HeartbeatResponse(error_code=code)

    def _leave(self, request: LeaveGroupRequest) -> LeaveGroupResponse | None:
        code = self._next_error(ApiKey.LEAVE_GROUP)
        return None if code is None else LeaveGroupResponse(error_code=code)

    def _commit(self, request: OffsetCommitRequest) -> OffsetCommitResponse | None:
        code = self._next_error(ApiKey.OFFSET_COMMIT)
        if code is None:
            return None
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponsePartition(
                            partition_index=partition.partition_index, error_code=code
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
