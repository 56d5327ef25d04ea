"""Classic groups, whose members compute the assignment: join, sync, heartbeat, leave, admin."""

from ottla.protocol.schema import (
    array,
    binary,
    boolean,
    int16,
    int32,
    message,
    string,
    struct,
    wire,
)


@struct
class JoinGroupRequestProtocol:
    name: str = wire(string, "0+")
    metadata: bytes = wire(binary, "0+")


@message(versions="0-9", flexible="6+")
class JoinGroupRequest:
    """Become a member of the next generation of a group."""

    group_id: str = wire(string, "0+")
    session_timeout_ms: int = wire(int32, "0+")
    rebalance_timeout_ms: int = wire(int32, "1+", default=-1)
    member_id: str = wire(string, "0+")
    group_instance_id: str | None = wire(string, "5+", nullable="5+", default=None)
    protocol_type: str = wire(string, "0+")
    protocols: list[JoinGroupRequestProtocol] = wire(array(JoinGroupRequestProtocol), "0+")
    reason: str | None = wire(string, "8+", nullable="8+", default=None)


@struct
class JoinGroupResponseMember:
    member_id: str = wire(string, "0+")
    group_instance_id: str | None = wire(string, "5+", nullable="5+", default=None)
    metadata: bytes = wire(binary, "0+")


@message(versions="0-9", flexible="6+")
class JoinGroupResponse:
    """The generation joined; only its leader receives the members."""

    throttle_time_ms: int = wire(int32, "2+")
    error_code: int = wire(int16, "0+")
    generation_id: int = wire(int32, "0+", default=-1)
    protocol_type: str | None = wire(string, "7+", nullable="7+", default=None)
    protocol_name: str | None = wire(string, "0+", nullable="7+")
    leader: str = wire(string, "0+")
    skip_assignment: bool = wire(boolean, "9+")
    member_id: str = wire(string, "0+")
    members: list[JoinGroupResponseMember] = wire(array(JoinGroupResponseMember), "0+")


@struct
class SyncGroupRequestAssignment:
    member_id: str = wire(string, "0+")
    assignment: bytes = wire(binary, "0+")


@message(versions="0-5", flexible="4+")
class SyncGroupRequest:
    """Fetch a member's assignment; the leader sends those of all members."""

    group_id: str = wire(string, "0+")
    generation_id: int = wire(int32, "0+")
    member_id: str = wire(string, "0+")
    group_instance_id: str | None = wire(string, "3+", nullable="3+", default=None)
    protocol_type: str | None = wire(string, "5+", nullable="5+", default=None)
    protocol_name: str | None = wire(string, "5+", nullable="5+", default=None)
    assignments: list[SyncGroupRequestAssignment] = wire(array(SyncGroupRequestAssignment), "0+")


@message(versions="0-5", flexible="4+")
class SyncGroupResponse:
    """The assignment, opaque to the broker."""

    throttle_time_ms: int = wire(int32, "1+")
    error_code: int = wire(int16, "0+")
    protocol_type: str | None = wire(string, "5+", nullable="5+", default=None)
    protocol_name: str | None = wire(string, "5+", nullable="5+", default=None)
    assignment: bytes = wire(binary, "0+")


@message(versions="0-4", flexible="4+")
class HeartbeatRequest:
    """Keep a member's session alive."""

    group_id: str = wire(string, "0+")
    generation_id: int = wire(int32, "0+")
    member_id: str = wire(string, "0+")
    group_instance_id: str | None = wire(string, "3+", nullable="3+", default=None)


@message(versions="0-4", flexible="4+")
class HeartbeatResponse:
    """No error, or the reason to rejoin."""

    throttle_time_ms: int = wire(int32, "1+")
    error_code: int = wire(int16, "0+")


@struct
class MemberIdentity:
    member_id: str = wire(string, "3+")
    group_instance_id: str | None = wire(string, "3+", nullable="3+", default=None)
    reason: str | None = wire(string, "5+", nullable="5+", default=None)


@message(versions="0-5", flexible="4+")
class LeaveGroupRequest:
    """Leave a group; from version 3 several members at once."""

    group_id: str = wire(string, "0+")
    member_id: str = wire(string, "0-2")
    members: list[MemberIdentity] = wire(array(MemberIdentity), "3+")


@struct
class MemberResponse:
    member_id: str = wire(string, "3+")
    group_instance_id: str | None = wire(string, "3+", nullable="3+")
    error_code: int = wire(int16, "3+")


@message(versions="0-5", flexible="4+")
class LeaveGroupResponse:
    """The result for each member."""

    throttle_time_ms: int = wire(int32, "1+")
    error_code: int = wire(int16, "0+")
    members: list[MemberResponse] = wire(array(MemberResponse), "3+")


@message(versions="0-6", flexible="5+")
class DescribeGroupsRequest:
    """Describe these groups."""

    groups: list[str] = wire(array(string), "0+")
    include_authorized_operations: bool = wire(boolean, "3+")


@struct
class DescribedGroupMember:
    member_id: str = wire(string, "0+")
    group_instance_id: str | None = wire(string, "4+", nullable="4+", default=None)
    client_id: str = wire(string, "0+")
    client_host: str = wire(string, "0+")
    member_metadata: bytes = wire(binary, "0+")
    member_assignment: bytes = wire(binary, "0+")


@struct
class DescribedGroup:
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "6+", nullable="6+", default=None)
    group_id: str = wire(string, "0+")
    group_state: str = wire(string, "0+")
    protocol_type: str = wire(string, "0+")
    protocol_data: str = wire(string, "0+")
    members: list[DescribedGroupMember] = wire(array(DescribedGroupMember), "0+")
    authorized_operations: int = wire(int32, "3+", default=-(2**31))


@message(versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    """State, protocol and members; one result for every requested group."""

    throttle_time_ms: int = wire(int32, "1+")
    groups: list[DescribedGroup] = wire(array(DescribedGroup), "0+")


@message(versions="0-5", flexible="3+")
class ListGroupsRequest:
    """List the groups of this broker, filtered by state and type."""

    states_filter: list[str] = wire(array(string), "4+")
    types_filter: list[str] = wire(array(string), "5+")


@struct
class ListedGroup:
    group_id: str = wire(string, "0+")
    protocol_type: str = wire(string, "0+")
    group_state: str = wire(string, "4+")
    group_type: str = wire(string, "5+")


@message(versions="0-5", flexible="3+")
class ListGroupsResponse:
    """Groups with their state and type."""

    throttle_time_ms: int = wire(int32, "1+")
    error_code: int = wire(int16, "0+")
    groups: list[ListedGroup] = wire(array(ListedGroup), "0+")


@message(versions="0-2", flexible="2+")
class DeleteGroupsRequest:
    """Delete groups that have no members."""

    groups_names: list[str] = wire(array(string), "0+")


@struct
class DeletableGroupResult:
    group_id: str = wire(string, "0+")
    error_code: int = wire(int16, "0+")


@message(versions="0-2", flexible="2+")
class DeleteGroupsResponse:
    """The result for each group."""

    throttle_time_ms: int = wire(int32, "0+")
    results: list[DeletableGroupResult] = wire(array(DeletableGroupResult), "0+")
