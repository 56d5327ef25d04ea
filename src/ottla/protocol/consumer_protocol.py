"""Kafka's consumer protocol: the bytes that members of a classic group send each other.

They travel as opaque metadata in JoinGroup (a subscription) and SyncGroup (an assignment).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import Struct, error
from typing import Final

from ottla.errors import ProtocolViolation
from ottla.model import TopicPartition
from ottla.protocol.codec import UNLIMITED, decode, encode
from ottla.protocol.messages.consumer_protocol import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

CONSUMER: Final = "consumer"  # the protocol type of groups whose members use this format

_VERSION: Final = Struct(">h")
_VERSION_MIN: Final = 0  # every client reads it, and an eager member has nothing to add
_VERSION_MAX: Final = 3  # later versions only add fields behind those of this one
_ELEMENTS_MAX: Final = 50_000  # topics and partitions in one member's bytes that a broker decodes


@dataclass(frozen=True, slots=True)
class Subscription:
    """A decoded ConsumerProtocolSubscription."""

    topics: frozenset[str]
    owned: Mapping[str, list[int]]
    rack_id: str | None
    version: int


def parse_subscription(metadata: bytes) -> Subscription | None:
    """Decode a ConsumerProtocolSubscription; None if the bytes are something else."""
    try:
        version = _version(metadata)
        found = decode(
            ConsumerProtocolSubscription,
            version,
            metadata,
            _VERSION.size,
            elements_max=_ELEMENTS_MAX,
        )
    except (error, ProtocolViolation):
        return None
    owned = {item.topic: item.partitions for item in found.owned_partitions}
    return Subscription(frozenset(found.topics), owned, found.rack_id, version)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of a ConsumerProtocolSubscription; None if the bytes are something else."""
    found = parse_subscription(metadata)
    return None if found is None else found.topics


def subscription_bytes(topics: Iterable[str]) -> bytes:
    """Encode the subscription of a member that owns nothing yet."""
    message = ConsumerProtocolSubscription(topics=sorted(set(topics)))
    return _VERSION.pack(_VERSION_MIN) + encode(message, _VERSION_MIN)


def parse_assignment(
    assignment: bytes, *, elements_max: int = _ELEMENTS_MAX
) -> dict[str, list[int]] | None:
    """Decode a ConsumerProtocolAssignment into {topic: partitions}.

    Empty input means no partitions; None if the bytes are something else.
    """
    if not assignment:
        return {}
    try:
        found = decode(
            ConsumerProtocolAssignment,
            _version(assignment),
            assignment,
            _VERSION.size,
            elements_max=elements_max,
        )
    except (error, ProtocolViolation):
        return None
    return {item.topic: item.partitions for item in found.assigned_partitions}


def assigned_partitions(assignment: bytes) -> tuple[TopicPartition, ...] | None:
    """`parse_assignment` for clients: sorted partitions, as many as the leader assigned."""
    found = parse_assignment(assignment, elements_max=UNLIMITED)
    if found is None:
        return None
    return tuple(sorted(TopicPartition(topic, i) for topic in found for i in found[topic]))


def assignment_bytes(partitions: Mapping[str, list[int]], version: int = _VERSION_MIN) -> bytes:
    """Encode an assignment for a consumer that subscribed in this version."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            AssignedTopicPartitions(topic=topic, partitions=found)
            for topic, found in partitions.items()
        ]
    )
    return _VERSION.pack(version) + encode(message, version)


def partitions_bytes(tps: Iterable[TopicPartition]) -> bytes:
    """Encode an assignment of these partitions, in the version that every client reads."""
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(tps):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return assignment_bytes(by_topic)


def _version(data: bytes) -> int:
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise ProtocolViolation(f"consumer protocol version {version} is negative")
    return min(int(version), _VERSION_MAX)
