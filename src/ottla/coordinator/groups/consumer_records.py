"""Records of consumer groups, in the formats Kafka keeps in __consumer_offsets.

A group is spread over several records, so that a change of one member does not rewrite all. Each
kind has a second class, its tombstone.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final, TypeVar, assert_never

from ottla.coordinator.groups.topics import NOTHING, IdPartition, Partitions, by_topic
from ottla.errors import ProtocolViolation
from ottla.model import TimestampMs, Uuid
from ottla.protocol.codec import decode, encode
from ottla.protocol.schema import (
    array,
    binary,
    int8,
    int32,
    int64,
    message,
    string,
    struct,
    uuid,
    wire,
)

_VERSION: Final = Struct(">h")
_GROUP_KEY: Final = 3
_MEMBER_KEY: Final = 5
_TARGET_EPOCH_KEY: Final = 6
_TARGET_KEY: Final = 7
_CURRENT_KEY: Final = 8
_PATTERN_KEY: Final = 16
_T = TypeVar("_T")


class MemberState(IntEnum):
    """States of a member on its way to its target; the numbers are Kafka's."""

    STABLE = 0
    UNREVOKED = 1  # it has not given up yet what it must not read any more
    UNRELEASED = 2  # others have not given up yet what it is to get
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class ClassicPart:
    """The additional fields of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # names of assignors, and its metadata for each


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSet:
    """The number of changes of a group, and the fingerprint of its topics at the last one."""

    group_id: str
    epoch: int
    fingerprint: int = 0


@dataclass(frozen=True, slots=True)
class EpochDropped:
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStored:
    """A member as its heartbeats describe it."""

    group_id: str
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicPart | None = None


@dataclass(frozen=True, slots=True)
class MemberDropped:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class TargetEpochSet:
    """The epoch of the group that the targets were made for."""

    group_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class TargetEpochDropped:
    group_id: str


@dataclass(frozen=True, slots=True)
class TargetSet:
    """The target assignment of a member."""

    group_id: str
    member_id: str
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class TargetDropped:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentSet:
    """The current assignment of a member, and the partitions that it has to give up first."""

    group_id: str
    member_id: str
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING


@dataclass(frozen=True, slots=True)
class CurrentDropped:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternResolved:
    """The topics that a member's regular expression matches."""

    group_id: str
    pattern: str
    topics: tuple[str, ...]
    version: int
    resolved_ms: TimestampMs


@dataclass(frozen=True, slots=True)
class PatternDropped:
    group_id: str
    pattern: str


ConsumerRecord = (
    EpochSet
    | EpochDropped
    | MemberStored
    | MemberDropped
    | TargetEpochSet
    | TargetEpochDropped
    | TargetSet
    | TargetDropped
    | CurrentSet
    | CurrentDropped
    | PatternResolved
    | PatternDropped
)

CONSUMER_TOMBSTONES: Final = (
    EpochDropped,
    MemberDropped,
    TargetEpochDropped,
    TargetDropped,
    CurrentDropped,
    PatternDropped,
)


@message(versions="3-6", flexible="none")
class _GroupKey:
    group: str = wire(string, "3+")


@message(versions="5-16", flexible="none")
class _PartKey:
    """The key of a member, or of an expression."""

    group: str = wire(string, "5+")
    part: str = wire(string, "5+")


@message(versions="0", flexible="0+")
class _EpochValue:
    epoch: int = wire(int32, "0+")
    metadata_hash: int = wire(int64, "0+", tag=0, default=0)


@struct
class _ClassicProtocolValue:
    name: str = wire(string, "0+")
    metadata: bytes = wire(binary, "0+")


@struct
class _ClassicValue:
    session_timeout_ms: int = wire(int32, "0+")
    supported_protocols: list[_ClassicProtocolValue] = wire(array(_ClassicProtocolValue), "0+")


@message(versions="0", flexible="0+")
class _MemberValue:
    instance_id: str | None = wire(string, "0+", nullable="0+")
    rack_id: str | None = wire(string, "0+", nullable="0+")
    client_id: str = wire(string, "0+")
    client_host: str = wire(string, "0+")
    subscribed_topic_names: list[str] = wire(array(string), "0+")
    subscribed_topic_regex: str | None = wire(string, "0+", nullable="0+")
    rebalance_timeout_ms: int = wire(int32, "0+", default=-1)
    server_assignor: str | None = wire(string, "0+", nullable="0+")
    classic_member_metadata: _ClassicValue | None = wire(
        _ClassicValue, "0+", nullable="0+", tag=0, default=None
    )


