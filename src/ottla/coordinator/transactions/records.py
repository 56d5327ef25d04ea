"""Records of transactional ids, in the format Kafka keeps in __transaction_state."""

from collections import defaultdict
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct, error
from typing import Final

from ottla.coordinator.runtime.log_entries import ProducerIdentity, UnreadableRecord
from ottla.errors import ProtocolViolation
from ottla.model import ProducerEpoch, ProducerId, TimestampMs, TopicPartition
from ottla.protocol.codec import decode, encode
from ottla.protocol.schema import array, int8, int16, int32, int64, message, string, struct, wire

_VERSION: Final = Struct(">h")
_KEY: Final = 0
_VALUE: Final = 1
_VALUE_MAX: Final = 1
_LAST_EPOCH_TAG: Final = 1000  # ours, far above what Kafka may come to use; Kafka skips it
_NO_PRODUCER: Final = ProducerId(-1)
_NO_EPOCH: Final = ProducerEpoch(-1)
_NEVER: Final = TimestampMs(-1)


class State(IntEnum):
    """States of a transaction, by Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6  # of an id that is being dropped, in Kafka; never written here
    PREPARE_EPOCH_FENCE = 7  # never written either: a fence is written as the abort it leads to

    @property
    def title(self) -> str:
        """The name that clients and tools show."""
        return self.name.title().replace("_", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The whole state of a transactional id. The log holds one after the other.

    `producer` may write, and `last` is the identity that it replaced at its own request: one that
    may repeat a request because it missed the response. `last` is None if there is no such
    identity, for instance after a new producer has fenced the one before.
    `next_id` is the producer id that follows when this one has no epochs left.
    """

    transactional_id: str
    producer: ProducerIdentity
    last: ProducerIdentity | None = None
    next_id: ProducerId | None = None
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: TimestampMs = _NEVER
    changed_ms: TimestampMs
    version: int = 0  # of the transaction protocol that the client uses (KIP-890)

    @property
    def is_prepared(self) -> bool:
        """True if the end is decided, and not every partition may have its marker yet."""
        return self.state in {State.PREPARE_COMMIT, State.PREPARE_ABORT}

    @property
    def is_commit(self) -> bool:
        return self.state in {State.PREPARE_COMMIT, State.COMPLETE_COMMIT}

    @property
    def deadline_ms(self) -> int | None:
        """The end of an open transaction's timeout."""
        return self.started_ms + self.timeout_ms if self.state is State.ONGOING else None


@dataclass(frozen=True, slots=True)
class TransactionDropped:
    """Tombstone of a transactional id."""

    transactional_id: str


TransactionRecord = Transaction | TransactionDropped


@message(versions="0", flexible="none")
class _Key:
    transactional_id: str = wire(string, "0")


@struct
class _Partitions:
    topic: str = wire(string, "0+")
    partition_ids: list[int] = wire(array(int32), "0+")


@message(versions="0-1", flexible="1+")
class _Value:
    producer_id: int = wire(int64, "0+")
    previous_producer_id: int = wire(int64, "1+", tag=0, default=-1)
    next_producer_id: int = wire(int64, "1+", tag=1, default=-1)
    producer_epoch: int = wire(int16, "0+")
    transaction_timeout_ms: int = wire(int32, "0+")
    transaction_status: int = wire(int8, "0+")
    transaction_partitions: list[_Partitions] | None = wire(array(_Partitions), "0+", nullable="0+")
    transaction_last_update_timestamp_ms: int = wire(int64, "0+")
    transaction_start_timestamp_ms: int = wire(int64, "0+")
    client_transaction_version: int = wire(int16, "1+", tag=2, default=0)
    last_producer_epoch: int = wire(int16, "1+", tag=_LAST_EPOCH_TAG, default=-1)


def to_bytes(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Key and value for the log; a tombstone has no value."""
    key = _VERSION.pack(_KEY) + encode(_Key(transactional_id=record.transactional_id), _KEY)
    if isinstance(record, TransactionDropped):
        return key, None
    return key, _VERSION.pack(_VALUE) + encode(_value(record), _VALUE)


def from_bytes(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """The inverse of `to_bytes`; None for a kind of record that a newer version wrote."""
    try:
        return _from_bytes(key, value)
    except (error, ProtocolViolation, ValueError) as problem:
        raise UnreadableRecord(f"not a record of a transaction: {problem}") from None


def _from_bytes(key: bytes, value: bytes | None) -> TransactionRecord | None:
    (kind,) = _VERSION.unpack_from(key)
    if kind != _KEY:
        return None
    transactional_id = decode(_Key, kind, key, _VERSION.size).transactional_id
    if value is None:
        return TransactionDropped(transactional_id)
    (version,) = _VERSION.unpack_from(value)
    if not 0 <= version <= _VALUE_MAX:
        raise UnreadableRecord(f"values of version {version} are not known")
    return _transaction(transactional_id, decode(_Value, version, value, _VERSION.size))


def _value(record: Transaction) -> _Value:
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(record.partitions):
        by_topic[topic].append(partition)
    last = record.last or ProducerIdentity(_NO_PRODUCER, _NO_EPOCH)
    return _Value(
        producer_id=record.producer.id,
        previous_producer_id=last.id,
        next_producer_id=-1 if record.next_id is None else record.next_id,
        producer_epoch=record.producer.epoch,
        transaction_timeout_ms=record.timeout_ms,
        transaction_status=record.state,
        transaction_partitions=[
            _Partitions(topic=topic, partition_ids=indexes) for topic, indexes in by_topic.items()
        ],
        transaction_last_update_timestamp_ms=record.changed_ms,
        transaction_start_timestamp_ms=record.started_ms,
        client_transaction_version=record.version,
        last_producer_epoch=last.epoch,
    )


def _transaction(transactional_id: str, found: _Value) -> Transaction:
    last = None
    if found.last_producer_epoch >= 0:
        last = ProducerIdentity(
            ProducerId(found.previous_producer_id), ProducerEpoch(found.last_producer_epoch)
        )
    return Transaction(
        transactional_id=transactional_id,
        producer=ProducerIdentity(
            ProducerId(found.producer_id), ProducerEpoch(found.producer_epoch)
        ),
        last=last,
        next_id=ProducerId(found.next_producer_id) if found.next_producer_id >= 0 else None,
        timeout_ms=found.transaction_timeout_ms,
        state=State(found.transaction_status),
        partitions=frozenset(
            TopicPartition(topic.topic, index)
            for topic in found.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        started_ms=TimestampMs(found.transaction_start_timestamp_ms),
        changed_ms=TimestampMs(found.transaction_last_update_timestamp_ms),
        version=found.client_transaction_version,
    )
