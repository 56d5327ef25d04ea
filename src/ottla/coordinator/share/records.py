"""Records of share partitions, in the formats Kafka keeps in __share_group_state.

A snapshot is the whole state of a share partition, an update what has changed since. So the topic
is never compacted: that would keep the last update alone.
"""

from functools import lru_cache
from struct import Struct, error
from typing import Any, Final, NamedTuple, TypeVar

from ottla.coordinator.runtime.log_entries import UnreadableRecord
from ottla.coordinator.share.state_batches import batch_messages, batches_of
from ottla.errors import ProtocolViolation
from ottla.model import Offset, ProducerId, TimestampMs, Uuid
from ottla.protocol.codec import decode, encode
from ottla.protocol.messages.share_state import StateBatch as _StateBatch
from ottla.protocol.schema import array, int32, int64, message, string, uuid, wire
from ottla.queues.share_state import Sender, SharePartitionKey, StateBatch

_VERSION: Final = Struct(">h")
_SNAPSHOT_KEY: Final = 0
_UPDATE_KEY: Final = 1
_VALUE: Final = 0
_PLAIN_UPDATE: Final = Struct(">hiiqbbbbi")
_NO_BATCHES_ONE_TAG: Final = (1, 1, 0, 4)  # the tag is 0, the count of what is complete, 4 bytes
_KEYS_MAX: Final = 4096  # that are remembered
_T = TypeVar("_T")


class Snapshot(NamedTuple):
    """The whole state of a share partition."""

    key: SharePartitionKey
    state_epoch: int
    leader_epoch: int
    start_offset: Offset
    created_ms: TimestampMs
    written_ms: TimestampMs
    snapshot_epoch: int = 0  # snapshots are counted; an update belongs to one
    complete_count: int = -1
    batches: tuple[StateBatch, ...] = ()
    sender: Sender | None = None


class Update(NamedTuple):
    """A change of a share partition's state since its last snapshot."""

    key: SharePartitionKey
    snapshot_epoch: int
    leader_epoch: int
    start_offset: Offset
    complete_count: int = -1
    batches: tuple[StateBatch, ...] = ()
    sender: Sender | None = None  # None if it is as it was


class StateDropped(NamedTuple):
    """Tombstone of a share partition's state."""

    key: SharePartitionKey


ShareRecord = Snapshot | Update | StateDropped


@message(versions="0-1", flexible="none")
class _Key:
    group_id: str = wire(string, "0+")
    topic_id: Uuid = wire(uuid, "0+")
    partition: int = wire(int32, "0+")


# Tags from 10000 on are Ottla's: the sender of dead letters. Kafka's tools ignore them.


@message(versions="0", flexible="0+")
class _SnapshotValue:
    snapshot_epoch: int = wire(int32, "0+")
    state_epoch: int = wire(int32, "0+")
    leader_epoch: int = wire(int32, "0+")
    start_offset: int = wire(int64, "0+")
    delivery_complete_count: int = wire(int32, "0+", tag=0, default=-1)
    create_timestamp: int = wire(int64, "0+")
    write_timestamp: int = wire(int64, "0+")
    state_batches: list[_StateBatch] = wire(array(_StateBatch), "0+")
    sender_producer_id: int = wire(int64, "0+", tag=10000, default=-1)
    sender_sequence: int = wire(int32, "0+", tag=10001)
    sender_topic_id: Uuid = wire(uuid, "0+", tag=10002)
    sender_partition: int = wire(int32, "0+", tag=10003)
    sender_begun_ms: int = wire(int64, "0+", tag=10004)


@message(versions="0", flexible="0+")
class _UpdateValue:
    snapshot_epoch: int = wire(int32, "0+")
    leader_epoch: int = wire(int32, "0+")
    start_offset: int = wire(int64, "0+")
    delivery_complete_count: int = wire(int32, "0+", tag=0, default=-1)
    state_batches: list[_StateBatch] = wire(array(_StateBatch), "0+")
    sender_producer_id: int = wire(int64, "0+", tag=10000, default=-1)
    sender_sequence: int = wire(int32, "0+", tag=10001)
    sender_topic_id: Uuid = wire(uuid, "0+", tag=10002)
    sender_partition: int = wire(int32, "0+", tag=10003)
    sender_begun_ms: int = wire(int64, "0+", tag=10004)


