"""Produce encoded and decoded by hand, without copying record batches.

Batches of a request stay memoryviews of the connection's buffer. A request with one batch has a
short path that caches the bytes a producer repeats (docs/adr/0009). The property tests in
`tests/property/test_hot_produce.py` hold these functions to the generic codec's bytes.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from struct import Struct, error
from typing import Final, NamedTuple

from ottla.errors import ProtocolViolation, RecordError
from ottla.protocol.hot_fields import (
    INT32,
    TAGS_MAX,
    UUID_BYTES,
    LeaderHint,
    TopicKey,
    check_element_count,
    read_compact_count,
    read_compact_string,
    read_compact_topic,
    read_count,
    read_slice,
    read_string,
    skip_tags,
    write_compact_string,
    write_compact_topic,
    write_leader_endpoints,
    write_leader_tag,
    write_string,
)
from ottla.protocol.primitives import (
    read_tagged_fields,
    read_unsigned_varint,
    write_unsigned_varint,
)

PRODUCE_FLEXIBLE: Final = 9
PRODUCE_TOPIC_IDS: Final = 13
_LEADER_HINTS_MIN: Final = 10

_ACKS_TIMEOUT: Final = Struct(">hi")
_INDEX_SIZE: Final = Struct(">ii")
_BATCHES_MAX: Final = 20_000  # topics and batches of a request; clients send a megabyte of them


class Forwarder(NamedTuple):
    """The broker that forwards batches for a sealed partition, and what it knows.

    Its token proves who it is, `topic_revision` that both brokers agree which partitions are
    sealed. Its requests are numbered, so that one which arrives late is recognised.
    """

    token: bytes
    topic_revision: int
    sequence: int
    is_continued: bool  # the batch is its producer's next one, whatever the partition's log says


class ProduceRequest(NamedTuple):
    """A decoded Produce request; `topics` holds (key, [(partition, batch or None)])."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]]
    forwarder: Forwarder | None = None


class ProducedPartition(NamedTuple):
    """The result for one partition's batch, as the response carries it."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None
    record_errors: Sequence[RecordError] = ()
    leader: LeaderHint | None = None


def read_produce(view: memoryview, position: int, version: int) -> ProduceRequest:
    """The request whose body starts at `position`; every failure is a ProtocolViolation."""
    try:
        if version >= PRODUCE_FLEXIBLE:
            return _read_produce_flexible(view, position, version >= PRODUCE_TOPIC_IDS)
        return _read_produce_classic(view, position)
    except (error, IndexError, UnicodeDecodeError) as problem:
        raise ProtocolViolation(f"not a Produce v{version} request: {problem}") from None


class ProduceTarget:
    """The bytes of a single-batch request in front of its batch, decoded: partition, acks, timeout.

    A producer repeats these bytes with every batch, so they are decoded once and cached together
    with the constant parts of the response.
    """

    __slots__ = (
        "_after",
        "_before",
        "_pack",
        "_size",
        "acks",
        "key",
        "partition",
        "timeout_ms",
    )

    def __init__(
        self, version: int, acks: int, timeout_ms: int, key: TopicKey, partition: int
    ) -> None:
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.key = key
        self.partition = partition
        response = write_produced(0, version, [(key, [ProducedPartition(partition)])])
        # The three numbers that differ, base offset, append time and log start, are -1 in a row.
        at = response.rindex(_NUMBERS.pack(-1, -1, -1))
        self._size = len(response) - 4
        self._before = response[8:at]
        self._after = response[at + _NUMBERS.size :]
        self._pack = _response_layout(len(self._before), len(self._after)).pack

    def response(
        self, correlation_id: int, base_offset: int, append_time_ms: int, log_start_offset: int
    ) -> bytes:
        """The frame that `write_produced` would make for a batch that has been appended."""
        return self._pack(
            self._size,
            correlation_id,
            self._before,
            base_offset,
            append_time_ms,
            log_start_offset,
            self._after,
        )


@cache
def _response_layout(before_bytes: int, after_bytes: int) -> Struct:
    """Size, correlation id, constant bytes, the three numbers of a batch, constant bytes."""
    return Struct(f">ii{before_bytes}sqqq{after_bytes}s")


_NUMBERS: Final = Struct(">qqq")
_TARGETS_MAX: Final = 4096  # producers times partitions; those beyond are read more slowly
_SINGLE_BATCH_MIN: Final = 7  # the first version that may carry every codec
_ONE_CLASSIC: Final = Struct(">hhiih")  # no transaction, acks, timeout, topics, name length
_ONE_FLEXIBLE: Final = Struct(">BhiB")  # no transaction, acks, timeout, topics
_ONE_PARTITION: Final = Struct(">Bi")  # partitions, index
_CLASSIC_BYTES: Final = _ONE_CLASSIC.size + _INDEX_SIZE.size  # and the name
_FLEXIBLE_BYTES: Final = _ONE_FLEXIBLE.size + _ONE_PARTITION.size  # and the name or id
_CLASSIC_NAME_AT: Final = _ONE_CLASSIC.size - 1  # where the low byte of the name's length is
_FLEXIBLE_NAME_AT: Final = _ONE_FLEXIBLE.size


def read_single_batch(
    view: memoryview, position: int, version: int
) -> tuple[ProduceTarget, memoryview] | None:
    """The batch of a request that has exactly one, and its target: the common case.

    None for any other request, also a transactional or malformed one: use `read_produce`.
    """
    try:
        if version >= PRODUCE_FLEXIBLE:
            size_at = position + _FLEXIBLE_BYTES
            if version >= PRODUCE_TOPIC_IDS:
                size_at += UUID_BYTES
            else:
                size_at += view[position + _FLEXIBLE_NAME_AT]
            size, high = view[size_at], view[size_at + 1]
            start = size_at + 1
            if size >= 0x80:  # two bytes reach up to 16 KB
                size += (high - 1) << 7
                start += 1
                if high >= 0x80:
                    size, start = read_unsigned_varint(view, size_at)
            end = start + size - 1
            # Behind the batch, three empty sections for tagged fields: partition, topic, request.
            if not size or view[end] or view[end + 1] or view[end + 2]:
                return None
        else:
            size_at = position + _CLASSIC_BYTES + view[position + _CLASSIC_NAME_AT]
            (size,) = INT32.unpack_from(view, size_at)
            start = size_at + 4
            end = start + size
            if size < 0 or end > len(view):
                return None
    except (error, IndexError, ProtocolViolation):
        return None
    target = _parse_target(view[position:size_at].tobytes(), version)
    return None if target is None else (target, view[start:end])


@lru_cache(_TARGETS_MAX)
def _parse_target(head: bytes, version: int) -> ProduceTarget | None:
    """The target that `head`, the bytes before the batch's size, names; None unless exactly one."""
    try:
        if version >= PRODUCE_FLEXIBLE:
            return _flexible_target(head, version)
        if version >= _SINGLE_BATCH_MIN:
            return _classic_target(head, version)
    except UnicodeDecodeError:
        pass
    return None


