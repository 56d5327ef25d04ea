"""Records of share groups, in the formats Kafka keeps in __consumer_offsets.

Every kind of record has a key of its own; `ShareGroupDropped` is the tombstone of any of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final, TypeVar

from ottla.coordinator.groups.topics import NOTHING, IdPartition, Partitions, by_topic
from ottla.errors import ProtocolViolation
from ottla.model import Uuid
from ottla.protocol.codec import decode, encode
from ottla.protocol.schema import array, int8, int32, int64, message, string, struct, uuid, wire

_VERSION: Final = Struct(">h")
_STABLE: Final = 0  # the only state of a member: nothing is revoked in a share group
_T = TypeVar("_T")


class ShareKey(IntEnum):
    """Kinds of records, by the versions of their keys."""

    MEMBER = 10
    EPOCH = 11
    TARGET_EPOCH = 12
    TARGET = 13
    CURRENT = 14
    STATE_TOPICS = 15


_OF_MEMBERS: Final = frozenset({ShareKey.MEMBER, ShareKey.TARGET, ShareKey.CURRENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupRecord:
    """A record of a share group."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareEpochSet(ShareGroupRecord):
    """The number of changes of a group, and the fingerprint of its topics at the last one."""

    epoch: int
    fingerprint: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMemberStored(ShareGroupRecord):
    """A member as its heartbeats describe it."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTargetEpochSet(ShareGroupRecord):
    """The epoch of the group that the targets were made for."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTargetSet(ShareGroupRecord):
    """The target assignment of a member."""

    member_id: str
    partitions: Partitions = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCurrentSet(ShareGroupRecord):
    """The current assignment of a member."""

    member_id: str
    epoch: int = 0
    previous_epoch: int = 0
    assigned: Partitions = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareStateTopics(ShareGroupRecord):
    """The partitions whose state the share coordinator has, is to make, or is to delete."""

    initializing: Partitions = NOTHING
    initialized: Partitions = NOTHING
    deleting: frozenset[Uuid] = frozenset()
    names: tuple[tuple[Uuid, str], ...] = ()  # of these topics


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupDropped(ShareGroupRecord):
    """Tombstone of one record of a share group."""

    key: ShareKey
    member_id: str = ""


@message(versions="11-15", flexible="none")
class _GroupKey:
    group: str = wire(string, "11+")


@message(versions="10-14", flexible="none")
class _MemberKey:
    group: str = wire(string, "10+")
    member: str = wire(string, "10+")


@message(versions="0", flexible="0+")
class _EpochValue:
    epoch: int = wire(int32, "0+")
    metadata_hash: int = wire(int64, "0+")


@message(versions="0", flexible="0+")
class _MemberValue:
    rack_id: str | None = wire(string, "0+", nullable="0+")
    client_id: str = wire(string, "0+")
    client_host: str = wire(string, "0+")
    subscribed_topic_names: list[str] = wire(array(string), "0+")


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


@struct
class _TopicPartitionsInfo:
    topic_id: Uuid = wire(uuid, "0+")
    topic_name: str = wire(string, "0+")
    partitions: list[int] = wire(array(int32), "0+")
    create_timestamp: int = wire(int64, "0+")


@struct
class _TopicInfo:
    topic_id: Uuid = wire(uuid, "0+")
    topic_name: str = wire(string, "0+")


@message(versions="0", flexible="0+")
class _StateTopicsValue:
    initializing_topics: list[_TopicPartitionsInfo] = wire(array(_TopicPartitionsInfo), "0+")
    initialized_topics: list[_TopicPartitionsInfo] = wire(array(_TopicPartitionsInfo), "0+")
    deleting_topics: list[_TopicInfo] = wire(array(_TopicInfo), "0+")


def to_bytes(record: ShareGroupRecord) -> tuple[bytes, bytes | None]:
    """Key and value for the log; a tombstone has no value."""
    group_id = record.group_id
    match record:
        case ShareMemberStored():
            value: object = _MemberValue(
                rack_id=record.rack_id,
                client_id=record.client_id,
                client_host=record.client_host,
                subscribed_topic_names=list(record.topics),
            )
            key = _key(ShareKey.MEMBER, group_id, record.member_id)
        case ShareEpochSet():
            value = _EpochValue(epoch=record.epoch, metadata_hash=record.fingerprint)
            key = _key(ShareKey.EPOCH, group_id)
        case ShareTargetEpochSet():
            value = _TargetEpochValue(assignment_epoch=record.epoch)
            key = _key(ShareKey.TARGET_EPOCH, group_id)
        case ShareTargetSet():
            value = _TargetValue(topic_partitions=_topic_partitions(record.partitions))
            key = _key(ShareKey.TARGET, group_id, record.member_id)
        case ShareCurrentSet():
            value = _CurrentValue(
                member_epoch=record.epoch,
                previous_member_epoch=record.previous_epoch,
                state=_STABLE,
                assigned_partitions=_topic_partitions(record.assigned),
            )
            key = _key(ShareKey.CURRENT, group_id, record.member_id)
        case ShareStateTopics():
            value = _state_topics_value(record)
            key = _key(ShareKey.STATE_TOPICS, group_id)
        case ShareGroupDropped():
            return _key(record.key, group_id, record.member_id), None
        case _:
            raise AssertionError(f"{record!r} is no record of a share group")
    return key, _VERSION.pack(0) + encode(value, 0)


