"""Messages of consumers of a classic group, in the opaque bytes of JoinGroup and SyncGroup."""

from ottla.protocol.schema import array, binary, int32, message, string, struct, wire


@struct
class OwnedTopicPartitions:
    topic: str = wire(string, "1+")
    partitions: list[int] = wire(array(int32), "1+")


@message(versions="0-3", flexible="none")
class ConsumerProtocolSubscription:
    """The subscription of a consumer, inside JoinGroup metadata."""

    topics: list[str] = wire(array(string), "0+")
    user_data: bytes | None = wire(binary, "0+", nullable="0+", default=None)
    owned_partitions: list[OwnedTopicPartitions] = wire(array(OwnedTopicPartitions), "1+")
    generation_id: int = wire(int32, "2+", default=-1)
    rack_id: str | None = wire(string, "3+", nullable="3+", default=None)


@struct
class AssignedTopicPartitions:
    topic: str = wire(string, "0+")
    partitions: list[int] = wire(array(int32), "0+")


@message(versions="0-3", flexible="none")
class ConsumerProtocolAssignment:
    """The partitions assigned to a consumer, inside a SyncGroup assignment."""

    assigned_partitions: list[AssignedTopicPartitions] = wire(array(AssignedTopicPartitions), "0+")
    user_data: bytes | None = wire(binary, "0+", nullable="0+", default=None)
