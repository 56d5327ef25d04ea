"""Produce and Fetch by hand: the two messages whose speed decides the broker's.

Requests are read from the connection's buffer without copying: record batches stay memoryviews.
A Fetch answer is a list of parts, small byte strings between file ranges that are sent from the
page cache. `tests/property/test_hot.py` holds these functions to the generic codec's bytes.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from struct import Struct, error
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from ottla.errors import ProtocolViolation
from ottla.protocol.primitives import (
    read_tagged_fields,
    read_unsigned_varint,
    write_unsigned_varint,
)

PRODUCE_FLEXIBLE: Final = 9
PRODUCE_TOPIC_IDS: Final = 13
FETCH_FLEXIBLE: Final = 12
FETCH_TOPIC_IDS: Final = 13

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_ACKS_TIMEOUT: Final = Struct(">hi")
_INDEX_SIZE: Final = Struct(">ii")
_UUID_BYTES: Final = 16
_TAGS_MAX: Final = 8  # in a struct that repeats; Kafka 4.3 defines at most two there
_BATCHES_MAX: Final = 20_000  # topics and batches of a Produce; clients send a megabyte of them
_ELEMENTS_MAX: Final = 200_000  # topics and partitions of a Fetch, unless told otherwise

TopicKey = str | bytes  # a name, or from the id versions on an id of 16 bytes


class ProduceRequest(NamedTuple):
    """What a producer sent; `topics` holds (key, [(partition, batch or None)])."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]]