def _classic_target(head: bytes, version: int) -> ProduceTarget | None:
    transactional, acks, timeout_ms, topic_count, name_size = _ONE_CLASSIC.unpack_from(head)
    name = head[_ONE_CLASSIC.size : -_INDEX_SIZE.size]
    partition_count, index = _INDEX_SIZE.unpack_from(head, len(head) - _INDEX_SIZE.size)
    if (transactional, topic_count, name_size, partition_count) != (-1, 1, len(name), 1):
        return None
    return ProduceTarget(version, acks, timeout_ms, name.decode(), index)


def _flexible_target(head: bytes, version: int) -> ProduceTarget | None:
    """Like `_classic_target` in compact form: counts are stored plus one, so one is 2."""
    transactional, acks, timeout_ms, topic_count = _ONE_FLEXIBLE.unpack_from(head)
    partition_count, index = _ONE_PARTITION.unpack_from(head, len(head) - _ONE_PARTITION.size)
    if (transactional, topic_count, partition_count) != (0, 2, 2):
        return None
    key = head[_ONE_FLEXIBLE.size : -_ONE_PARTITION.size]
    if version >= PRODUCE_TOPIC_IDS:
        return ProduceTarget(version, acks, timeout_ms, key, index)
    if len(key) >= 0x80:
        return None  # the name's length takes two bytes; a null name has failed above
    return ProduceTarget(version, acks, timeout_ms, key[1:].decode(), index)


def _read_produce_classic(view: memoryview, position: int) -> ProduceRequest:
    transactional_id, position = read_string(view, position)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, position)
    topic_count, position = read_count(view, position + 6, 6)
    sum_count = topic_count
    check_element_count(sum_count, _BATCHES_MAX)
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count):
        name, position = read_string(view, position)
        if name is None:
            raise ProtocolViolation("a topic name is null")
        partition_count, position = read_count(view, position, 8)
        sum_count += partition_count
        check_element_count(sum_count, _BATCHES_MAX)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            index, size = _INDEX_SIZE.unpack_from(view, position)
            position += 8
            batch, position = read_slice(view, position, size)
            partitions.append((index, batch))
        topics.append((name, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_produce_flexible(view: memoryview, position: int, by_id: bool) -> ProduceRequest:
    transactional_id, position = read_compact_string(view, position)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, position)
    topic_count, position = read_compact_count(view, position + 6, 3)
    sum_count = topic_count
    check_element_count(sum_count, _BATCHES_MAX)
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count):
        key, position = read_compact_topic(view, position, by_id)
        partition_count, position = read_compact_count(view, position, 6)
        sum_count += partition_count
        check_element_count(sum_count, _BATCHES_MAX)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            (index,) = INT32.unpack_from(view, position)
            size, position = read_unsigned_varint(view, position + 4)
            batch, position = read_slice(view, position, size - 1)
            position = skip_tags(view, position)
            partitions.append((index, batch))
        position = skip_tags(view, position)
        topics.append((key, partitions))
    forwarder = _read_forwarder(view, position) if by_id and view[position] else None
    skip_tags(view, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, forwarder)