@message(versions="0", flexible="0+")
class _TargetEpochValue:
    assignment_epoch: int = wire(int32, "0+")


@struct
class _TopicPartitions:
    topic_id: Uuid = wire(uuid, "0+")
    partitions: list[int] = wire(array(int32), "0+")


@message(versions="0", flexible="0+")
class _TargetValue:
    topic_partitions: list[_TopicPartitions] = wire(array(_TopicPartitions), "0+")


@message(versions="0", flexible="0+")
class _CurrentValue:
    member_epoch: int = wire(int32, "0+")
    previous_member_epoch: int = wire(int32, "0+")
    state: int = wire(int8, "0+")
    assigned_partitions: list[_TopicPartitions] = wire(array(_TopicPartitions), "0+")
    partitions_pending_revocation: list[_TopicPartitions] = wire(array(_TopicPartitions), "0+")


@message(versions="0", flexible="0+")
class _PatternValue:
    topics: list[str] = wire(array(string), "0+")
    version: int = wire(int64, "0+")
    timestamp: int = wire(int64, "0+")


def to_bytes(record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    """Key and value for the log; a tombstone has no value."""
    value = _value(record)
    return _key(record), None if value is None else _VERSION.pack(0) + encode(value, 0)


def _key(record: ConsumerRecord) -> bytes:
    match record:
        case EpochSet() | EpochDropped():
            return _group_key(_GROUP_KEY, record.group_id)
        case TargetEpochSet() | TargetEpochDropped():
            return _group_key(_TARGET_EPOCH_KEY, record.group_id)
        case MemberStored() | MemberDropped():
            return _part_key(_MEMBER_KEY, record.group_id, record.member_id)
        case TargetSet() | TargetDropped():
            return _part_key(_TARGET_KEY, record.group_id, record.member_id)
        case CurrentSet() | CurrentDropped():
            return _part_key(_CURRENT_KEY, record.group_id, record.member_id)
        case PatternResolved() | PatternDropped():
            return _part_key(_PATTERN_KEY, record.group_id, record.pattern)
        case _ as never:
            assert_never(never)


def _value(record: ConsumerRecord) -> object | None:
    """The value of a record; None for a tombstone."""
    match record:
        case EpochSet():
            return _EpochValue(epoch=record.epoch, metadata_hash=record.fingerprint)
        case TargetEpochSet():
            return _TargetEpochValue(assignment_epoch=record.epoch)
        case MemberStored():
            return _member_value(record)
        case TargetSet():
            return _TargetValue(topic_partitions=_topic_partitions(record.partitions))
        case CurrentSet():
            return _current_value(record)
        case PatternResolved():
            return _PatternValue(
                topics=list(record.topics), version=record.version, timestamp=record.resolved_ms
            )
        case _:
            return None


def from_bytes(kind: int, key: bytes, value: bytes | None) -> ConsumerRecord | None:
    """The inverse of `to_bytes`; None for another kind of record."""
    if kind in {_GROUP_KEY, _TARGET_EPOCH_KEY}:
        group_id = decode(_GroupKey, kind, key, _VERSION.size).group
        return _of_group(kind, group_id, value)
    if kind in _PARTS:
        found = decode(_PartKey, kind, key, _VERSION.size)
        dropped, read = _PARTS[kind]
        if value is None:
            return dropped(found.group, found.part)
        return read(found.group, found.part, value)
    return None  # kind 4, say: Kafka 4.0 kept topics there, before there was a fingerprint


def _of_group(kind: int, group_id: str, value: bytes | None) -> ConsumerRecord:
    if kind == _GROUP_KEY:
        if value is None:
            return EpochDropped(group_id)
        epoch = _read(_EpochValue, value)
        return EpochSet(group_id=group_id, epoch=epoch.epoch, fingerprint=epoch.metadata_hash)
    if value is None:
        return TargetEpochDropped(group_id)
    return TargetEpochSet(group_id, _read(_TargetEpochValue, value).assignment_epoch)


def _member_value(record: MemberStored) -> _MemberValue:
    classic = record.classic
    return _MemberValue(
        instance_id=record.instance_id,
        rack_id=record.rack_id,
        client_id=record.client_id,
        client_host=record.client_host,
        subscribed_topic_names=list(record.topics),
        subscribed_topic_regex=record.pattern,
        rebalance_timeout_ms=record.rebalance_timeout_ms,
        server_assignor=record.assignor,
        classic_member_metadata=None
        if classic is None
        else _ClassicValue(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                _ClassicProtocolValue(name=name, metadata=metadata)
                for name, metadata in classic.protocols
            ],
        ),
    )