class ProducedPartition(NamedTuple):
    """What became of one partition's batch."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None


class FetchPartition(NamedTuple):
    """What a reader wants of one partition."""

    partition: int
    offset: int
    bytes_max: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


class FetchRequest(NamedTuple):
    """What a reader asks for; `forgotten` holds (key, [partition])."""

    replica_id: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, list[FetchPartition]]]
    forgotten: list[tuple[TopicKey, list[int]]]


class Sendable(Protocol):
    """Bytes that can be sent without being read: a range of a segment file."""

    @property
    def size_bytes(self) -> int: ...


R = TypeVar("R", bound=Sendable)


class FetchedPartition(NamedTuple, Generic[R]):
    """What one partition has for a reader."""

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None  # (producer id, first offset)
    diverging: tuple[int, int] | None = None  # (epoch, end offset), for followers
    records: R | None = None


def read_produce(view: memoryview, position: int, version: int) -> ProduceRequest:
    """The request whose body starts at `position`; every failure is a ProtocolViolation."""
    try:
        if version >= PRODUCE_FLEXIBLE:
            return _read_produce_flexible(view, position, version >= PRODUCE_TOPIC_IDS)
        return _read_produce_classic(view, position)
    except (error, IndexError, UnicodeDecodeError) as problem:
        raise ProtocolViolation(f"not a Produce v{version} request: {problem}") from None


class Address:
    """All of a request for one partition that stands before its batch: where that shall go.

    A producer repeats it word for word with every batch. So it is understood once, and so is
    most of the answer.
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
        answer = write_produced(0, version, [(key, [ProducedPartition(partition)])])
        # It says -1 three times in a row: base offset, append time and start of the log.
        at = answer.rindex(_NUMBERS.pack(-1, -1, -1))
        self._size = len(answer) - 4
        self._before = answer[8:at]
        self._after = answer[at + _NUMBERS.size :]
        self._pack = _answer_layout(len(self._before), len(self._after)).pack

    def answer(
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
def _answer_layout(before_bytes: int, after_bytes: int) -> Struct:
    """Size, correlation id, and what no batch changes around the three numbers that each does."""
    return Struct(f">ii{before_bytes}sqqq{after_bytes}s")


_NUMBERS: Final = Struct(">qqq")
_ADDRESSES_MAX: Final = 4096  # producers times partitions; those beyond are read more slowly
_ADDRESSED_MIN: Final = 7  # the first version that may carry every codec
_ONE_CLASSIC: Final = Struct(">hhiih")  # no transaction, acks, timeout, topics, name length
_ONE_FLEXIBLE: Final = Struct(">BhiB")  # no transaction, acks, timeout, topics
_ONE_PARTITION: Final = Struct(">Bi")  # partitions, index
_CLASSIC_BYTES: Final = _ONE_CLASSIC.size + _INDEX_SIZE.size  # and the name
_FLEXIBLE_BYTES: Final = _ONE_FLEXIBLE.size + _ONE_PARTITION.size  # and the name or id
_CLASSIC_NAME_AT: Final = _ONE_CLASSIC.size - 1  # where the low byte of the name's length is
_FLEXIBLE_NAME_AT: Final = _ONE_FLEXIBLE.size


def read_addressed(
    view: memoryview, position: int, version: int
) -> tuple[Address, memoryview] | None:
    """The only batch of a request and where it shall go: what most clients send.

    None for everything else, be it more, less, transactional or wrong: `read_produce` tells.
    """
    try:
        if version >= PRODUCE_FLEXIBLE:
            size_at = position + _FLEXIBLE_BYTES
            if version >= PRODUCE_TOPIC_IDS:
                size_at += _UUID_BYTES
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
            (size,) = _INT32.unpack_from(view, size_at)
            start = size_at + 4
            end = start + size
            if size < 0 or end > len(view):
                return None
    except (error, IndexError, ProtocolViolation):
        return None
    address = _address(view[position:size_at].tobytes(), version)
    return None if address is None else (address, view[start:end])


@lru_cache(_ADDRESSES_MAX)
def _address(head: bytes, version: int) -> Address | None:
    """What stands before the batch's size, if that is an address of one partition."""
    try:
        if version >= PRODUCE_FLEXIBLE:
            return _flexible_address(head, version)
        if version >= _ADDRESSED_MIN:
            return _classic_address(head, version)
    except UnicodeDecodeError:
        pass
    return None


def _classic_address(head: bytes, version: int) -> Address | None:
    transactional, acks, timeout_ms, topic_count, name_size = _ONE_CLASSIC.unpack_from(head)
    name = head[_ONE_CLASSIC.size : -_INDEX_SIZE.size]
    partition_count, index = _INDEX_SIZE.unpack_from(head, len(head) - _INDEX_SIZE.size)
    if (transactional, topic_count, name_size, partition_count) != (-1, 1, len(name), 1):
        return None
    return Address(version, acks, timeout_ms, name.decode(), index)


def _flexible_address(head: bytes, version: int) -> Address | None:
    """The same in compact form: counts are stored one larger, so that one is 2."""
    transactional, acks, timeout_ms, topic_count = _ONE_FLEXIBLE.unpack_from(head)
    partition_count, index = _ONE_PARTITION.unpack_from(head, len(head) - _ONE_PARTITION.size)
    if (transactional, topic_count, partition_count) != (0, 2, 2):
        return None
    key = head[_ONE_FLEXIBLE.size : -_ONE_PARTITION.size]
    if version >= PRODUCE_TOPIC_IDS:
        return Address(version, acks, timeout_ms, key, index)
    if not 0 < len(key) < 0x80:
        return None  # a null name, or one whose length takes two bytes
    return Address(version, acks, timeout_ms, key[1:].decode(), index)


def _read_produce_classic(view: memoryview, position: int) -> ProduceRequest:
    transactional_id, position = _string(view, position)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, position)
    topic_count, position = _count(view, position + 6, 6)
    sum_count = topic_count
    _check_sum(sum_count, _BATCHES_MAX)
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count):
        name, position = _string(view, position)
        if name is None:
            raise ProtocolViolation("a topic name is null")
        partition_count, position = _count(view, position, 8)
        sum_count += partition_count
        _check_sum(sum_count, _BATCHES_MAX)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            index, size = _INDEX_SIZE.unpack_from(view, position)
            position += 8
            batch, position = _slice(view, position, size)
            partitions.append((index, batch))
        topics.append((name, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_produce_flexible(view: memoryview, position: int, by_id: bool) -> ProduceRequest:
    transactional_id, position = _compact_string(view, position)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, position)
    topic_count, position = _compact_count(view, position + 6, 3)
    sum_count = topic_count
    _check_sum(sum_count, _BATCHES_MAX)
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count):
        key, position = _compact_topic(view, position, by_id)
        partition_count, position = _compact_count(view, position, 6)
        sum_count += partition_count
        _check_sum(sum_count, _BATCHES_MAX)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            (index,) = _INT32.unpack_from(view, position)
            size, position = read_unsigned_varint(view, position + 4)
            batch, position = _slice(view, position, size - 1)
            position = _skip_tags(view, position)
            partitions.append((index, batch))
        position = _skip_tags(view, position)
        topics.append((key, partitions))
    _skip_tags(view, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


_PRODUCED_V3: Final = Struct(">ihqq")
_PRODUCED_V5: Final = Struct(">ihqqq")
_PRODUCED_V8_FINE: Final = Struct(">ihqqqih")  # no record errors, null message
_PRODUCED_V9_FINE: Final = Struct(">ihqqqBBB")  # the same in compact form, and no tags


def write_produced(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProducedPartition]]],
) -> bytes:
    """A whole Produce answer as a frame."""
    out = bytearray(8)
    _INT32.pack_into(out, 4, correlation_id)
    if version >= PRODUCE_FLEXIBLE:
        out.append(0)
        _write_produced_flexible(out, version, topics)
    else:
        _write_produced_classic(out, version, topics)
    _INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def _write_produced_classic(
    out: bytearray, version: int, topics: Sequence[tuple[TopicKey, Sequence[ProducedPartition]]]
) -> None:
    out += _INT32.pack(len(topics))
    for key, partitions in topics:
        _write_string(out, key)
        out += _INT32.pack(len(partitions))
        for index, code, base_offset, time_ms, log_start, message in partitions:
            if version < 5:
                out += _PRODUCED_V3.pack(index, code, base_offset, time_ms)
            elif version < 8:
                out += _PRODUCED_V5.pack(index, code, base_offset, time_ms, log_start)
            elif message is None:
                out += _PRODUCED_V8_FINE.pack(index, code, base_offset, time_ms, log_start, 0, -1)
            else:
                out += _PRODUCED_V5.pack(index, code, base_offset, time_ms, log_start)
                out += _INT32.pack(0)
                _write_string(out, message)
    out += _INT32.pack(0)  # throttle time


