"""Share groups (KIP-932): heartbeat, describe, fetch and acknowledge."""

from ottla.model import Uuid
from ottla.protocol.schema import (
    Records,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    message,
    records,
    string,
    struct,
    uuid,
    wire,
)


@message(versions="1", flexible="0+")
class ShareGroupHeartbeatRequest:
    """Join, stay in or leave a share group."""

    group_id: str = wire(string, "0+")
    member_id: str = wire(string, "0+")
    member_epoch: int = wire(int32, "0+")
    rack_id: str | None = wire(string, "0+", nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = wire(
        array(string), "0+", nullable="0+", default=None
    )


@struct
class HeartbeatTopicPartitions:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[int] = wire(array(int32), "0+")


@struct
class HeartbeatAssignment:
    topic_partitions: list[HeartbeatTopicPartitions] = wire(array(HeartbeatTopicPartitions), "0+")


@message(versions="1", flexible="0+")
class ShareGroupHeartbeatResponse:
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


@message(versions="1", flexible="0+")
class ShareGroupDescribeRequest:
    """Describe these share groups."""

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
    rack_id: str | None = wire(string, "0+", nullable="0+", default=None)
    member_epoch: int = wire(int32, "0+")
    client_id: str = wire(string, "0+")
    client_host: str = wire(string, "0+")
    subscribed_topic_names: list[str] = wire(array(string), "0+")
    assignment: DescribedAssignment = wire(DescribedAssignment, "0+")


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


@message(versions="1", flexible="0+")
class ShareGroupDescribeResponse:
    """Epochs, members and assignments; one result for every requested group."""

    throttle_time_ms: int = wire(int32, "0+")
    groups: list[DescribedGroup] = wire(array(DescribedGroup), "0+")


@struct
class AcknowledgementBatch:
    """Tags from 10000 on are Ottla's, about what is released; other brokers ignore them."""

    first_offset: int = wire(int64, "0+")
    last_offset: int = wire(int64, "0+")
    acknowledge_types: list[int] = wire(array(int8), "0+")
    retry_delay_ms: int = wire(int32, "0+", tag=10000, default=-1)
    is_uncounted: bool = wire(boolean, "0+", tag=10001)
    reason: str = wire(string, "0+", tag=10002)


@struct
class ShareFetchPartition:
    partition_index: int = wire(int32, "0+")
    partition_max_bytes: int = wire(int32, "0")
    acknowledgement_batches: list[AcknowledgementBatch] = wire(array(AcknowledgementBatch), "0+")


@struct
class ShareFetchTopic:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[ShareFetchPartition] = wire(array(ShareFetchPartition), "0+")


@struct
class ShareForgottenTopic:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[int] = wire(array(int32), "0+")


@message(versions="1-2", flexible="0+")
class ShareFetchRequest:
    """Acquire records, and acknowledge earlier ones on the way."""

    group_id: str | None = wire(string, "0+", nullable="0+", default=None)
    member_id: str | None = wire(string, "0+", nullable="0+")
    share_session_epoch: int = wire(int32, "0+")
    max_wait_ms: int = wire(int32, "0+")
    min_bytes: int = wire(int32, "0+")
    max_bytes: int = wire(int32, "0+", default=2**31 - 1)
    max_records: int = wire(int32, "1+")
    batch_size: int = wire(int32, "1+")
    share_acquire_mode: int = wire(int8, "2+")
    is_renew_ack: bool = wire(boolean, "2+")
    topics: list[ShareFetchTopic] = wire(array(ShareFetchTopic), "0+")
    forgotten_topics_data: list[ShareForgottenTopic] = wire(array(ShareForgottenTopic), "0+")


@struct
class LeaderIdAndEpoch:
    leader_id: int = wire(int32, "0+")
    leader_epoch: int = wire(int32, "0+")


@struct
class AcquiredRecords:
    first_offset: int = wire(int64, "0+")
    last_offset: int = wire(int64, "0+")
    delivery_count: int = wire(int16, "0+")


@struct
class ShareFetchPartitionResponse:
    partition_index: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    acknowledge_error_code: int = wire(int16, "0+")
    acknowledge_error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = wire(LeaderIdAndEpoch, "0+")
    records: Records | None = wire(records, "0+", nullable="0")
    acquired_records: list[AcquiredRecords] = wire(array(AcquiredRecords), "0+")


@struct
class ShareFetchTopicResponse:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[ShareFetchPartitionResponse] = wire(array(ShareFetchPartitionResponse), "0+")


@struct
class NodeEndpoint:
    node_id: int = wire(int32, "0+")
    host: str = wire(string, "0+")
    port: int = wire(int32, "0+")
    rack: str | None = wire(string, "0+", nullable="0+", default=None)


@message(versions="1-2", flexible="0+")
class ShareFetchResponse:
    """Batches, and which of their records were acquired."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = wire(int32, "1+")
    responses: list[ShareFetchTopicResponse] = wire(array(ShareFetchTopicResponse), "0+")
    node_endpoints: list[NodeEndpoint] = wire(array(NodeEndpoint), "0+")


@struct
class ShareAcknowledgePartition:
    partition_index: int = wire(int32, "0+")
    acknowledgement_batches: list[AcknowledgementBatch] = wire(array(AcknowledgementBatch), "0+")


@struct
class ShareAcknowledgeTopic:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[ShareAcknowledgePartition] = wire(array(ShareAcknowledgePartition), "0+")


@message(versions="1-2", flexible="0+")
class ShareAcknowledgeRequest:
    """Acknowledge records: 0 gap, 1 accept, 2 release, 3 reject, 4 renew."""

    group_id: str | None = wire(string, "0+", nullable="0+", default=None)
    member_id: str | None = wire(string, "0+", nullable="0+")
    share_session_epoch: int = wire(int32, "0+")
    is_renew_ack: bool = wire(boolean, "2+")
    topics: list[ShareAcknowledgeTopic] = wire(array(ShareAcknowledgeTopic), "0+")


@struct
class ShareAcknowledgePartitionResponse:
    partition_index: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = wire(LeaderIdAndEpoch, "0+")


@struct
class ShareAcknowledgeTopicResponse:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[ShareAcknowledgePartitionResponse] = wire(
        array(ShareAcknowledgePartitionResponse), "0+"
    )


@message(versions="1-2", flexible="0+")
class ShareAcknowledgeResponse:
    """The result for each partition."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = wire(int32, "2+")
    responses: list[ShareAcknowledgeTopicResponse] = wire(
        array(ShareAcknowledgeTopicResponse), "0+"
    )
    node_endpoints: list[NodeEndpoint] = wire(array(NodeEndpoint), "0+")
