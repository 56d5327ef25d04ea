"""The file `log-states`: from where every log of a data directory goes on, without reading it.

A checkpoint writes one file for all logs, however many there are. It holds an entry for each log:
its leader epochs, and the state of its active segment and its producers at one offset. A state
that is too large for that lies in files beside the segment instead. Everything here can be read
off the log again, so an entry that is damaged only makes the start of its log longer.

Recovery trusts the epochs up to the recovery point, so this file is written before the file of the
recovery points.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from ottla.model import Offset, TimestampMs, TopicPartition, Uuid
from ottla.records.crc import crc32c
from ottla.storage.index import (
    IndexDamaged,
    OffsetIndex,
    TimeIndex,
    decode_aborted,
    encode_aborted,
)
from ottla.storage.producers import Producers, SnapshotDamaged
from ottla.storage.segment import Indexes

LOG_STATES_FILE: Final = "log-states"
# As much as the state of a log may take in here: 400 entries of its index, or fifty producers.
STATE_BYTES_MAX: Final = 8 << 10

_MAGIC: Final = b"ottla log states 1\n"
_COUNT: Final = struct.Struct(">II")  # entries, CRC-32C of magic and count
_FRAME: Final = struct.Struct(">II")  # bytes of an entry, their CRC-32C
_ENTRY: Final = struct.Struct(">16siHHI")  # topic id, partition, bytes of topic, epochs, state
_STATE: Final = struct.Struct(">qqqqqiqIIII")
_INDEX_ENTRY_BYTES: Final = 8 + 12  # by offset and by time
_ABORTED_BYTES: Final = 34
_PRODUCER_BYTES: Final = 46 + 1 + 4 * 24  # with four older batches
_EPOCHS_BYTES_MAX: Final = (1 << 16) - 1


class StateDamaged(Exception):
    """A state is not what was written."""


class LogState(NamedTuple):
    """The state of a log at `end_offset`, which can also be read off its active segment."""

    segment_base: Offset
    size_bytes: int  # of the segment up to `end_offset`
    end_offset: Offset
    opened_ms: TimestampMs
    indexes: Indexes
    producers: Producers

    def encode(self) -> bytes:
        indexes = self.indexes
        parts = (
            indexes.by_offset.encode(),
            indexes.by_time.encode(),
            encode_aborted(indexes.aborted),
            self.producers.encode(),
        )
        head = _STATE.pack(
            self.segment_base,
            self.size_bytes,
            self.end_offset,
            self.opened_ms,
            indexes.max_timestamp_ms,
            indexes.max_timestamp_at,
            indexes.rest,
            *map(len, parts),
        )
        return b"".join((head, *parts))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The inverse of `encode`, or `StateDamaged`."""
        try:
            return cls._decode(data)
        except (struct.error, IndexDamaged, SnapshotDamaged) as problem:
            raise StateDamaged(f"the state of a log cannot be read: {problem}") from None

    @classmethod
    def _decode(cls, data: bytes) -> Self:
        base, size_bytes, end_offset, opened_ms, newest_ms, newest_at, rest, *lengths = (
            _STATE.unpack_from(data)
        )
        parts, at = [], _STATE.size
        for length in lengths:
            parts.append(data[at : at + length])
            at += length
        indexes = Indexes()
        indexes.by_offset = OffsetIndex.decode(parts[0], size_bytes)
        indexes.by_time = TimeIndex.decode(parts[1], end_offset - base)
        indexes.aborted = decode_aborted(parts[2], base)
        indexes.max_timestamp_ms, indexes.max_timestamp_at = newest_ms, newest_at
        indexes.rest = rest
        producers, _ = Producers.decode(parts[3])
        return cls(base, size_bytes, end_offset, opened_ms, indexes, producers)


def fits(indexes: Indexes, producers: Producers) -> bool:
    """True when the state of a log is small enough for the file of all logs."""
    size_bytes = (
        len(indexes.by_offset) * _INDEX_ENTRY_BYTES
        + len(indexes.aborted) * _ABORTED_BYTES
        + len(producers) * _PRODUCER_BYTES
    )
    return size_bytes <= STATE_BYTES_MAX


class NotedState(NamedTuple):
    """The entry of one log."""

    topic_id: Uuid
    epochs: bytes  # as `Epochs.encode` has them
    state: bytes  # as `LogState.encode` has it; empty if it lies beside the segment, or nowhere


NotedStates = Mapping[TopicPartition, NotedState]


@dataclass(frozen=True, slots=True)
class FoundStates:
    """The entries of the file, and the problem with it, if there is one."""

    entries: NotedStates
    problem: str | None = None

    def of(self, tp: TopicPartition, topic_id: Uuid) -> NotedState | None:
        """The entry of the log of this topic id."""
        found = self.entries.get(tp)
        return found if found is not None and found.topic_id == topic_id else None


def encode_states(noted: NotedStates) -> bytes:
    """The content of the file. On any thread."""
    head = _MAGIC + struct.pack(">I", len(noted))
    parts = [head, struct.pack(">I", crc32c(head))]
    for tp, entry in noted.items():
        body = _encode_entry(tp, entry)
        parts += (_FRAME.pack(len(body), crc32c(body)), body)
    return b"".join(parts)


def decode_states(data: bytes) -> FoundStates:
    """Every entry that can be believed."""
    start = len(_MAGIC) + _COUNT.size
    head = data[: start - 4]
    if not data.startswith(_MAGIC) or data[start - 4 : start] != struct.pack(">I", crc32c(head)):
        return FoundStates({}, "its first bytes are damaged")
    (count,) = struct.unpack_from(">I", data, len(_MAGIC))
    entries = dict(_entries(data, start))
    problem = None
    if len(entries) != count:
        problem = f"{count - len(entries)} of {count} entries are damaged"
    return FoundStates(entries, problem)


def _encode_entry(tp: TopicPartition, entry: NotedState) -> bytes:
    topic = tp.topic.encode()
    # Epochs that do not fit are read off the log again.
    epochs = entry.epochs if len(entry.epochs) <= _EPOCHS_BYTES_MAX else b""
    lengths = len(topic), len(epochs), len(entry.state)
    return _ENTRY.pack(entry.topic_id, tp.partition, *lengths) + topic + epochs + entry.state


def _entries(data: bytes, start: int) -> Iterable[tuple[TopicPartition, NotedState]]:
    at = start
    while len(data) - at >= _FRAME.size:
        size_bytes, crc = _FRAME.unpack_from(data, at)
        body = data[at + _FRAME.size : at + _FRAME.size + size_bytes]
        if len(body) == size_bytes and crc32c(body) == crc and size_bytes >= _ENTRY.size:
            yield _decode_entry(body)
        at += _FRAME.size + size_bytes


def _decode_entry(body: bytes) -> tuple[TopicPartition, NotedState]:
    topic_id, partition, topic_bytes, epochs_bytes, state_bytes = _ENTRY.unpack_from(body)
    epochs_at = _ENTRY.size + topic_bytes
    state_at = epochs_at + epochs_bytes
    tp = TopicPartition(body[_ENTRY.size : epochs_at].decode(), partition)
    state = body[state_at : state_at + state_bytes]
    return tp, NotedState(Uuid(topic_id), body[epochs_at:state_at], state)
