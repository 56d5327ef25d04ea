"""ListOffsets and OffsetForLeaderEpoch: find offsets by time or by leader epoch."""

from typing import Final

from ottla.protocol.schema import array, int8, int16, int32, int64, message, string, struct, wire

# Timestamps in ListOffsets that mean an offset.
LATEST: Final = -1  # the offset of the next record
EARLIEST: Final = -2  # the start of the log


@struct
class ListOffsetsPartition:
    partition_index: int = wire(int32, "0+")
    current_leader_epoch: int = wire(int32, "4+", default=-1)
    timestamp: int = wire(int64, "0+")


@struct
class ListOffsetsTopic:
    name: str = wire(string, "0+")
    partitions: list[ListOffsetsPartition] = wire(array(ListOffsetsPartition), "0+")


@message(versions="1-11", flexible="6+")
class ListOffsetsRequest:
    """Find the offset of a timestamp in each partition; -1 means the latest, -2 the earliest."""

    replica_id: int = wire(int32, "0+")
    isolation_level: int = wire(int8, "2+")
    topics: list[ListOffsetsTopic] = wire(array(ListOffsetsTopic), "0+")
    timeout_ms: int = wire(int32, "10+")


@struct
class ListOffsetsPartitionResponse:
    partition_index: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    timestamp: int = wire(int64, "1+", default=-1)
    offset: int = wire(int64, "1+", default=-1)
    leader_epoch: int = wire(int32, "4+", default=-1)


@struct
class ListOffsetsTopicResponse:
    name: str = wire(string, "0+")
    partitions: list[ListOffsetsPartitionResponse] = wire(array(ListOffsetsPartitionResponse), "0+")


@message(versions="1-11", flexible="6+")
class ListOffsetsResponse:
    """The offset found in each partition, with its timestamp and leader epoch."""

    throttle_time_ms: int = wire(int32, "2+")
    topics: list[ListOffsetsTopicResponse] = wire(array(ListOffsetsTopicResponse), "0+")


@struct
class OffsetForLeaderPartition:
    partition: int = wire(int32, "0+")
    current_leader_epoch: int = wire(int32, "2+", default=-1)
    leader_epoch: int = wire(int32, "0+")


@struct
class OffsetForLeaderTopic:
    topic: str = wire(string, "0+")
    partitions: list[OffsetForLeaderPartition] = wire(array(OffsetForLeaderPartition), "0+")


@message(versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest:
    """Find the end offset of a leader epoch; sent after a change of leader."""

    replica_id: int = wire(int32, "3+", default=-2)
    topics: list[OffsetForLeaderTopic] = wire(array(OffsetForLeaderTopic), "0+")


@struct
class EpochEndOffset:
    error_code: int = wire(int16, "0+")
    partition: int = wire(int32, "0+")
    leader_epoch: int = wire(int32, "1+", default=-1)
    end_offset: int = wire(int64, "0+", default=-1)


@struct
class OffsetForLeaderTopicResult:
    topic: str = wire(string, "0+")
    partitions: list[EpochEndOffset] = wire(array(EpochEndOffset), "0+")


@message(versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    """The last epoch not newer than the requested one, and its end offset."""

    throttle_time_ms: int = wire(int32, "2+")
    topics: list[OffsetForLeaderTopicResult] = wire(array(OffsetForLeaderTopicResult), "0+")
