"""OffsetCommit, OffsetFetch and OffsetDelete: committed offsets of a group."""

from ottla.model import Uuid
from ottla.protocol.schema import (
    array,
    boolean,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
    uuid,
    wire,
)


@struct
class OffsetCommitRequestPartition:
    partition_index: int = wire(int32, "0+")
    committed_offset: int = wire(int64, "0+")
    committed_leader_epoch: int = wire(int32, "6+", default=-1)
    committed_metadata: str | None = wire(string, "0+", nullable="0+")


@struct
class OffsetCommitRequestTopic:
    name: str = wire(string, "0-9")
    topic_id: Uuid = wire(uuid, "10+")
    partitions: list[OffsetCommitRequestPartition] = wire(array(OffsetCommitRequestPartition), "0+")


@message(versions="2-10", flexible="8+")
class OffsetCommitRequest:
    """Commit offsets of a group."""

    group_id: str = wire(string, "0+")
    generation_id_or_member_epoch: int = wire(int32, "1+", default=-1)
    member_id: str = wire(string, "1+")
    group_instance_id: str | None = wire(string, "7+", nullable="7+", default=None)
    retention_time_ms: int = wire(int64, "2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = wire(array(OffsetCommitRequestTopic), "0+")


@struct
class OffsetCommitResponsePartition:
    partition_index: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")


@struct
class OffsetCommitResponseTopic:
    name: str = wire(string, "0-9")
    topic_id: Uuid = wire(uuid, "10+")
    partitions: list[OffsetCommitResponsePartition] = wire(
        array(OffsetCommitResponsePartition), "0+"
    )


@message(versions="2-10", flexible="8+")
class OffsetCommitResponse:
    """The result for each partition."""

    throttle_time_ms: int = wire(int32, "3+")
    topics: list[OffsetCommitResponseTopic] = wire(array(OffsetCommitResponseTopic), "0+")


@struct
class OffsetFetchRequestTopic:
    name: str = wire(string, "0-7")
    partition_indexes: list[int] = wire(array(int32), "0-7")


@struct
class OffsetFetchRequestTopics:
    name: str = wire(string, "8-9")
    topic_id: Uuid = wire(uuid, "10+")
    partition_indexes: list[int] = wire(array(int32), "8+")


@struct
class OffsetFetchRequestGroup:
    group_id: str = wire(string, "8+")
    member_id: str | None = wire(string, "9+", nullable="9+", default=None)
    member_epoch: int = wire(int32, "9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = wire(
        array(OffsetFetchRequestTopics), "8+", nullable="8+"
    )


@message(versions="1-10", flexible="6+")
class OffsetFetchRequest:
    """Fetch committed offsets of a group; from version 8 of several groups."""

    group_id: str = wire(string, "0-7")
    topics: list[OffsetFetchRequestTopic] | None = wire(
        array(OffsetFetchRequestTopic), "0-7", nullable="2-7"
    )
    groups: list[OffsetFetchRequestGroup] = wire(array(OffsetFetchRequestGroup), "8+")
    require_stable: bool = wire(boolean, "7+")


@struct
class OffsetFetchResponsePartition:
    partition_index: int = wire(int32, "0-7")
    committed_offset: int = wire(int64, "0-7")
    committed_leader_epoch: int = wire(int32, "5-7", default=-1)
    metadata: str | None = wire(string, "0-7", nullable="0-7")
    error_code: int = wire(int16, "0-7")


@struct
class OffsetFetchResponseTopic:
    name: str = wire(string, "0-7")
    partitions: list[OffsetFetchResponsePartition] = wire(
        array(OffsetFetchResponsePartition), "0-7"
    )


@struct
class OffsetFetchResponsePartitions:
    partition_index: int = wire(int32, "8+")
    committed_offset: int = wire(int64, "8+")
    committed_leader_epoch: int = wire(int32, "8+", default=-1)
    metadata: str | None = wire(string, "8+", nullable="8+")
    error_code: int = wire(int16, "8+")


@struct
class OffsetFetchResponseTopics:
    name: str = wire(string, "8-9")
    topic_id: Uuid = wire(uuid, "10+")
    partitions: list[OffsetFetchResponsePartitions] = wire(
        array(OffsetFetchResponsePartitions), "8+"
    )


@struct
class OffsetFetchResponseGroup:
    group_id: str = wire(string, "8+")
    topics: list[OffsetFetchResponseTopics] = wire(array(OffsetFetchResponseTopics), "8+")
    error_code: int = wire(int16, "8+")


@message(versions="1-10", flexible="6+")
class OffsetFetchResponse:
    """Committed offsets; -1 where there is none."""

    throttle_time_ms: int = wire(int32, "3+")
    topics: list[OffsetFetchResponseTopic] = wire(array(OffsetFetchResponseTopic), "0-7")
    error_code: int = wire(int16, "2-7")
    groups: list[OffsetFetchResponseGroup] = wire(array(OffsetFetchResponseGroup), "8+")


@struct
class OffsetDeleteRequestPartition:
    partition_index: int = wire(int32, "0+")


@struct
class OffsetDeleteRequestTopic:
    name: str = wire(string, "0+")
    partitions: list[OffsetDeleteRequestPartition] = wire(array(OffsetDeleteRequestPartition), "0+")


@message(versions="0", flexible="none")
class OffsetDeleteRequest:
    """Delete committed offsets. This message never became flexible."""

    group_id: str = wire(string, "0+")
    topics: list[OffsetDeleteRequestTopic] = wire(array(OffsetDeleteRequestTopic), "0+")


@struct
class OffsetDeleteResponsePartition:
    partition_index: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")


@struct
class OffsetDeleteResponseTopic:
    name: str = wire(string, "0+")
    partitions: list[OffsetDeleteResponsePartition] = wire(
        array(OffsetDeleteResponsePartition), "0+"
    )


@message(versions="0", flexible="none")
class OffsetDeleteResponse:
    """The result for each partition."""

    error_code: int = wire(int16, "0+")
    throttle_time_ms: int = wire(int32, "0+")
    topics: list[OffsetDeleteResponseTopic] = wire(array(OffsetDeleteResponseTopic), "0+")
