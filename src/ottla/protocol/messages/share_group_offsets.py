"""Start offsets of share groups: describe, alter and delete."""

from ottla.model import Uuid
from ottla.protocol.schema import array, int16, int32, int64, message, string, struct, uuid, wire


@struct
class DescribeShareGroupOffsetsRequestTopic:
    topic_name: str = wire(string, "0+")
    partitions: list[int] = wire(array(int32), "0+")


@struct
class DescribeShareGroupOffsetsRequestGroup:
    group_id: str = wire(string, "0+")
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = wire(
        array(DescribeShareGroupOffsetsRequestTopic), "0+", nullable="0+"
    )


@message(versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsRequest:
    """Describe start offsets of share groups; null topics mean all."""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = wire(
        array(DescribeShareGroupOffsetsRequestGroup), "0+"
    )


@struct
class DescribeShareGroupOffsetsResponsePartition:
    partition_index: int = wire(int32, "0+")
    start_offset: int = wire(int64, "0+")
    leader_epoch: int = wire(int32, "0+")
    lag: int = wire(int64, "1+", default=-1)
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)


@struct
class DescribeShareGroupOffsetsResponseTopic:
    topic_name: str = wire(string, "0+")
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = wire(
        array(DescribeShareGroupOffsetsResponsePartition), "0+"
    )


@struct
class DescribeShareGroupOffsetsResponseGroup:
    group_id: str = wire(string, "0+")
    topics: list[DescribeShareGroupOffsetsResponseTopic] = wire(
        array(DescribeShareGroupOffsetsResponseTopic), "0+"
    )
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)


@message(versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsResponse:
    """The start offset of each partition."""

    throttle_time_ms: int = wire(int32, "0+")
    groups: list[DescribeShareGroupOffsetsResponseGroup] = wire(
        array(DescribeShareGroupOffsetsResponseGroup), "0+"
    )


@struct
class AlterShareGroupOffsetsRequestPartition:
    partition_index: int = wire(int32, "0+")
    start_offset: int = wire(int64, "0+")


@struct
class AlterShareGroupOffsetsRequestTopic:
    topic_name: str = wire(string, "0+")
    partitions: list[AlterShareGroupOffsetsRequestPartition] = wire(
        array(AlterShareGroupOffsetsRequestPartition), "0+"
    )


@message(versions="0", flexible="0+")
class AlterShareGroupOffsetsRequest:
    """Set start offsets of a share group."""

    group_id: str = wire(string, "0+")
    topics: list[AlterShareGroupOffsetsRequestTopic] = wire(
        array(AlterShareGroupOffsetsRequestTopic), "0+"
    )


@struct
class AlterShareGroupOffsetsResponsePartition:
    partition_index: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)


@struct
class AlterShareGroupOffsetsResponseTopic:
    topic_name: str = wire(string, "0+")
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[AlterShareGroupOffsetsResponsePartition] = wire(
        array(AlterShareGroupOffsetsResponsePartition), "0+"
    )


@message(versions="0", flexible="0+")
class AlterShareGroupOffsetsResponse:
    """The result for each partition."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = wire(
        array(AlterShareGroupOffsetsResponseTopic), "0+"
    )


@struct
class DeleteShareGroupOffsetsRequestTopic:
    topic_name: str = wire(string, "0+")


@message(versions="0", flexible="0+")
class DeleteShareGroupOffsetsRequest:
    """Delete a share group's offsets of topics."""

    group_id: str = wire(string, "0+")
    topics: list[DeleteShareGroupOffsetsRequestTopic] = wire(
        array(DeleteShareGroupOffsetsRequestTopic), "0+"
    )


@struct
class DeleteShareGroupOffsetsResponseTopic:
    topic_name: str = wire(string, "0+")
    topic_id: Uuid = wire(uuid, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)


@message(versions="0", flexible="0+")
class DeleteShareGroupOffsetsResponse:
    """The result for each topic."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = wire(
        array(DeleteShareGroupOffsetsResponseTopic), "0+"
    )