def to_bytes(record: ShareRecord) -> tuple[bytes, bytes | None]:
    """Key and value for the log; a tombstone has no value."""
    match record:
        case Update():
            key, _, _, _, complete_count, batches, sender = record
            is_plain = not batches and sender is None and complete_count >= 0
            update = plain_update_bytes(record) if is_plain else update_bytes(record)
            return _key(_UPDATE_KEY, key), update
        case Snapshot():
            value = _SnapshotValue(
                snapshot_epoch=record.snapshot_epoch,
                state_epoch=record.state_epoch,
                leader_epoch=record.leader_epoch,
                start_offset=record.start_offset,
                delivery_complete_count=record.complete_count,
                create_timestamp=record.created_ms,
                write_timestamp=record.written_ms,
                state_batches=batch_messages(record.batches),
                **_sender_fields(record.sender),
            )
            return _key(_SNAPSHOT_KEY, record.key), _VERSION.pack(_VALUE) + encode(value, _VALUE)
        case StateDropped(key):
            return _key(_SNAPSHOT_KEY, key), None


def update_bytes(record: Update) -> bytes:
    """The value of an update in the log."""
    value = _UpdateValue(
        snapshot_epoch=record.snapshot_epoch,
        leader_epoch=record.leader_epoch,
        start_offset=record.start_offset,
        delivery_complete_count=record.complete_count,
        state_batches=batch_messages(record.batches),
        **_sender_fields(record.sender),
    )
    return _VERSION.pack(_VALUE) + encode(value, _VALUE)


def plain_update_bytes(record: Update) -> bytes:
    """The same for an update that only moves the start, as most of them do: by hand."""
    _, snapshot_epoch, leader_epoch, start_offset, complete_count, _, _ = record
    return _PLAIN_UPDATE.pack(
        _VALUE, snapshot_epoch, leader_epoch, start_offset, *_NO_BATCHES_ONE_TAG, complete_count
    )


def from_bytes(key: bytes, value: bytes | None) -> ShareRecord | None:
    """The inverse of `to_bytes`; None for a kind of record that a newer version wrote."""
    try:
        return _from_bytes(key, value)
    except (error, ProtocolViolation, ValueError) as problem:
        raise UnreadableRecord(f"not a record of a share partition: {problem}") from None


def _from_bytes(key: bytes, value: bytes | None) -> ShareRecord | None:
    (kind,) = _VERSION.unpack_from(key)
    if kind not in {_SNAPSHOT_KEY, _UPDATE_KEY}:
        return None
    named = decode(_Key, kind, key, _VERSION.size)
    share_key = SharePartitionKey(named.group_id, named.topic_id, named.partition)
    if kind == _UPDATE_KEY:
        return None if value is None else _update(share_key, _read(_UpdateValue, value))
    return StateDropped(share_key) if value is None else _snapshot(share_key, value)


def _snapshot(key: SharePartitionKey, value: bytes) -> Snapshot:
    found = _read(_SnapshotValue, value)
    return Snapshot(
        key=key,
        snapshot_epoch=found.snapshot_epoch,
        state_epoch=found.state_epoch,
        leader_epoch=found.leader_epoch,
        start_offset=Offset(found.start_offset),
        complete_count=found.delivery_complete_count,
        created_ms=TimestampMs(found.create_timestamp),
        written_ms=TimestampMs(found.write_timestamp),
        batches=batches_of(found.state_batches),
        sender=_sender(found),
    )


def _update(key: SharePartitionKey, found: _UpdateValue) -> Update:
    return Update(
        key=key,
        snapshot_epoch=found.snapshot_epoch,
        leader_epoch=found.leader_epoch,
        start_offset=Offset(found.start_offset),
        complete_count=found.delivery_complete_count,
        batches=batches_of(found.state_batches),
        sender=_sender(found),
    )


@lru_cache(maxsize=_KEYS_MAX)
def _key(kind: int, key: SharePartitionKey) -> bytes:
    named = _Key(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    return _VERSION.pack(kind) + encode(named, kind)


def _read(message_class: type[_T], value: bytes) -> _T:
    (version,) = _VERSION.unpack_from(value)
    if version != _VALUE:
        raise UnreadableRecord(f"values of version {version} are not known")
    return decode(message_class, version, value, _VERSION.size)


def _sender_fields(sender: Sender | None) -> dict[str, Any]:
    if sender is None:
        return {}
    return {f"sender_{name}": value for name, value in sender._asdict().items()}


def _sender(found: _SnapshotValue | _UpdateValue) -> Sender | None:
    if found.sender_producer_id < 0:
        return None
    return Sender(
        ProducerId(found.sender_producer_id),
        found.sender_sequence,
        found.sender_topic_id,
        found.sender_partition,
        found.sender_begun_ms,
    )
