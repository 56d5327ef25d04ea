"""Requests of group members, with all that does not matter filled in."""

from struct import pack
from typing import TypedDict

from ottla.coordinator.groups.classic_protocol import Join, Protocol, Sync
from ottla.protocol.codec import encode
from ottla.protocol.consumer_protocol import assignment_bytes
from ottla.protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    OwnedTopicPartitions,
)


def subscription(*topics: str, owned: dict[str, list[int]] | None = None) -> bytes:
    """What a consumer says about itself, in version 1 of the format."""
    said = ConsumerProtocolSubscription(
        topics=list(topics),
        owned_partitions=[
            OwnedTopicPartitions(topic=topic, partitions=partitions)
            for topic, partitions in (owned or {}).items()
        ],
    )
    return pack(">h", 1) + encode(said, 1)


class JoinOptions(TypedDict, total=False):
    """Options of `join` that tests pass on to it."""

    instance_id: str | None
    client_id: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: dict[str, bytes]


def join(
    member_id: str = "",
    *,
    instance_id: str | None = None,
    client_id: str = "c",
    session_ms: int = 10_000,
    rebalance_ms: int = 60_000,
    protocol_type: str = "consumer",
    protocols: dict[str, bytes] | None = None,
    version: int = 9,
) -> Join:
    if protocols is None:
        protocols = {"range": subscription("t")}
    return Join(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host="/127.0.0.1",
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        protocol_type=protocol_type,
        protocols=tuple(Protocol(name, metadata) for name, metadata in protocols.items()),
        needs_known_id=version >= 4,
        supports_skip_assignment=version >= 9,
    )


def sync(
    member_id: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    *,
    instance_id: str | None = None,
    protocol_type: str | None = None,
    protocol_name: str | None = None,
) -> Sync:
    return Sync(
        member_id=member_id,
        instance_id=instance_id,
        generation=generation,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=assignments or {},
    )


def assignment(partitions: dict[str, list[int]]) -> bytes:
    """What a leader tells a consumer to read."""
    return assignment_bytes(partitions, 1)