def from_bytes(kind: int, key: bytes, value: bytes | None) -> ShareGroupRecord | None:
    """The inverse of `to_bytes`; None for another kind of record."""
    if kind not in ShareKey.__members__.values():
        return None
    share_key = ShareKey(kind)
    member_id = ""
    if share_key in _OF_MEMBERS:
        named = decode(_MemberKey, kind, key, _VERSION.size)
        group_id, member_id = named.group, named.member
    else:
        group_id = decode(_GroupKey, kind, key, _VERSION.size).group
    if value is None:
        return ShareGroupDropped(group_id=group_id, key=share_key, member_id=member_id)
    if share_key in _OF_MEMBERS:
        return _of_member(share_key, group_id, member_id, value)
    match share_key:
        case ShareKey.EPOCH:
            epoch = _read(_EpochValue, value)
            return ShareEpochSet(
                group_id=group_id, epoch=epoch.epoch, fingerprint=epoch.metadata_hash
            )
        case ShareKey.TARGET_EPOCH:
            target_epoch = _read(_TargetEpochValue, value).assignment_epoch
            return ShareTargetEpochSet(group_id=group_id, epoch=target_epoch)
        case _:
            return _state_topics(group_id, _read(_StateTopicsValue, value))


def _of_member(
    share_key: ShareKey, group_id: str, member_id: str, value: bytes
) -> ShareGroupRecord:
    match share_key:
        case ShareKey.MEMBER:
            member = _read(_MemberValue, value)
            return ShareMemberStored(
                group_id=group_id,
                member_id=member_id,
                rack_id=member.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                topics=tuple(member.subscribed_topic_names),
            )
        case ShareKey.TARGET:
            target = _partitions(_read(_TargetValue, value).topic_partitions)
            return ShareTargetSet(group_id=group_id, member_id=member_id, partitions=target)
        case _:
            current = _read(_CurrentValue, value)
            return ShareCurrentSet(
                group_id=group_id,
                member_id=member_id,
                epoch=current.member_epoch,
                previous_epoch=current.previous_member_epoch,
                assigned=_partitions(current.assigned_partitions),
            )


def _state_topics_value(record: ShareStateTopics) -> _StateTopicsValue:
    names = dict(record.names)

    def infos(partitions: Partitions) -> list[_TopicPartitionsInfo]:
        return [
            _TopicPartitionsInfo(
                topic_id=topic_id, topic_name=names.get(topic_id, ""), partitions=found
            )
            for topic_id, found in by_topic(partitions).items()
        ]

    return _StateTopicsValue(
        initializing_topics=infos(record.initializing),
        initialized_topics=infos(record.initialized),
        deleting_topics=[
            _TopicInfo(topic_id=topic_id, topic_name=names.get(topic_id, ""))
            for topic_id in sorted(record.deleting)
        ],
    )


def _state_topics(group_id: str, found: _StateTopicsValue) -> ShareStateTopics:
    infos: list[_TopicPartitionsInfo | _TopicInfo] = [
        *found.initializing_topics,
        *found.initialized_topics,
        *found.deleting_topics,
    ]
    return ShareStateTopics(
        group_id=group_id,
        initializing=_partitions(found.initializing_topics),
        initialized=_partitions(found.initialized_topics),
        deleting=frozenset(item.topic_id for item in found.deleting_topics),
        names=tuple(sorted({item.topic_id: item.topic_name for item in infos}.items())),
    )


def _topic_partitions(partitions: Partitions) -> list[_TopicPartitions]:
    return [
        _TopicPartitions(topic_id=topic_id, partitions=found)
        for topic_id, found in by_topic(partitions).items()
    ]


def _partitions(found: Iterable[_TopicPartitions | _TopicPartitionsInfo]) -> Partitions:
    return frozenset(IdPartition(item.topic_id, p) for item in found for p in item.partitions)


def _key(kind: ShareKey, group_id: str, member_id: str = "") -> bytes:
    named: object = _GroupKey(group=group_id)
    if kind in _OF_MEMBERS:
        named = _MemberKey(group=group_id, member=member_id)
    return _VERSION.pack(kind) + encode(named, kind)


def _read(message_class: type[_T], value: bytes) -> _T:
    (version,) = _VERSION.unpack_from(value)
    if version != 0:
        raise ProtocolViolation(f"values of version {version} are not known")
    return decode(message_class, 0, value, _VERSION.size)
