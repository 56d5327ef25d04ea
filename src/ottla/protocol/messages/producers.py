"""InitProducerId and DescribeProducers: the identity behind idempotent writes."""

from ottla.model import Uuid
from ottla.protocol.schema import array, int16, int32, int64, message, string, struct, uuid, wire


@message(versions="0-5", flexible="2+")
class InitProducerIdRequest:
    """Request a producer id; a transactional id keeps its own and gets a higher epoch."""

    transactional_id: str | None = wire(string, "0+", nullable="0+")
    transaction_timeout_ms: int = wire(int32, "0+")
    producer_id: int = wire(int64, "3+", default=-1)
    producer_epoch: int = wire(int16, "3+", default=-1)


@message(versions="0-5", flexible="2+")
class InitProducerIdResponse:
    """The producer id and epoch to write with."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    producer_id: int = wire(int64, "0+", default=-1)
    producer_epoch: int = wire(int16, "0+")


@struct
class DescribeProducersRequestTopic:
    name: str = wire(string, "0+")
    partition_indexes: list[int] = wire(array(int32), "0+")


@message(versions="0", flexible="0+")
class DescribeProducersRequest:
    """Describe the producers that have written to these partitions."""

    topics: list[DescribeProducersRequestTopic] = wire(array(DescribeProducersRequestTopic), "0+")
    # Ottla's own, of a broker that asks about one producer of a partition.
    broker_token: Uuid = wire(uuid, "0+", tag=10_000)
    topic_revision: int = wire(int64, "0+", tag=10_001)
    sequence: int = wire(int64, "0+", tag=10_002)
    producer_id: int = wire(int64, "0+", tag=10_003, default=-1)


@struct
class ProducerState:
    producer_id: int = wire(int64, "0+")
    producer_epoch: int = wire(int32, "0+")
    last_sequence: int = wire(int32, "0+", default=-1)
    last_timestamp: int = wire(int64, "0+", default=-1)
    coordinator_epoch: int = wire(int32, "0+")
    current_txn_start_offset: int = wire(int64, "0+", default=-1)
    # Ottla's own, for brokers: of each of the last batches the first and last sequence, the first
    # and last offset, and the time; then the high watermark.
    batches: list[int] = wire(array(int64), "0+", tag=10_000)


@struct
class DescribeProducersResponsePartition:
    partition_index: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    active_producers: list[ProducerState] = wire(array(ProducerState), "0+")


@struct
class DescribeProducersResponseTopic:
    name: str = wire(string, "0+")
    partitions: list[DescribeProducersResponsePartition] = wire(
        array(DescribeProducersResponsePartition), "0+"
    )


@message(versions="0", flexible="0+")
class DescribeProducersResponse:
    """The active producers of each partition."""

    throttle_time_ms: int = wire(int32, "0+")
    topics: list[DescribeProducersResponseTopic] = wire(array(DescribeProducersResponseTopic), "0+")
