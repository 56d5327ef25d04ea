"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords."""

from typing import Final

from ottla.model import Uuid
from ottla.protocol.schema import (
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
    uuid,
    wire,
)

BROKER_DEFAULT: Final = -1  # as a number of partitions or replicas: the broker's setting


@struct
class CreatableReplicaAssignment:
    partition_index: int = wire(int32, "0+")
    broker_ids: list[int] = wire(array(int32), "0+")


@struct
class CreatableTopicConfig:
    name: str = wire(string, "0+")
    value: str | None = wire(string, "0+", nullable="0+")


@struct
class CreatableTopic:
    name: str = wire(string, "0+")
    num_partitions: int = wire(int32, "0+")
    replication_factor: int = wire(int16, "0+")
    assignments: list[CreatableReplicaAssignment] = wire(array(CreatableReplicaAssignment), "0+")
    configs: list[CreatableTopicConfig] = wire(array(CreatableTopicConfig), "0+")


@message(versions="2-7", flexible="5+")
class CreateTopicsRequest:
    """Create topics with a partition count or with explicit assignments."""

    topics: list[CreatableTopic] = wire(array(CreatableTopic), "0+")
    timeout_ms: int = wire(int32, "0+", default=60000)
    validate_only: bool = wire(boolean, "1+")


@struct
class CreatableTopicConfigs:
    name: str = wire(string, "5+")
    value: str | None = wire(string, "5+", nullable="5+")
    read_only: bool = wire(boolean, "5+")
    config_source: int = wire(int8, "5+", default=-1)
    is_sensitive: bool = wire(boolean, "5+")


@struct
class CreatableTopicResult:
    name: str = wire(string, "0+")
    topic_id: Uuid = wire(uuid, "7+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "1+", nullable="0+")
    topic_config_error_code: int = wire(int16, "5+", tag=0)
    num_partitions: int = wire(int32, "5+", default=-1)
    replication_factor: int = wire(int16, "5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = wire(
        array(CreatableTopicConfigs), "5+", nullable="5+"
    )


@message(versions="2-7", flexible="5+")
class CreateTopicsResponse:
    """The result for each topic, and its settings."""

    throttle_time_ms: int = wire(int32, "2+")
    topics: list[CreatableTopicResult] = wire(array(CreatableTopicResult), "0+")


@struct
class DeleteTopicState:
    name: str | None = wire(string, "6+", nullable="6+", default=None)
    topic_id: Uuid = wire(uuid, "6+")


@message(versions="1-6", flexible="4+")
class DeleteTopicsRequest:
    """Delete topics by name, from version 6 by name or id."""

    topics: list[DeleteTopicState] = wire(array(DeleteTopicState), "6+")
    topic_names: list[str] = wire(array(string), "0-5")
    timeout_ms: int = wire(int32, "0+")


@struct
class DeletableTopicResult:
    name: str | None = wire(string, "0+", nullable="6+")
    topic_id: Uuid = wire(uuid, "6+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "5+", nullable="5+", default=None)


@message(versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    """The result for each topic."""

    throttle_time_ms: int = wire(int32, "1+")
    responses: list[DeletableTopicResult] = wire(array(DeletableTopicResult), "0+")


@struct
class CreatePartitionsAssignment:
    broker_ids: list[int] = wire(array(int32), "0+")


@struct
class CreatePartitionsTopic:
    name: str = wire(string, "0+")
    count: int = wire(int32, "0+")
    assignments: list[CreatePartitionsAssignment] | None = wire(
        array(CreatePartitionsAssignment), "0+", nullable="0+"
    )


@message(versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    """Grow topics; `count` is the new total."""

    topics: list[CreatePartitionsTopic] = wire(array(CreatePartitionsTopic), "0+")
    timeout_ms: int = wire(int32, "0+")
    validate_only: bool = wire(boolean, "0+")


@struct
class CreatePartitionsTopicResult:
    name: str = wire(string, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)


@message(versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    """The result for each topic."""

    throttle_time_ms: int = wire(int32, "0+")
    results: list[CreatePartitionsTopicResult] = wire(array(CreatePartitionsTopicResult), "0+")


@struct
class DeleteRecordsPartition:
    partition_index: int = wire(int32, "0+")
    offset: int = wire(int64, "0+")


@struct
class DeleteRecordsTopic:
    name: str = wire(string, "0+")
    partitions: list[DeleteRecordsPartition] = wire(array(DeleteRecordsPartition), "0+")


@message(versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    """Delete all records before an offset; -1 means the high watermark."""

    topics: list[DeleteRecordsTopic] = wire(array(DeleteRecordsTopic), "0+")
    timeout_ms: int = wire(int32, "0+")


@struct
class DeleteRecordsPartitionResult:
    partition_index: int = wire(int32, "0+")
    low_watermark: int = wire(int64, "0+")
    error_code: int = wire(int16, "0+")


@struct
class DeleteRecordsTopicResult:
    name: str = wire(string, "0+")
    partitions: list[DeleteRecordsPartitionResult] = wire(array(DeleteRecordsPartitionResult), "0+")


@message(versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    """The first offset that each partition still has."""

    throttle_time_ms: int = wire(int32, "0+")
    topics: list[DeleteRecordsTopicResult] = wire(array(DeleteRecordsTopicResult), "0+")
