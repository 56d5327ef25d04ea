"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments."""

from ottla.protocol.schema import array, boolean, int8, int16, int32, message, string, struct, wire


@struct
class ElectLeadersTopic:
    topic: str = wire(string, "0+")
    partitions: list[int] = wire(array(int32), "0+")


@message(versions="0-2", flexible="2+")
class ElectLeadersRequest:
    """Elect leaders: 0 the preferred replica, 1 also a replica that may have lost records."""

    election_type: int = wire(int8, "1+")
    topic_partitions: list[ElectLeadersTopic] | None = wire(
        array(ElectLeadersTopic), "0+", nullable="0+"
    )
    timeout_ms: int = wire(int32, "0+", default=60000)


@struct
class ElectionPartitionResult:
    partition_id: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")


@struct
class ReplicaElectionResult:
    topic: str = wire(string, "0+")
    partition_result: list[ElectionPartitionResult] = wire(array(ElectionPartitionResult), "0+")


@message(versions="0-2", flexible="2+")
class ElectLeadersResponse:
    """The result for each election."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "1+")
    replica_election_results: list[ReplicaElectionResult] = wire(array(ReplicaElectionResult), "0+")


@struct
class ReassignablePartition:
    partition_index: int = wire(int32, "0+")
    replicas: list[int] | None = wire(array(int32), "0+", nullable="0+", default=None)


@struct
class ReassignableTopic:
    name: str = wire(string, "0+")
    partitions: list[ReassignablePartition] = wire(array(ReassignablePartition), "0+")


@message(versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest:
    """Move partitions to other brokers; null replicas cancel a move."""

    timeout_ms: int = wire(int32, "0+", default=60000)
    allow_replication_factor_change: bool = wire(boolean, "1+", default=True)
    topics: list[ReassignableTopic] = wire(array(ReassignableTopic), "0+")
    # Ottla's own: a broker, and whether all its replicas are to be moved to others.
    broker_id: int = wire(int32, "0+", tag=10_000, default=-1)
    is_draining: bool = wire(boolean, "0+", tag=10_001)


@struct
class ReassignablePartitionResponse:
    partition_index: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")


@struct
class ReassignableTopicResponse:
    name: str = wire(string, "0+")
    partitions: list[ReassignablePartitionResponse] = wire(
        array(ReassignablePartitionResponse), "0+"
    )


@message(versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    """The result for each partition."""

    throttle_time_ms: int = wire(int32, "0+")
    allow_replication_factor_change: bool = wire(boolean, "1+", default=True)
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")
    responses: list[ReassignableTopicResponse] = wire(array(ReassignableTopicResponse), "0+")
    # Ottla's own: the result for the broker, -1 if none was named.
    broker_error_code: int = wire(int16, "0+", tag=10_000, default=-1)
    broker_error_message: str | None = wire(string, "0+", nullable="0+", tag=10_001, default=None)


@struct
class ListPartitionReassignmentsTopic:
    name: str = wire(string, "0+")
    partition_indexes: list[int] = wire(array(int32), "0+")


@message(versions="0", flexible="0+")
class ListPartitionReassignmentsRequest:
    """List the partitions that are being moved."""

    timeout_ms: int = wire(int32, "0+", default=60000)
    topics: list[ListPartitionReassignmentsTopic] | None = wire(
        array(ListPartitionReassignmentsTopic), "0+", nullable="0+", default=None
    )


@struct
class OngoingPartitionReassignment:
    partition_index: int = wire(int32, "0+")
    replicas: list[int] = wire(array(int32), "0+")
    adding_replicas: list[int] = wire(array(int32), "0+")
    removing_replicas: list[int] = wire(array(int32), "0+")


@struct
class OngoingTopicReassignment:
    name: str = wire(string, "0+")
    partitions: list[OngoingPartitionReassignment] = wire(array(OngoingPartitionReassignment), "0+")


@message(versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    """The partitions that are being moved, with replicas to add and to remove."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")
    topics: list[OngoingTopicReassignment] = wire(array(OngoingTopicReassignment), "0+")
