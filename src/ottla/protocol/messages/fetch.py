"""Fetch: read record batches; consumers and followers use the same message."""

from ottla.model import Uuid
from ottla.protocol.schema import (
    Records,
    array,
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


@struct
class ReplicaState:
    replica_id: int = wire(int32, "15+", default=-1)
    replica_epoch: int = wire(int64, "15+", default=-1)


@struct
class FetchPartition:
    partition: int = wire(int32, "0+")
    current_leader_epoch: int = wire(int32, "9+", default=-1)
    fetch_offset: int = wire(int64, "0+")
    last_fetched_epoch: int = wire(int32, "12+", default=-1)
    log_start_offset: int = wire(int64, "5+", default=-1)
    partition_max_bytes: int = wire(int32, "0+")
    replica_directory_id: Uuid = wire(uuid, "17+", tag=0)
    high_watermark: int = wire(int64, "18+", tag=1, default=2**63 - 1)


@struct
class FetchTopic:
    topic: str = wire(string, "0-12")
    topic_id: Uuid = wire(uuid, "13+")
    partitions: list[FetchPartition] = wire(array(FetchPartition), "0+")


@struct
class ForgottenTopic:
    topic: str = wire(string, "7-12")
    topic_id: Uuid = wire(uuid, "13+")
    partitions: list[int] = wire(array(int32), "7+")


@message(versions="4-18", flexible="12+")
class FetchRequest:
    """Read from these partitions, waiting up to `max_wait_ms` for `min_bytes`."""

    cluster_id: str | None = wire(string, "12+", nullable="12+", tag=0, default=None)
    replica_id: int = wire(int32, "0-14", default=-1)
    replica_state: ReplicaState = wire(ReplicaState, "15+", tag=1)
    max_wait_ms: int = wire(int32, "0+")
    min_bytes: int = wire(int32, "0+")
    max_bytes: int = wire(int32, "3+", default=2**31 - 1)
    isolation_level: int = wire(int8, "4+")
    session_id: int = wire(int32, "7+")
    session_epoch: int = wire(int32, "7+", default=-1)
    topics: list[FetchTopic] = wire(array(FetchTopic), "0+")
    forgotten_topics_data: list[ForgottenTopic] = wire(array(ForgottenTopic), "7+")
    rack_id: str = wire(string, "11+")
    replica_token: Uuid = wire(uuid, "15+", tag=10_000)  # Ottla's own


@struct
class EpochEndOffset:
    epoch: int = wire(int32, "12+", default=-1)
    end_offset: int = wire(int64, "12+", default=-1)


@struct
class LeaderIdAndEpoch:
    leader_id: int = wire(int32, "12+", default=-1)
    leader_epoch: int = wire(int32, "12+", default=-1)


@struct
class SnapshotId:
    end_offset: int = wire(int64, "0+", default=-1)
    epoch: int = wire(int32, "0+", default=-1)


@struct
class AbortedTransaction:
    producer_id: int = wire(int64, "4+")
    first_offset: int = wire(int64, "4+")


@struct
class FetchPartitionResponse:
    partition_index: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    high_watermark: int = wire(int64, "0+")
    last_stable_offset: int = wire(int64, "4+", default=-1)
    log_start_offset: int = wire(int64, "5+", default=-1)
    diverging_epoch: EpochEndOffset = wire(EpochEndOffset, "12+", tag=0)
    current_leader: LeaderIdAndEpoch = wire(LeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId = wire(SnapshotId, "12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = wire(
        array(AbortedTransaction), "4+", nullable="4+"
    )
    preferred_read_replica: int = wire(int32, "11+", default=-1)
    records: Records | None = wire(records, "0+", nullable="0+")


@struct
class FetchTopicResponse:
    topic: str = wire(string, "0-12")
    topic_id: Uuid = wire(uuid, "13+")
    partitions: list[FetchPartitionResponse] = wire(array(FetchPartitionResponse), "0+")


@struct
class NodeEndpoint:
    node_id: int = wire(int32, "16+")
    host: str = wire(string, "16+")
    port: int = wire(int32, "16+")
    rack: str | None = wire(string, "16+", nullable="16+", default=None)


@message(versions="4-18", flexible="12+")
class FetchResponse:
    """Batches by partition, with the watermarks of each partition."""

    throttle_time_ms: int = wire(int32, "1+")
    error_code: int = wire(int16, "7+")
    session_id: int = wire(int32, "7+")
    responses: list[FetchTopicResponse] = wire(array(FetchTopicResponse), "0+")
    node_endpoints: list[NodeEndpoint] = wire(array(NodeEndpoint), "16+", tag=0)
