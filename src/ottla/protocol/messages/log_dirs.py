"""DescribeLogDirs and AlterReplicaLogDirs: the data directories of replicas."""

from ottla.protocol.schema import array, boolean, int16, int32, int64, message, string, struct, wire


@struct
class DescribableLogDirTopic:
    topic: str = wire(string, "0+")
    partitions: list[int] = wire(array(int32), "0+")


@message(versions="1-5", flexible="2+")
class DescribeLogDirsRequest:
    """Describe data directories and replica sizes; null topics mean all."""

    topics: list[DescribableLogDirTopic] | None = wire(
        array(DescribableLogDirTopic), "0+", nullable="0+"
    )


@struct
class DescribeLogDirsPartition:
    partition_index: int = wire(int32, "0+")
    partition_size: int = wire(int64, "0+")
    offset_lag: int = wire(int64, "0+")
    is_future_key: bool = wire(boolean, "0+")


@struct
class DescribeLogDirsTopic:
    name: str = wire(string, "0+")
    partitions: list[DescribeLogDirsPartition] = wire(array(DescribeLogDirsPartition), "0+")


@struct
class DescribeLogDirsResult:
    error_code: int = wire(int16, "0+")
    log_dir: str = wire(string, "0+")
    topics: list[DescribeLogDirsTopic] = wire(array(DescribeLogDirsTopic), "0+")
    total_bytes: int = wire(int64, "4+", default=-1)
    usable_bytes: int = wire(int64, "4+", default=-1)
    is_cordoned: bool = wire(boolean, "5+")


@message(versions="1-5", flexible="2+")
class DescribeLogDirsResponse:
    """Data directories with the replicas and sizes in each."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "3+")
    results: list[DescribeLogDirsResult] = wire(array(DescribeLogDirsResult), "0+")


@struct
class AlterReplicaLogDirTopic:
    name: str = wire(string, "0+")
    partitions: list[int] = wire(array(int32), "0+")


@struct
class AlterReplicaLogDir:
    path: str = wire(string, "0+")
    topics: list[AlterReplicaLogDirTopic] = wire(array(AlterReplicaLogDirTopic), "0+")


@message(versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest:
    """Move replicas to another data directory of the same broker."""

    dirs: list[AlterReplicaLogDir] = wire(array(AlterReplicaLogDir), "0+")


@struct
class AlterReplicaLogDirPartitionResult:
    partition_index: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")


@struct
class AlterReplicaLogDirTopicResult:
    topic_name: str = wire(string, "0+")
    partitions: list[AlterReplicaLogDirPartitionResult] = wire(
        array(AlterReplicaLogDirPartitionResult), "0+"
    )


@message(versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    """The result for each partition."""

    throttle_time_ms: int = wire(int32, "0+")
    results: list[AlterReplicaLogDirTopicResult] = wire(array(AlterReplicaLogDirTopicResult), "0+")
