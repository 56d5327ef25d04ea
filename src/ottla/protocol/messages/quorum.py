"""DescribeQuorum: the voters that keep the cluster metadata."""

from ottla.model import Uuid
from ottla.protocol.schema import (
    array,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
    uint16,
    uuid,
    wire,
)


@struct
class DescribeQuorumRequestPartition:
    partition_index: int = wire(int32, "0+")


@struct
class DescribeQuorumRequestTopic:
    topic_name: str = wire(string, "0+")
    partitions: list[DescribeQuorumRequestPartition] = wire(
        array(DescribeQuorumRequestPartition), "0+"
    )


@message(versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    """Describe the voters behind the metadata log."""

    topics: list[DescribeQuorumRequestTopic] = wire(array(DescribeQuorumRequestTopic), "0+")


@struct
class QuorumReplicaState:
    replica_id: int = wire(int32, "0+")
    replica_directory_id: Uuid = wire(uuid, "2+")
    log_end_offset: int = wire(int64, "0+")
    last_fetch_timestamp: int = wire(int64, "1+", default=-1)
    last_caught_up_timestamp: int = wire(int64, "1+", default=-1)


@struct
class DescribeQuorumResponsePartition:
    partition_index: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "2+", nullable="2+")
    leader_id: int = wire(int32, "0+")
    leader_epoch: int = wire(int32, "0+")
    high_watermark: int = wire(int64, "0+")
    current_voters: list[QuorumReplicaState] = wire(array(QuorumReplicaState), "0+")
    observers: list[QuorumReplicaState] = wire(array(QuorumReplicaState), "0+")


@struct
class DescribeQuorumResponseTopic:
    topic_name: str = wire(string, "0+")
    partitions: list[DescribeQuorumResponsePartition] = wire(
        array(DescribeQuorumResponsePartition), "0+"
    )


@struct
class QuorumListener:
    name: str = wire(string, "2+")
    host: str = wire(string, "2+")
    port: int = wire(uint16, "2+")


@struct
class QuorumNode:
    node_id: int = wire(int32, "2+")
    listeners: list[QuorumListener] = wire(array(QuorumListener), "2+")


@message(versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    """Leader, voters and observers of the metadata log."""

    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "2+", nullable="2+")
    topics: list[DescribeQuorumResponseTopic] = wire(array(DescribeQuorumResponseTopic), "0+")
    nodes: list[QuorumNode] = wire(array(QuorumNode), "2+")
