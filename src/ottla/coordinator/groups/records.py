"""Records of groups and offsets, in the formats Kafka keeps in __consumer_offsets."""

from dataclasses import dataclass
from functools import lru_cache
from struct import Struct, error
from typing import Final

from ottla.coordinator.groups import consumer_records, share_records
from ottla.coordinator.groups.consumer_records import ConsumerRecord
from ottla.coordinator.groups.share_records import ShareGroupRecord
from ottla.coordinator.runtime.decision import Decision
from ottla.coordinator.runtime.log_entries import (
    Entry,
    ProducerIdentity,
    TransactionEnded,
    UnreadableRecord,
)
from ottla.errors import ProtocolViolation
from ottla.model import NO_EPOCH, LeaderEpoch, Offset, TimestampMs, TopicPartition
from ottla.protocol.codec import decode, encode
from ottla.protocol.schema import array, binary, int32, int64, message, string, struct, wire

_VERSION: Final = Struct(">h")
_OFFSET_KEY: Final = 1
_GROUP_KEY: Final = 2
_OFFSET_VALUE: Final = 3
_GROUP_VALUE: Final = 3
_VALUE_MAX: Final = 4  # flexible; only read, from the data of another Kafka broker
_VALUE_HEAD: Final = Struct(">hqih")  # version, offset, leader epoch, length of the metadata
_TIMESTAMP: Final = Struct(">q")
_KEYS_MAX: Final = 4096  # of offsets, that are remembered encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitted:
    """The offset of a partition that a group has committed."""

    group_id: str
    tp: TopicPartition
    offset: Offset
    leader_epoch: LeaderEpoch = NO_EPOCH
    metadata: str = ""
    committed_ms: TimestampMs


@dataclass(frozen=True, slots=True)
class OffsetPending:
    """An offset that counts once its producer's transaction commits.

    In the log it is an `OffsetCommitted` in a transactional batch of that producer.
    """

    producer: ProducerIdentity
    offset: OffsetCommitted


@dataclass(frozen=True, slots=True)
class OffsetDropped:
    """Tombstone of a group's offset of a partition."""

    group_id: str
    tp: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A member of a classic group, with everything the next leader of the shard must know."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStored:
    """A classic group as a whole: a generation with the assignments of all members."""

    group_id: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    changed_ms: TimestampMs
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True)
class GroupDropped:
    """Tombstone of a classic group."""

    group_id: str


Record = (
    OffsetCommitted
    | OffsetPending
    | OffsetDropped
    | GroupStored
    | GroupDropped
    | ConsumerRecord
    | ShareGroupRecord
)
GroupEvent = Record | TransactionEnded  # in the log of a group shard
GroupDecision = Decision[GroupEvent]


@message(versions="0-1", flexible="none")
class _OffsetKey:
    group: str = wire(string, "0-1")
    topic: str = wire(string, "0-1")
    partition: int = wire(int32, "0-1")


@message(versions="0-4", flexible="4+")
class _OffsetValue:
    offset: int = wire(int64, "0+")
    leader_epoch: int = wire(int32, "3+", default=-1)
    metadata: str = wire(string, "0+")
    commit_timestamp: int = wire(int64, "0+")
    expire_timestamp: int = wire(int64, "1", default=-1)


@message(versions="2", flexible="none")
class _GroupKey:
    group: str = wire(string, "2")


@struct
class _MemberValue:
    member_id: str = wire(string, "0+")
    group_instance_id: str | None = wire(string, "3+", nullable="3+", default=None)
    client_id: str = wire(string, "0+")
    client_host: str = wire(string, "0+")
    rebalance_timeout: int = wire(int32, "1+")
    session_timeout: int = wire(int32, "0+")
    subscription: bytes = wire(binary, "0+")
    assignment: bytes = wire(binary, "0+")


@message(versions="0-4", flexible="4+")
class _GroupValue:
    protocol_type: str = wire(string, "0+")
    generation: int = wire(int32, "0+")
    protocol: str | None = wire(string, "0+", nullable="0+")
    leader: str | None = wire(string, "0+", nullable="0+")
    current_state_timestamp: int = wire(int64, "2+", default=-1)
    members: list[_MemberValue] = wire(array(_MemberValue), "0+")


