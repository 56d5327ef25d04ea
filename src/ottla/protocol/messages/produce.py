"""Produce: append record batches to partitions."""

from ottla.model import Uuid
from ottla.protocol.schema import (
    Records,
    array,
    boolean,
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
class PartitionProduceData:
    index: int = wire(int32, "0+")
    records: Records | None = wire(records, "0+", nullable="0+")


@struct
class TopicProduceData:
    name: str = wire(string, "0-12")
    topic_id: Uuid = wire(uuid, "13+")
    partition_data: list[PartitionProduceData] = wire(array(PartitionProduceData), "0+")


@message(versions="3-13", flexible="9+")
class ProduceRequest:
    """Append these batches; `acks` is the guarantee that must hold before the response."""

    transactional_id: str | None = wire(string, "3+", nullable="3+", default=None)
    acks: int = wire(int16, "0+")
    timeout_ms: int = wire(int32, "0+")
    topic_data: list[TopicProduceData] = wire(array(TopicProduceData), "0+")
    # Ottla's own, of a broker that forwards batches for a sealed partition: see `Forwarder`.
    broker_token: Uuid = wire(uuid, "13+", tag=10_000)
    topic_revision: int = wire(int64, "13+", tag=10_001)
    sequence: int = wire(int64, "13+", tag=10_002)
    is_continued: bool = wire(boolean, "13+", tag=10_003)


@struct
class BatchIndexAndErrorMessage:
    batch_index: int = wire(int32, "8+")
    batch_index_error_message: str | None = wire(string, "8+", nullable="8+", default=None)


@struct
class LeaderIdAndEpoch:
    leader_id: int = wire(int32, "10+", default=-1)
    leader_epoch: int = wire(int32, "10+", default=-1)


@struct
class PartitionProduceResponse:
    index: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    base_offset: int = wire(int64, "0+")
    log_append_time_ms: int = wire(int64, "2+", default=-1)
    log_start_offset: int = wire(int64, "5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = wire(array(BatchIndexAndErrorMessage), "8+")
    error_message: str | None = wire(string, "8+", nullable="8+", default=None)
    current_leader: LeaderIdAndEpoch = wire(LeaderIdAndEpoch, "10+", tag=0)


@struct
class TopicProduceResponse:
    name: str = wire(string, "0-12")
    topic_id: Uuid = wire(uuid, "13+")
    partition_responses: list[PartitionProduceResponse] = wire(
        array(PartitionProduceResponse), "0+"
    )


@struct
class NodeEndpoint:
    node_id: int = wire(int32, "10+")
    host: str = wire(string, "10+")
    port: int = wire(int32, "10+")
    rack: str | None = wire(string, "10+", nullable="10+", default=None)


@message(versions="3-13", flexible="9+")
class ProduceResponse:
    """The base offset of each batch, or its error."""

    responses: list[TopicProduceResponse] = wire(array(TopicProduceResponse), "0+")
    throttle_time_ms: int = wire(int32, "1+")
    node_endpoints: list[NodeEndpoint] = wire(array(NodeEndpoint), "10+", tag=0)
