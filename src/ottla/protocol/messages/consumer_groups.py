"""Groups whose assignment the broker computes (KIP-848): heartbeat and describe."""

from ottla.model import Uuid
from ottla.protocol.schema import (
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
    uuid,
    wire,
)


@struct
class HeartbeatTopicPartitions:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[int] = wire(array(int32), "0+")


@message(versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest:
    """The whole protocol of a member; null fields have not changed since the last one."""

    group_id: str = wire(string, "0+")
    member_id: str = wire(string, "0+")
    member_epoch: int = wire(int32, "0+")
    instance_id: str | None = wire(string, "0+", nullable="0+", default=None)
    rack_id: str | None = wire(string, "0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = wire(int32, "0+", default=-1)
    subscribed_topic_names: list[str] | None = wire(
        array(string), "0+", nullable="0+", default=None
    )
    subscribed_topic_regex: str | None = wire(string, "1+", nullable="1+", default=None)
    server_assignor: str | None = wire(string, "0+", nullable="0+", default=None)
    topic_partitions: list[HeartbeatTopicPartitions] | None = wire(
        array(HeartbeatTopicPartitions), "0+", nullable="0+", default=None
    )


@struct
class HeartbeatAssignment:
    topic_partitions: list[HeartbeatTopicPartitions] = wire(array(HeartbeatTopicPartitions), "0+")


@message(versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    """The member's epoch, and its assignment when that changed."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    member_id: str | None = wire(string, "0+", nullable="0+", default=None)
    member_epoch: int = wire(int32, "0+")
    heartbeat_interval_ms: int = wire(int32, "0+")
    assignment: HeartbeatAssignment | None = wire(
        HeartbeatAssignment, "0+", nullable="0+", default=None
    )


@message(versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
    """Describe these groups."""

    group_ids: list[str] = wire(array(string), "0+")
    include_authorized_operations: bool = wire(boolean, "0+")


@struct
class DescribedTopicPartitions:
    topic_id: Uuid = wire(uuid, "0+")
    topic_name: str = wire(string, "0+")
    partitions: list[int] = wire(array(int32), "0+")


@struct
class DescribedAssignment:
    topic_partitions: list[DescribedTopicPartitions] = wire(array(DescribedTopicPartitions), "0+")


@struct
class DescribedMember:
    member_id: str = wire(string, "0+")
    instance_id: str | None = wire(string, "0+", nullable="0+", default=None)
    rack_id: str | None = wire(string, "0+", nullable="0+", default=None)
    member_epoch: int = wire(int32, "0+")
    client_id: str = wire(string, "0+")
    client_host: str = wire(string, "0+")
    subscribed_topic_names: list[str] = wire(array(string), "0+")
    subscribed_topic_regex: str | None = wire(string, "0+", nullable="0+", default=None)
    assignment: DescribedAssignment = wire(DescribedAssignment, "0+")
    target_assignment: DescribedAssignment = wire(DescribedAssignment, "0+")
    member_type: int = wire(int8, "1+", default=-1)


@struct
class DescribedGroup:
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    group_id: str = wire(string, "0+")
    group_state: str = wire(string, "0+")
    group_epoch: int = wire(int32, "0+")
    assignment_epoch: int = wire(int32, "0+")
    assignor_name: str = wire(string, "0+")
    members: list[DescribedMember] = wire(array(DescribedMember), "0+")
    authorized_operations: int = wire(int32, "0+", default=-(2**31))


@message(versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    """Epochs, members and assignments; one result for every requested group."""

    throttle_time_ms: int = wire(int32, "0+")
    groups: list[DescribedGroup] = wire(array(DescribedGroup), "0+")
