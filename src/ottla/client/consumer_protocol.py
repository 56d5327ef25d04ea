"""What consumers of a classic group tell each other through the broker, to which it is bytes."""

from collections.abc import Iterable
from struct import Struct, error
from typing import Final

from ottla.client.partitions import by_topic
from ottla.errors import ProtocolViolation
from ottla.model import TopicPartition
from ottla.protocol.codec import decode, encode
from ottla.protocol.messages.consumer_protocol import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

CONSUMER: Final = "consumer"  # the protocol type of groups that speak it

_VERSION: Final = Struct(">h")
_VERSION_WRITTEN: Final = 0  # every client reads it, and an eager member has nothing to add
_VERSION_MAX: Final = 3  # later versions only add fields behind those of this one


def subscription_bytes(topics: Iterable[str]) -> bytes:
    """What a member wants to read."""
    said = ConsumerProtocolSubscription(topics=sorted(set(topics)))
    return _VERSION.pack(_VERSION_WRITTEN) + encode(said, _VERSION_WRITTEN)


def assignment_bytes(tps: Iterable[TopicPartition]) -> bytes:
    """What a member is given to read."""
    said = ConsumerProtocolAssignment(
        assigned_partitions=[
            AssignedTopicPartitions(topic=topic, partitions=[tp.partition for tp in owned])
            for topic, owned in by_topic(sorted(tps)).items()
        ]
    )
    return _VERSION.pack(_VERSION_WRITTEN) + encode(said, _VERSION_WRITTEN)


def parse_assignment(said: bytes) -> tuple[TopicPartition, ...] | None:
    """The partitions in an assignment; None when it is not of the usual format."""
    if not said:
        return ()
    try:
        (version,) = _VERSION.unpack_from(said)
        if version < 0:
            return None
        found = decode(ConsumerProtocolAssignment, min(version, _VERSION_MAX), said, _VERSION.size)
    except (error, ProtocolViolation):
        return None
    return tuple(
        sorted(
            TopicPartition(topic.topic, index)
            for topic in found.assigned_partitions
            for index in topic.partitions
        )
    )