def _write_produced_flexible(
    out: bytearray, version: int, topics: Sequence[tuple[TopicKey, Sequence[ProducedPartition]]]
) -> None:
    write_unsigned_varint(out, len(topics) + 1)
    for key, partitions in topics:
        _write_compact_topic(out, key)
        write_unsigned_varint(out, len(partitions) + 1)
        for index, code, base_offset, time_ms, log_start, message in partitions:
            if message is None:
                out += _PRODUCED_V9_FINE.pack(index, code, base_offset, time_ms, log_start, 1, 0, 0)
            else:
                out += _PRODUCED_V5.pack(index, code, base_offset, time_ms, log_start)
                out.append(1)
                _write_compact_text(out, message)
                out.append(0)
        out.append(0)
    out += b"\0\0\0\0\0"  # throttle time, no tags


def read_fetch(
    view: memoryview, position: int, version: int, elements_max: int = _ELEMENTS_MAX
) -> FetchRequest:
    """The request whose body starts at `position`; every failure is a ProtocolViolation."""
    try:
        if version >= FETCH_FLEXIBLE:
            return _read_fetch_flexible(view, position, version, elements_max)
        return _read_fetch_classic(view, position, version, elements_max)
    except (error, IndexError, UnicodeDecodeError) as problem:
        raise ProtocolViolation(f"not a Fetch v{version} request: {problem}") from None


_FETCH_HEAD_V4: Final = Struct(">iiiib")
_FETCH_HEAD_V7: Final = Struct(">iiiibii")
_FETCH_HEAD_V15: Final = Struct(">iiibii")  # the replica id has become a tagged field
_FETCH_PARTITION_V4: Final = Struct(">iqi")
_FETCH_PARTITION_V5: Final = Struct(">iqqi")
_FETCH_PARTITION_V9: Final = Struct(">iiqqi")
_FETCH_PARTITION_V12: Final = Struct(">iiqiqi")


