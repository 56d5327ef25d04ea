"""The state of share partitions, between brokers: initialise, read, write, delete, summarise.

Tags from 10000 on are Ottla's. `broker_token` proves that the sender is a broker; `sequence` and
the epoch of a coordinator void a request that comes behind a later one, or to a later epoch.
"""

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


@struct
class StateBatch:
    """Tags from 10000 on are Ottla's: the end of a wait, what dead letters need, a holder."""

    first_offset: int = wire(int64, "0+")
    last_offset: int = wire(int64, "0+")
    delivery_state: int = wire(int8, "0+")
    delivery_count: int = wire(int16, "0+")
    not_before_ms: int = wire(int64, "0+", tag=10000)
    cause: int = wire(int8, "0+", tag=10001)
    is_sending: bool = wire(boolean, "0+", tag=10002)
    member_id: str = wire(string, "0+", tag=10003)
    reason: str = wire(string, "0+", tag=10004)


@struct
class StateSender:
    """The producer of dead letters, and its destination; no producer id is no sender."""

    producer_id: int = wire(int64, "0+", default=-1)
    sequence: int = wire(int32, "0+")
    topic_id: Uuid = wire(uuid, "0+")
    partition: int = wire(int32, "0+")
    begun_ms: int = wire(int64, "0+")


@struct
class PartitionResult:
    partition: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)


@struct
class TopicResult:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[PartitionResult] = wire(array(PartitionResult), "0+")


@struct
class InitializePartition:
    partition: int = wire(int32, "0+")
    state_epoch: int = wire(int32, "0+")
    start_offset: int = wire(int64, "0+")
    coordinator_epoch: int = wire(int32, "0+", tag=10_000, default=-1)


@struct
class InitializeTopic:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[InitializePartition] = wire(array(InitializePartition), "0+")


@message(versions="0", flexible="0+")
class InitializeShareGroupStateRequest:
    """Begin the state of share partitions, or begin it anew in a higher state epoch."""

    group_id: str = wire(string, "0+")
    topics: list[InitializeTopic] = wire(array(InitializeTopic), "0+")
    broker_token: Uuid = wire(uuid, "0+", tag=10_000)
    sequence: int = wire(int64, "0+", tag=10_001)


@message(versions="0", flexible="0+")
class InitializeShareGroupStateResponse:
    """The result for each partition."""

    results: list[TopicResult] = wire(array(TopicResult), "0+")


@struct
class ReadPartition:
    partition: int = wire(int32, "0+")
    leader_epoch: int = wire(int32, "0+")
    coordinator_epoch: int = wire(int32, "0+", tag=10_000, default=-1)


@struct
class ReadTopic:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[ReadPartition] = wire(array(ReadPartition), "0+")


@message(versions="0", flexible="0+")
class ReadShareGroupStateRequest:
    """Read the state of share partitions, as their leader in this epoch."""

    group_id: str = wire(string, "0+")
    topics: list[ReadTopic] = wire(array(ReadTopic), "0+")
    broker_token: Uuid = wire(uuid, "0+", tag=10_000)
    sequence: int = wire(int64, "0+", tag=10_001)


@struct
class ReadPartitionResult:
    partition: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    state_epoch: int = wire(int32, "0+")
    start_offset: int = wire(int64, "0+")
    state_batches: list[StateBatch] = wire(array(StateBatch), "0+")
    sender: StateSender = wire(StateSender, "0+", tag=10_000)


@struct
class ReadTopicResult:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[ReadPartitionResult] = wire(array(ReadPartitionResult), "0+")


@message(versions="0", flexible="0+")
class ReadShareGroupStateResponse:
    """Start offset and records in flight of each partition."""

    results: list[ReadTopicResult] = wire(array(ReadTopicResult), "0+")