def _read_forwarder(view: memoryview, position: int) -> Forwarder | None:
    token, revision, sequence, is_continued = b"", 0, 0, False
    for tag, start, stop in read_tagged_fields(view, position, len(view), count_max=TAGS_MAX)[0]:
        if tag == _TOKEN_TAG:
            token = bytes(view[start:stop])
        elif tag == _REVISION_TAG:
            (revision,) = _INT64.unpack_from(view, start)
        elif tag == _SEQUENCE_TAG:
            (sequence,) = _INT64.unpack_from(view, start)
        elif tag == _CONTINUED_TAG:
            is_continued = bool(view[start])
    return Forwarder(token, revision, sequence, is_continued) if token else None


_TOKEN_TAG: Final = 10_000
_REVISION_TAG: Final = 10_001
_SEQUENCE_TAG: Final = 10_002
_CONTINUED_TAG: Final = 10_003
_INT64: Final = Struct(">q")
_PRODUCED_V3: Final = Struct(">ihqq")
_PRODUCED_V5: Final = Struct(">ihqqq")
_PRODUCED_V8_FINE: Final = Struct(">ihqqqih")  # no record errors, null message
_PRODUCED_V9_FINE: Final = Struct(">ihqqqBBB")  # the same in compact form, and no tags


def write_produced(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProducedPartition]]],
) -> bytes:
    """A whole Produce response as a frame."""
    out = bytearray(8)
    INT32.pack_into(out, 4, correlation_id)
    if version >= PRODUCE_FLEXIBLE:
        out.append(0)
        _write_produced_flexible(out, version, topics)
    else:
        _write_produced_classic(out, version, topics)
    INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def _write_produced_classic(
    out: bytearray, version: int, topics: Sequence[tuple[TopicKey, Sequence[ProducedPartition]]]
) -> None:
    out += INT32.pack(len(topics))
    for key, partitions in topics:
        write_string(out, key)
        out += INT32.pack(len(partitions))
        for result in partitions:
            index, code, base_offset, time_ms, log_start, message, record_errors, _ = result
            if version < 5:
                out += _PRODUCED_V3.pack(index, code, base_offset, time_ms)
            elif version < 8:
                out += _PRODUCED_V5.pack(index, code, base_offset, time_ms, log_start)
            elif message is None:
                out += _PRODUCED_V8_FINE.pack(index, code, base_offset, time_ms, log_start, 0, -1)
            else:
                out += _PRODUCED_V5.pack(index, code, base_offset, time_ms, log_start)
                out += INT32.pack(len(record_errors))
                for at, text in record_errors:
                    out += INT32.pack(at)
                    write_string(out, text)
                write_string(out, message)
    out += INT32.pack(0)  # throttle time


def _write_produced_flexible(
    out: bytearray, version: int, topics: Sequence[tuple[TopicKey, Sequence[ProducedPartition]]]
) -> None:
    hints: list[LeaderHint] = []
    write_unsigned_varint(out, len(topics) + 1)
    for key, partitions in topics:
        write_compact_topic(out, key)
        write_unsigned_varint(out, len(partitions) + 1)
        for result in partitions:
            index, code, base_offset, time_ms, log_start, message, record_errors, leader = result
            if message is None and leader is None:
                out += _PRODUCED_V9_FINE.pack(index, code, base_offset, time_ms, log_start, 1, 0, 0)
            else:
                out += _PRODUCED_V5.pack(index, code, base_offset, time_ms, log_start)
                write_unsigned_varint(out, len(record_errors) + 1)
                for at, text in record_errors:
                    out += INT32.pack(at)
                    write_compact_string(out, text)
                    out.append(0)
                write_compact_string(out, message)
                if leader is not None and version >= _LEADER_HINTS_MIN:
                    hints.append(leader)
                    out.append(1)  # one tag
                    write_leader_tag(out, 0, leader)
                else:
                    out.append(0)
        out.append(0)
    out += b"\0\0\0\0"  # throttle time
    write_leader_endpoints(out, hints)