def _member(group_id: str, member_id: str, value: bytes) -> MemberStored:
    found = _read(_MemberValue, value)
    classic = found.classic_member_metadata
    return MemberStored(
        group_id=group_id,
        member_id=member_id,
        instance_id=found.instance_id,
        rack_id=found.rack_id,
        client_id=found.client_id,
        client_host=found.client_host,
        topics=tuple(found.subscribed_topic_names),
        pattern=found.subscribed_topic_regex or None,
        rebalance_timeout_ms=found.rebalance_timeout_ms,
        assignor=found.server_assignor,
        classic=None
        if classic is None
        else ClassicPart(
            classic.session_timeout_ms,
            tuple((p.name, p.metadata) for p in classic.supported_protocols),
        ),
    )


def _target(group_id: str, member_id: str, value: bytes) -> TargetSet:
    return TargetSet(group_id, member_id, _partitions(_read(_TargetValue, value).topic_partitions))


def _current_value(record: CurrentSet) -> _CurrentValue:
    return _CurrentValue(
        member_epoch=record.epoch,
        previous_member_epoch=record.previous_epoch,
        state=record.state,
        assigned_partitions=_topic_partitions(record.assigned),
        partitions_pending_revocation=_topic_partitions(record.revoking),
    )


def _current(group_id: str, member_id: str, value: bytes) -> CurrentSet:
    found = _read(_CurrentValue, value)
    known = found.state in MemberState.__members__.values()
    return CurrentSet(
        group_id=group_id,
        member_id=member_id,
        epoch=found.member_epoch,
        previous_epoch=found.previous_member_epoch,
        state=MemberState(found.state) if known else MemberState.UNKNOWN,
        assigned=_partitions(found.assigned_partitions),
        revoking=_partitions(found.partitions_pending_revocation),
    )


def _pattern(group_id: str, pattern: str, value: bytes) -> PatternResolved:
    found = _read(_PatternValue, value)
    return PatternResolved(
        group_id=group_id,
        pattern=pattern,
        topics=tuple(found.topics),
        version=found.version,
        resolved_ms=TimestampMs(found.timestamp),
    )


def _topic_partitions(partitions: Partitions) -> list[_TopicPartitions]:
    return [
        _TopicPartitions(topic_id=topic_id, partitions=found)
        for topic_id, found in by_topic(partitions).items()
    ]


def _partitions(found: Iterable[_TopicPartitions]) -> Partitions:
    return frozenset(IdPartition(item.topic_id, p) for item in found for p in item.partitions)


def _group_key(kind: int, group_id: str) -> bytes:
    return _VERSION.pack(kind) + encode(_GroupKey(group=group_id), kind)


def _part_key(kind: int, group_id: str, part: str) -> bytes:
    return _VERSION.pack(kind) + encode(_PartKey(group=group_id, part=part), kind)


def _read(message_class: type[_T], value: bytes) -> _T:
    (version,) = _VERSION.unpack_from(value)
    if version != 0:
        raise ProtocolViolation(f"values of version {version} are not known")
    return decode(message_class, 0, value, _VERSION.size)


_Dropped = Callable[[str, str], ConsumerRecord]
_Reader = Callable[[str, str, bytes], ConsumerRecord]
_PARTS: Final[dict[int, tuple[_Dropped, _Reader]]] = {
    _MEMBER_KEY: (MemberDropped, _member),
    _TARGET_KEY: (TargetDropped, _target),
    _CURRENT_KEY: (CurrentDropped, _current),
    _PATTERN_KEY: (PatternDropped, _pattern),
}