def to_bytes(record: Record) -> tuple[bytes, bytes | None]:
    """Key and value for the log; a tombstone has no value."""
    match record:
        case OffsetCommitted():
            # By hand: a broker writes one for every commit of every consumer.
            metadata = record.metadata.encode()
            head = _VALUE_HEAD.pack(
                _OFFSET_VALUE, record.offset, record.leader_epoch, len(metadata)
            )
            value = head + metadata + _TIMESTAMP.pack(record.committed_ms)
            return _offset_key(record.group_id, record.tp), value
        case OffsetPending(offset=offset):
            return to_bytes(offset)
        case OffsetDropped(group_id, tp):
            return _offset_key(group_id, tp), None
        case GroupStored():
            return _group_key(record.group_id), _versioned(_GROUP_VALUE, _group_value(record))
        case GroupDropped(group_id):
            return _group_key(group_id), None
        case ShareGroupRecord():
            return share_records.to_bytes(record)
        case _:
            return consumer_records.to_bytes(record)


def read_entry(entry: Entry | TransactionEnded) -> Record | TransactionEnded | None:
    """An entry of the log for `Groups.replay`; None for one that it does not need."""
    if isinstance(entry, TransactionEnded):
        return entry
    record = None if entry.key is None else from_bytes(entry.key, entry.value)
    if entry.producer is not None and isinstance(record, OffsetCommitted):
        return OffsetPending(entry.producer, record)
    return record


def from_bytes(key: bytes, value: bytes | None) -> Record | None:
    """The inverse of `to_bytes`; None for a kind of record that a newer version wrote."""
    try:
        return _from_bytes(key, value)
    except (error, ProtocolViolation) as problem:
        raise UnreadableRecord(f"not a record of a group: {problem}") from None


def _from_bytes(key: bytes, value: bytes | None) -> Record | None:
    (kind,) = _VERSION.unpack_from(key)
    if kind in {0, _OFFSET_KEY}:
        found = decode(_OffsetKey, kind, key, _VERSION.size)
        tp = TopicPartition(found.topic, found.partition)
        return OffsetDropped(found.group, tp) if value is None else _offset(found.group, tp, value)
    if kind == _GROUP_KEY:
        group_id = decode(_GroupKey, kind, key, _VERSION.size).group
        return GroupDropped(group_id) if value is None else _group(group_id, value)
    return consumer_records.from_bytes(kind, key, value) or share_records.from_bytes(
        kind, key, value
    )


def _value_version(value: bytes) -> int:
    (version,) = _VERSION.unpack_from(value)
    if not 0 <= version <= _VALUE_MAX:
        raise UnreadableRecord(f"values of version {version} are not known")
    return int(version)


def _versioned(version: int, value: object) -> bytes:
    return _VERSION.pack(version) + encode(value, version)


@lru_cache(maxsize=_KEYS_MAX)
def _offset_key(group_id: str, tp: TopicPartition) -> bytes:
    return _versioned(
        _OFFSET_KEY, _OffsetKey(group=group_id, topic=tp.topic, partition=tp.partition)
    )


def _group_key(group_id: str) -> bytes:
    return _versioned(_GROUP_KEY, _GroupKey(group=group_id))


def _offset(group_id: str, tp: TopicPartition, value: bytes) -> OffsetCommitted:
    found = decode(_OffsetValue, _value_version(value), value, _VERSION.size)
    return OffsetCommitted(
        group_id=group_id,
        tp=tp,
        offset=Offset(found.offset),
        leader_epoch=LeaderEpoch(found.leader_epoch),
        metadata=found.metadata,
        committed_ms=TimestampMs(found.commit_timestamp),
    )


def _group_value(record: GroupStored) -> _GroupValue:
    return _GroupValue(
        protocol_type=record.protocol_type,
        generation=record.generation,
        protocol=record.protocol,
        leader=record.leader,
        current_state_timestamp=record.changed_ms,
        members=[
            _MemberValue(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in record.members
        ],
    )


def _group(group_id: str, value: bytes) -> GroupStored:
    found = decode(_GroupValue, _value_version(value), value, _VERSION.size)
    return GroupStored(
        group_id=group_id,
        protocol_type=found.protocol_type,
        generation=found.generation,
        protocol=found.protocol,
        leader=found.leader,
        changed_ms=TimestampMs(found.current_state_timestamp),
        members=tuple(
            StoredMember(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout,
                session_timeout_ms=member.session_timeout,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in found.members
        ),
    )
