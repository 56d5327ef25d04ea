"""What consumers of a classic group tell each other in bytes that are opaque otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct, error
from typing import Final

from ottla.errors import ProtocolViolation
from ottla.protocol.codec import decode, encode
from ottla.protocol.messages.consumer_protocol import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

_VERSION: Final = Struct(">h")
_VERSION_MAX: Final = 3  # later versions only add fields behind those of this one
_ELEMENTS_MAX: Final = 50_000  # topics and partitions that one member tells of; else it is foreign


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer says in the metadata of a join."""

    topics: frozenset[str]
    owned: Mapping[str, list[int]]
    rack_id: str | None
    version: int


def parse_subscription(metadata: bytes) -> Subscription | None:
    """None when it does not speak the usual format."""
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
    """The topics that a consumer subscribes to; None when it does not speak the usual format."""
    found = parse_subscription(metadata)
    return None if found is None else found.topics


def parse_assignment(assignment: bytes) -> dict[str, list[int]] | None:
    """Partitions by topic; no bytes are no partitions, other bytes that are no assignment None."""
    if not assignment:
        return {}
    try:
        found = decode(
            ConsumerProtocolAssignment,
            _version(assignment),
            assignment,
            _VERSION.size,
            elements_max=_ELEMENTS_MAX,
        )
    except (error, ProtocolViolation):
        return None
    return {item.topic: item.partitions for item in found.assigned_partitions}


def assignment_bytes(partitions: Mapping[str, list[int]], version: int) -> bytes:
    """What a consumer that subscribed in this version reads its assignment from."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            AssignedTopicPartitions(topic=topic, partitions=found)
            for topic, found in partitions.items()
        ]
    )
    return _VERSION.pack(version) + encode(message, version)


def _version(data: bytes) -> int:
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise ProtocolViolation(f"version {version} of what consumers tell each other")
    return min(int(version), _VERSION_MAX)