def _read_fetch_classic(
    view: memoryview, position: int, version: int, elements_max: int
) -> FetchRequest:
    session_id, session_epoch = 0, -1
    if version >= 7:
        replica_id, wait, low, high, isolation, session_id, session_epoch = (
            _FETCH_HEAD_V7.unpack_from(view, position)
        )
        position += _FETCH_HEAD_V7.size
    else:
        replica_id, wait, low, high, isolation = _FETCH_HEAD_V4.unpack_from(view, position)
        position += _FETCH_HEAD_V4.size
    topic_count, position = _count(view, position, 6)
    sum_count = topic_count
    _check_sum(sum_count, elements_max)
    topics: list[tuple[TopicKey, list[FetchPartition]]] = []
    for _ in range(topic_count):
        name, position = _string(view, position)
        if name is None:
            raise ProtocolViolation("a topic name is null")
        partition_count, position = _count(view, position, 16)
        sum_count += partition_count
        _check_sum(sum_count, elements_max)
        partitions = []
        for _ in range(partition_count):
            partition, position = _fetch_partition_classic(view, position, version)
            partitions.append(partition)
        topics.append((name, partitions))
    forgotten: list[tuple[TopicKey, list[int]]] = []
    if version >= 7:
        forgotten_count, position = _count(view, position, 6)
        sum_count += forgotten_count
        _check_sum(sum_count, elements_max)
        for _ in range(forgotten_count):
            name, position = _string(view, position)
            if name is None:
                raise ProtocolViolation("a topic name is null")
            index_count, position = _count(view, position, 4)
            sum_count += index_count
            _check_sum(sum_count, elements_max)
            indexes = list(Struct(f">{index_count}i").unpack_from(view, position))
            position += 4 * index_count
            forgotten.append((name, indexes))
    if version >= 11:
        _string(view, position)  # rack
    return FetchRequest(
        replica_id, wait, low, high, isolation, session_id, session_epoch, topics, forgotten
    )


def _fetch_partition_classic(
    view: memoryview, position: int, version: int
) -> tuple[FetchPartition, int]:
    if version >= 9:
        index, epoch, offset, log_start, size = _FETCH_PARTITION_V9.unpack_from(view, position)
        position += _FETCH_PARTITION_V9.size
        return FetchPartition(index, offset, size, epoch, -1, log_start), position
    if version >= 5:
        index, offset, log_start, size = _FETCH_PARTITION_V5.unpack_from(view, position)
        position += _FETCH_PARTITION_V5.size
        return FetchPartition(index, offset, size, -1, -1, log_start), position
    index, offset, size = _FETCH_PARTITION_V4.unpack_from(view, position)
    return FetchPartition(index, offset, size), position + _FETCH_PARTITION_V4.size


def _read_fetch_flexible(
    view: memoryview, position: int, version: int, elements_max: int
) -> FetchRequest:
    by_id = version >= FETCH_TOPIC_IDS
    replica_id = -1
    if version >= 15:
        wait, low, high, isolation, session_id, session_epoch = _FETCH_HEAD_V15.unpack_from(
            view, position
        )
        position += _FETCH_HEAD_V15.size
    else:
        replica_id, wait, low, high, isolation, session_id, session_epoch = (
            _FETCH_HEAD_V7.unpack_from(view, position)
        )
        position += _FETCH_HEAD_V7.size
    topic_count, position = _compact_count(view, position, 3)
    sum_count = topic_count
    _check_sum(sum_count, elements_max)
    topics: list[tuple[TopicKey, list[FetchPartition]]] = []
    for _ in range(topic_count):
        key, position = _compact_topic(view, position, by_id)
        partition_count, position = _compact_count(view, position, _FETCH_PARTITION_V12.size)
        sum_count += partition_count
        _check_sum(sum_count, elements_max)
        partitions = []
        for _ in range(partition_count):
            index, epoch, offset, last_epoch, log_start, size = _FETCH_PARTITION_V12.unpack_from(
                view, position
            )
            position = _skip_tags(view, position + _FETCH_PARTITION_V12.size)
            partitions.append(FetchPartition(index, offset, size, epoch, last_epoch, log_start))
        position = _skip_tags(view, position)
        topics.append((key, partitions))
    forgotten, position = _forgotten_flexible(view, position, by_id, elements_max - sum_count)
    _, position = _compact_string(view, position)  # rack
    if version >= 15:
        replica_id = _replica_id_from_tags(view, position)
    else:
        _skip_tags(view, position)
    return FetchRequest(
        replica_id, wait, low, high, isolation, session_id, session_epoch, topics, forgotten
    )


