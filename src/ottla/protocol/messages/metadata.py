"""Metadata and DescribeTopicPartitions: brokers, topics and partition leaders."""

from ottla.model import Uuid
from ottla.protocol.schema import array, boolean, int16, int32, message, string, struct, uuid, wire


@struct
class MetadataRequestTopic:
    topic_id: Uuid = wire(uuid, "10+")
    name: str | None = wire(string, "0+", nullable="10+")


@message(versions="0-13", flexible="9+")
class MetadataRequest:
    """Describe these topics, or all of them when `topics` is null (empty in version 0)."""

    topics: list[MetadataRequestTopic] | None = wire(
        array(MetadataRequestTopic), "0+", nullable="1+"
    )
    allow_auto_topic_creation: bool = wire(boolean, "4+", default=True)
    include_cluster_authorized_operations: bool = wire(boolean, "8-10")
    include_topic_authorized_operations: bool = wire(boolean, "8+")


@struct
class MetadataResponseBroker:
    node_id: int = wire(int32, "0+")
    host: str = wire(string, "0+")
    port: int = wire(int32, "0+")
    rack: str | None = wire(string, "1+", nullable="1+", default=None)


@struct
class MetadataResponsePartition:
    error_code: int = wire(int16, "0+")
    partition_index: int = wire(int32, "0+")
    leader_id: int = wire(int32, "0+")
    leader_epoch: int = wire(int32, "7+", default=-1)
    replica_nodes: list[int] = wire(array(int32), "0+")
    isr_nodes: list[int] = wire(array(int32), "0+")
    offline_replicas: list[int] = wire(array(int32), "5+")


@struct
class MetadataResponseTopic:
    error_code: int = wire(int16, "0+")
    name: str | None = wire(string, "0+", nullable="12+")
    topic_id: Uuid = wire(uuid, "10+")
    is_internal: bool = wire(boolean, "1+")
    partitions: list[MetadataResponsePartition] = wire(array(MetadataResponsePartition), "0+")
    topic_authorized_operations: int = wire(int32, "8+", default=-(2**31))


@message(versions="0-13", flexible="9+")
class MetadataResponse:
    """The brokers of the cluster, and the leader and replicas of each partition."""

    throttle_time_ms: int = wire(int32, "3+")
    brokers: list[MetadataResponseBroker] = wire(array(MetadataResponseBroker), "0+")
    cluster_id: str | None = wire(string, "2+", nullable="2+", default=None)
    controller_id: int = wire(int32, "1+", default=-1)
    topics: list[MetadataResponseTopic] = wire(array(MetadataResponseTopic), "0+")
    cluster_authorized_operations: int = wire(int32, "8-10", default=-(2**31))
    error_code: int = wire(int16, "13+")


@struct
class DescribeTopicPartitionsRequestTopic:
    name: str = wire(string, "0+")


@struct
class Cursor:
    topic_name: str = wire(string, "0+")
    partition_index: int = wire(int32, "0+")


@message(versions="0", flexible="0+")
class DescribeTopicPartitionsRequest:
    """Describe these topics page by page, starting at `cursor`."""

    topics: list[DescribeTopicPartitionsRequestTopic] = wire(
        array(DescribeTopicPartitionsRequestTopic), "0+"
    )
    response_partition_limit: int = wire(int32, "0+", default=2000)
    cursor: Cursor | None = wire(Cursor, "0+", nullable="0+", default=None)


@struct
class DescribeTopicPartitionsResponsePartition:
    error_code: int = wire(int16, "0+")
    partition_index: int = wire(int32, "0+")
    leader_id: int = wire(int32, "0+")
    leader_epoch: int = wire(int32, "0+", default=-1)
    replica_nodes: list[int] = wire(array(int32), "0+")
    isr_nodes: list[int] = wire(array(int32), "0+")
    eligible_leader_replicas: list[int] | None = wire(
        array(int32), "0+", nullable="0+", default=None
    )
    last_known_elr: list[int] | None = wire(array(int32), "0+", nullable="0+", default=None)
    offline_replicas: list[int] = wire(array(int32), "0+")


@struct
class DescribeTopicPartitionsResponseTopic:
    error_code: int = wire(int16, "0+")
    name: str | None = wire(string, "0+", nullable="0+")
    topic_id: Uuid = wire(uuid, "0+")
    is_internal: bool = wire(boolean, "0+")
    partitions: list[DescribeTopicPartitionsResponsePartition] = wire(
        array(DescribeTopicPartitionsResponsePartition), "0+"
    )
    topic_authorized_operations: int = wire(int32, "0+", default=-(2**31))


@message(versions="0", flexible="0+")
class DescribeTopicPartitionsResponse:
    """A page of partitions; `next_cursor` is null on the last."""

    throttle_time_ms: int = wire(int32, "0+")
    topics: list[DescribeTopicPartitionsResponseTopic] = wire(
        array(DescribeTopicPartitionsResponseTopic), "0+"
    )
    next_cursor: Cursor | None = wire(Cursor, "0+", nullable="0+", default=None)
