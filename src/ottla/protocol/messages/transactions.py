"""Transactions: adding partitions and offsets, ending, markers, and their admin."""

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
class AddPartitionsToTxnTopic:
    name: str = wire(string, "0+")
    partitions: list[int] = wire(array(int32), "0+")


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: str = wire(string, "4+")
    producer_id: int = wire(int64, "4+")
    producer_epoch: int = wire(int16, "4+")
    verify_only: bool = wire(boolean, "4+")
    topics: list[AddPartitionsToTxnTopic] = wire(array(AddPartitionsToTxnTopic), "4+")


@message(versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    """Add partitions to a transaction; from version 4 brokers verify several."""

    transactions: list[AddPartitionsToTxnTransaction] = wire(
        array(AddPartitionsToTxnTransaction), "4+"
    )
    v3_and_below_transactional_id: str = wire(string, "0-3")
    v3_and_below_producer_id: int = wire(int64, "0-3")
    v3_and_below_producer_epoch: int = wire(int16, "0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = wire(array(AddPartitionsToTxnTopic), "0-3")


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: int = wire(int32, "0+")
    partition_error_code: int = wire(int16, "0+")


@struct
class AddPartitionsToTxnTopicResult:
    name: str = wire(string, "0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = wire(
        array(AddPartitionsToTxnPartitionResult), "0+"
    )


@struct
class AddPartitionsToTxnResult:
    transactional_id: str = wire(string, "4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = wire(
        array(AddPartitionsToTxnTopicResult), "4+"
    )


@message(versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    """The result for each partition."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = wire(
        array(AddPartitionsToTxnResult), "4+"
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = wire(
        array(AddPartitionsToTxnTopicResult), "0-3"
    )


@message(versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    """Add a group's offsets to a transaction."""

    transactional_id: str = wire(string, "0+")
    producer_id: int = wire(int64, "0+")
    producer_epoch: int = wire(int16, "0+")
    group_id: str = wire(string, "0+")


@message(versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    """The result of adding the offsets."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")


@message(versions="0-5", flexible="3+")
class EndTxnRequest:
    """Commit or abort."""

    transactional_id: str = wire(string, "0+")
    producer_id: int = wire(int64, "0+")
    producer_epoch: int = wire(int16, "0+")
    committed: bool = wire(boolean, "0+")


@message(versions="0-5", flexible="3+")
class EndTxnResponse:
    """The result; from version 5 also the producer epoch to continue with."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    producer_id: int = wire(int64, "5+", default=-1)
    producer_epoch: int = wire(int16, "5+", default=-1)


@struct
class WritableTxnMarkerTopic:
    name: str = wire(string, "0+")
    partition_indexes: list[int] = wire(array(int32), "0+")
    leader_epochs: list[int] = wire(array(int32), "1+", tag=10_000)  # Ottla's own; or none


@struct
class WritableTxnMarker:
    producer_id: int = wire(int64, "0+")
    producer_epoch: int = wire(int16, "0+")
    transaction_result: bool = wire(boolean, "0+")
    topics: list[WritableTxnMarkerTopic] = wire(array(WritableTxnMarkerTopic), "0+")
    coordinator_epoch: int = wire(int32, "0+")
    transaction_version: int = wire(int8, "2+")


@message(versions="1-2", flexible="1+")
class WriteTxnMarkersRequest:
    """Write the end of transactions into partitions; sent by their coordinator.

    Coordinators prove that they are brokers with the token of their registration, and number
    their requests: one that arrives behind a later one is void.
    """

    markers: list[WritableTxnMarker] = wire(array(WritableTxnMarker), "0+")
    broker_token: Uuid = wire(uuid, "1+", tag=10_000)  # Ottla's own, as the next
    sequence: int = wire(int64, "1+", tag=10_001)


@struct
class WritableTxnMarkerPartitionResult:
    partition_index: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")


@struct
class WritableTxnMarkerTopicResult:
    name: str = wire(string, "0+")
    partitions: list[WritableTxnMarkerPartitionResult] = wire(
        array(WritableTxnMarkerPartitionResult), "0+"
    )


@struct
class WritableTxnMarkerResult:
    producer_id: int = wire(int64, "0+")
    topics: list[WritableTxnMarkerTopicResult] = wire(array(WritableTxnMarkerTopicResult), "0+")


@message(versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    """The result for each marker."""

    markers: list[WritableTxnMarkerResult] = wire(array(WritableTxnMarkerResult), "0+")


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: int = wire(int32, "0+")
    committed_offset: int = wire(int64, "0+")
    committed_leader_epoch: int = wire(int32, "2+", default=-1)
    committed_metadata: str | None = wire(string, "0+", nullable="0+")


@struct
class TxnOffsetCommitRequestTopic:
    name: str = wire(string, "0+")
    partitions: list[TxnOffsetCommitRequestPartition] = wire(
        array(TxnOffsetCommitRequestPartition), "0+"
    )


@message(versions="0-5", flexible="3+")
class TxnOffsetCommitRequest:
    """Commit offsets as part of a transaction."""

    transactional_id: str = wire(string, "0+")
    group_id: str = wire(string, "0+")
    producer_id: int = wire(int64, "0+")
    producer_epoch: int = wire(int16, "0+")
    generation_id: int = wire(int32, "3+", default=-1)
    member_id: str = wire(string, "3+")
    group_instance_id: str | None = wire(string, "3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = wire(array(TxnOffsetCommitRequestTopic), "0+")


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")


@struct
class TxnOffsetCommitResponseTopic:
    name: str = wire(string, "0+")
    partitions: list[TxnOffsetCommitResponsePartition] = wire(
        array(TxnOffsetCommitResponsePartition), "0+"
    )


@message(versions="0-5", flexible="3+")
class TxnOffsetCommitResponse:
    """The result for each partition."""

    throttle_time_ms: int = wire(int32, "0+")
    topics: list[TxnOffsetCommitResponseTopic] = wire(array(TxnOffsetCommitResponseTopic), "0+")


@message(versions="0", flexible="0+")
class DescribeTransactionsRequest:
    """Describe these transactional ids."""

    transactional_ids: list[str] = wire(array(string), "0+")


@struct
class DescribedTransactionTopic:
    topic: str = wire(string, "0+")
    partitions: list[int] = wire(array(int32), "0+")


@struct
class DescribedTransaction:
    error_code: int = wire(int16, "0+")
    transactional_id: str = wire(string, "0+")
    transaction_state: str = wire(string, "0+")
    transaction_timeout_ms: int = wire(int32, "0+")
    transaction_start_time_ms: int = wire(int64, "0+")
    producer_id: int = wire(int64, "0+")
    producer_epoch: int = wire(int16, "0+")
    topics: list[DescribedTransactionTopic] = wire(array(DescribedTransactionTopic), "0+")


@message(versions="0", flexible="0+")
class DescribeTransactionsResponse:
    """State, producer and partitions of each transaction."""

    throttle_time_ms: int = wire(int32, "0+")
    transaction_states: list[DescribedTransaction] = wire(array(DescribedTransaction), "0+")


@message(versions="0-2", flexible="0+")
class ListTransactionsRequest:
    """List transactions by state, producer or duration."""

    state_filters: list[str] = wire(array(string), "0+")
    producer_id_filters: list[int] = wire(array(int64), "0+")
    duration_filter: int = wire(int64, "1+", default=-1)
    transactional_id_pattern: str | None = wire(string, "2+", nullable="2+", default=None)


@struct
class ListedTransaction:
    transactional_id: str = wire(string, "0+")
    producer_id: int = wire(int64, "0+")
    transaction_state: str = wire(string, "0+")


@message(versions="0-2", flexible="0+")
class ListTransactionsResponse:
    """The transactions that match."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    unknown_state_filters: list[str] = wire(array(string), "0+")
    transaction_states: list[ListedTransaction] = wire(array(ListedTransaction), "0+")