def _forgotten_flexible(
    view: memoryview, position: int, by_id: bool, elements_max: int
) -> tuple[list[tuple[TopicKey, list[int]]], int]:
    count, position = _compact_count(view, position, 3)
    sum_count = count
    _check_sum(sum_count, elements_max)
    forgotten: list[tuple[TopicKey, list[int]]] = []
    for _ in range(count):
        key, position = _compact_topic(view, position, by_id)
        index_count, position = _compact_count(view, position, 4)
        sum_count += index_count
        _check_sum(sum_count, elements_max)
        indexes = list(Struct(f">{index_count}i").unpack_from(view, position))
        position = _skip_tags(view, position + 4 * index_count)
        forgotten.append((key, indexes))
    return forgotten, position


def _replica_id_from_tags(view: memoryview, position: int) -> int:
    """From version 15 on a follower names itself in a tagged struct (tag 1)."""
    for tag, start, _ in read_tagged_fields(view, position, len(view))[0]:
        if tag == 1:
            return int(_INT32.unpack_from(view, start)[0])
    return -1


_FETCHED_V4: Final = Struct(">ihqq")
_FETCHED_V5: Final = Struct(">ihqqq")
_ABORTED: Final = Struct(">qq")


def write_fetched(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[TopicKey, Sequence[FetchedPartition[R]]]],
    *,
    error_code: int = 0,
    session_id: int = 0,
) -> list[bytes | R]:
    """A whole Fetch answer as a frame in parts: bytes between the file ranges to send."""
    parts: list[bytes | R] = []
    out = bytearray(8)
    _INT32.pack_into(out, 4, correlation_id)
    flexible = version >= FETCH_FLEXIBLE
    out += b"\0\0\0\0\0" if flexible else b"\0\0\0\0"  # header tags, throttle time
    if version >= 7:
        out += _INT16.pack(error_code)
        out += _INT32.pack(session_id)
    write_count = _write_compact_count if flexible else _write_count
    write_topic = _write_compact_topic if flexible else _write_string
    write_count(out, len(topics))
    sent_bytes = 0
    for key, partitions in topics:
        write_topic(out, key)
        write_count(out, len(partitions))
        for partition in partitions:
            _write_fetched_head(out, version, partition)
            records = partition.records
            size = records.size_bytes if records is not None else 0
            if flexible:
                write_unsigned_varint(out, size + 1)
            else:
                out += _INT32.pack(size)
            if records is not None:
                parts += (bytes(out), records)
                sent_bytes += len(out) + size
                out = bytearray()
            if flexible:
                _write_fetched_tags(out, partition)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    if out:
        parts.append(bytes(out))
        sent_bytes += len(out)
    head = parts[0]
    assert isinstance(head, bytes)
    parts[0] = _INT32.pack(sent_bytes - 4) + head[4:]
    return parts


def _write_fetched_head(out: bytearray, version: int, partition: FetchedPartition[R]) -> None:
    if version >= 5:
        out += _FETCHED_V5.pack(
            partition.partition,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
        )
    else:
        out += _FETCHED_V4.pack(
            partition.partition,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
        )
    aborted = partition.aborted
    if version >= FETCH_FLEXIBLE:
        write_unsigned_varint(out, 0 if aborted is None else len(aborted) + 1)
    else:
        out += _INT32.pack(-1 if aborted is None else len(aborted))
    for producer_id, first_offset in aborted or ():
        out += _ABORTED.pack(producer_id, first_offset)
        if version >= FETCH_FLEXIBLE:
            out.append(0)
    if version >= 11:
        out += b"\xff\xff\xff\xff"  # no preferred read replica