@struct
class WritePartition:
    partition: int = wire(int32, "0+")
    state_epoch: int = wire(int32, "0+")
    leader_epoch: int = wire(int32, "0+")
    start_offset: int = wire(int64, "0+")
    delivery_complete_count: int = wire(int32, "1+", default=-1)
    state_batches: list[StateBatch] = wire(array(StateBatch), "0+")
    coordinator_epoch: int = wire(int32, "0+", tag=10_000, default=-1)
    sender: StateSender = wire(StateSender, "0+", tag=10_001)


@struct
class WriteTopic:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[WritePartition] = wire(array(WritePartition), "0+")


@message(versions="0-1", flexible="0+")
class WriteShareGroupStateRequest:
    """Change the state of share partitions."""

    group_id: str = wire(string, "0+")
    topics: list[WriteTopic] = wire(array(WriteTopic), "0+")
    broker_token: Uuid = wire(uuid, "0+", tag=10_000)
    sequence: int = wire(int64, "0+", tag=10_001)


@message(versions="0-1", flexible="0+")
class WriteShareGroupStateResponse:
    """The result for each partition."""

    results: list[TopicResult] = wire(array(TopicResult), "0+")


@struct
class DeletePartition:
    partition: int = wire(int32, "0+")
    coordinator_epoch: int = wire(int32, "0+", tag=10_000, default=-1)


@struct
class DeleteTopic:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[DeletePartition] = wire(array(DeletePartition), "0+")


@message(versions="0", flexible="0+")
class DeleteShareGroupStateRequest:
    """Delete the state of share partitions."""

    group_id: str = wire(string, "0+")
    topics: list[DeleteTopic] = wire(array(DeleteTopic), "0+")
    broker_token: Uuid = wire(uuid, "0+", tag=10_000)
    sequence: int = wire(int64, "0+", tag=10_001)


@message(versions="0", flexible="0+")
class DeleteShareGroupStateResponse:
    """The result for each partition."""

    results: list[TopicResult] = wire(array(TopicResult), "0+")


@struct
class StateOfShard:
    """The start offset of one share partition."""

    group_id: str = wire(string, "0+")
    partition: int = wire(int32, "0+")
    start_offset: int = wire(int64, "0+")


@struct
class ShardQuery:
    """A query about a topic to one partition of a coordinator's topic.

    Of share states: the start offsets of all groups. Of groups: which share groups read the topic.
    """

    coordinator_topic: str = wire(string, "0+")
    index: int = wire(int32, "0+")
    topic_name: str = wire(string, "0+")
    topic_id: Uuid = wire(uuid, "0+")


@struct
class ShardResult:
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    states: list[StateOfShard] = wire(array(StateOfShard), "0+")
    groups: list[str] = wire(array(string), "0+")


@struct
class ArchivingPartition:
    """A share partition with records whose dead letters are not written yet."""

    group_id: str = wire(string, "0+")
    topic_id: Uuid = wire(uuid, "0+")
    partition: int = wire(int32, "0+")


@message(versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryRequest:
    """Read start offsets of share partitions, without the records in flight."""

    group_id: str = wire(string, "0+")
    topics: list[ReadTopic] = wire(array(ReadTopic), "0+")
    broker_token: Uuid = wire(uuid, "0+", tag=10_000)
    sequence: int = wire(int64, "0+", tag=10_001)
    queries: list[ShardQuery] = wire(array(ShardQuery), "0+", tag=10_002)
    archiving: list[ArchivingPartition] = wire(array(ArchivingPartition), "0+", tag=10_003)


@struct
class SummaryPartitionResult:
    partition: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    state_epoch: int = wire(int32, "0+")
    leader_epoch: int = wire(int32, "0+")
    start_offset: int = wire(int64, "0+")
    delivery_complete_count: int = wire(int32, "1+", default=-1)


@struct
class SummaryTopicResult:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[SummaryPartitionResult] = wire(array(SummaryPartitionResult), "0+")


@message(versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryResponse:
    """The start offset of each partition."""

    results: list[SummaryTopicResult] = wire(array(SummaryTopicResult), "0+")
    shards: list[ShardResult] = wire(array(ShardResult), "0+", tag=10_000)