def _write_fetched_tags(out: bytearray, partition: FetchedPartition[R]) -> None:
    if partition.diverging is None:
        out.append(0)
        return
    epoch, end_offset = partition.diverging
    out += b"\x01\x00\x0d"  # one tag; number 0; 13 bytes
    out += _INT32.pack(epoch)
    out += _INT64.pack(end_offset)
    out.append(0)


def _string(view: memoryview, position: int) -> tuple[str | None, int]:
    (size,) = _INT16.unpack_from(view, position)
    return _text(view, position + 2, size)


def _compact_string(view: memoryview, position: int) -> tuple[str | None, int]:
    size, position = read_unsigned_varint(view, position)
    return _text(view, position, size - 1)


def _text(view: memoryview, position: int, size: int) -> tuple[str | None, int]:
    if size == -1:
        return None, position
    end = position + size
    if size < 0 or end > len(view):
        raise ProtocolViolation(f"a string of {size} bytes does not fit")
    return str(view[position:end], "utf-8"), end


def _compact_topic(view: memoryview, position: int, by_id: bool) -> tuple[TopicKey, int]:
    if by_id:
        end = position + _UUID_BYTES
        if end > len(view):
            raise ProtocolViolation("a topic id does not fit")
        return bytes(view[position:end]), end
    name, position = _compact_string(view, position)
    if name is None:
        raise ProtocolViolation("a topic name is null")
    return name, position


def _slice(view: memoryview, position: int, size: int) -> tuple[memoryview | None, int]:
    if size == -1:
        return None, position
    end = position + size
    if size < 0 or end > len(view):
        raise ProtocolViolation(f"a batch of {size} bytes does not fit")
    return view[position:end], end


def _count(view: memoryview, position: int, element_bytes_min: int) -> tuple[int, int]:
    """An array's length; a client cannot claim more elements than its bytes could hold."""
    (count,) = _INT32.unpack_from(view, position)
    return _checked(count, view, position + 4, element_bytes_min)


def _compact_count(view: memoryview, position: int, element_bytes_min: int) -> tuple[int, int]:
    count, position = read_unsigned_varint(view, position)
    return _checked(count - 1, view, position, element_bytes_min)


def _checked(
    count: int, view: memoryview, position: int, element_bytes_min: int
) -> tuple[int, int]:
    if not 0 <= count <= (len(view) - position) // element_bytes_min:
        raise ProtocolViolation(f"an array of {count} elements does not fit")
    return count, position


def _check_sum(element_count: int, elements_max: int) -> None:
    """Three bytes of request become some hundred of objects: their number needs a limit."""
    if element_count > elements_max:
        raise ProtocolViolation(
            f"more than {elements_max} topics and partitions in one request (a Fetch's number is"
            " limited by max.request.elements)"
        )


def _skip_tags(view: memoryview, position: int) -> int:
    if view[position] == 0:
        return position + 1
    return read_tagged_fields(view, position, len(view), count_max=_TAGS_MAX)[1]


def _write_count(out: bytearray, count: int) -> None:
    out += _INT32.pack(count)


def _write_compact_count(out: bytearray, count: int) -> None:
    write_unsigned_varint(out, count + 1)


def _write_string(out: bytearray, text: TopicKey) -> None:
    raw = text.encode() if isinstance(text, str) else text
    out += _INT16.pack(len(raw))
    out += raw


def _write_compact_text(out: bytearray, text: str) -> None:
    raw = text.encode()
    write_unsigned_varint(out, len(raw) + 1)
    out += raw


def _write_compact_topic(out: bytearray, key: TopicKey) -> None:
    if isinstance(key, str):
        _write_compact_text(out, key)
    else:
        out += key
