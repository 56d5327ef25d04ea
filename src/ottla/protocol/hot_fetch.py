"""Fetch encoded and decoded by hand: the response's records are file ranges, never copied.

A response is a list of parts, small byte strings between file ranges that are sent from the page
cache. The property tests in `tests/property/test_hot_fetch.py` hold these functions to the generic
codec's bytes.
"""

from collections.abc import Sequence
from struct import Struct, error
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from ottla.errors import ProtocolViolation
from ottla.protocol.hot_fields import (
    INT16,
    INT32,
    INT64,
    LeaderHint,
    TopicKey,
    check_element_count,
    read_compact_count,
    read_compact_string,
    read_compact_topic,
    read_count,
    read_string,
    skip_tags,
    write_compact_count,
    write_compact_topic,
    write_count,
    write_leader_endpoints,
    write_leader_tag,
    write_string,
)
from ottla.protocol.primitives import read_tagged_fields, write_unsigned_varint

FETCH_RACKS: Final = 11
FETCH_FLEXIBLE: Final = 12
REPLICA_STATE_TAG: Final = 1
REPLICA_TOKEN_TAG: Final = 10_000  # ours: far from what Kafka may come to use
FETCH_TOPIC_IDS: Final = 13
_LEADER_HINTS_MIN: Final = 16
NO_WATERMARK: Final = 2**63 - 1  # of a follower that does not say what it knows
_WATERMARK_TAG: Final = 1

_ELEMENTS_MAX: Final = 200_000  # topics and partitions, unless the caller sets another limit


class FetchPartition(NamedTuple):
    """A partition of a Fetch request."""

    partition: int
    offset: int
    bytes_max: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    high_watermark: int = NO_WATERMARK  # that a follower knows


class FetchRequest(NamedTuple):
    """A decoded Fetch request; `forgotten` holds (key, [partition])."""

    replica_id: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, list[FetchPartition]]]
    forgotten: list[tuple[TopicKey, list[int]]]
    replica_epoch: int = -1  # of the registration of the broker that fetches as a follower
    replica_token: bytes = b""  # that proves to be it
    rack: str | None = ""  # of a consumer


class Sendable(Protocol):
    """Bytes that can be sent without being read: a range of a segment file."""

    @property
    def size_bytes(self) -> int: ...


R = TypeVar("R", bound=Sendable)


class FetchedPartition(NamedTuple, Generic[R]):
    """A partition of a Fetch response."""

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None  # (producer id, first offset)
    diverging: tuple[int, int] | None = None  # (epoch, end offset), for followers
    records: R | None = None
    leader: LeaderHint | None = None
    preferred: int = -1  # the broker to read from instead
    is_urgent: bool = False  # the response does not wait for records
    is_skip: bool = False  # the records are none: they take a reader over hidden ones
    is_left_out: bool = False  # there are records, and no room for them in this response


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


_REPLICA_STATE: Final = Struct(">iq")
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
    topic_count, position = read_count(view, position, 6)
    sum_count = topic_count
    check_element_count(sum_count, elements_max)
    topics: list[tuple[TopicKey, list[FetchPartition]]] = []
    for _ in range(topic_count):
        name, position = read_string(view, position)
        if name is None:
            raise ProtocolViolation("a topic name is null")
        partition_count, position = read_count(view, position, 16)
        sum_count += partition_count
        check_element_count(sum_count, elements_max)
        partitions = []
        for _ in range(partition_count):
            partition, position = _fetch_partition_classic(view, position, version)
            partitions.append(partition)
        topics.append((name, partitions))
    forgotten: list[tuple[TopicKey, list[int]]] = []
    if version >= 7:
        forgotten_count, position = read_count(view, position, 6)
        sum_count += forgotten_count
        check_element_count(sum_count, elements_max)
        for _ in range(forgotten_count):
            name, position = read_string(view, position)
            if name is None:
                raise ProtocolViolation("a topic name is null")
            index_count, position = read_count(view, position, 4)
            sum_count += index_count
            check_element_count(sum_count, elements_max)
            indexes = list(Struct(f">{index_count}i").unpack_from(view, position))
            position += 4 * index_count
            forgotten.append((name, indexes))
    rack: str | None = ""
    if version >= FETCH_RACKS:
        rack, _ = read_string(view, position)
    return FetchRequest(
        replica_id,
        wait,
        low,
        high,
        isolation,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack=rack,
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
    replica_id, replica_epoch, token = -1, -1, b""
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
    topic_count, position = read_compact_count(view, position, 3)
    sum_count = topic_count
    check_element_count(sum_count, elements_max)
    topics: list[tuple[TopicKey, list[FetchPartition]]] = []
    for _ in range(topic_count):
        key, position = read_compact_topic(view, position, by_id)
        partition_count, position = read_compact_count(view, position, _FETCH_PARTITION_V12.size)
        sum_count += partition_count
        check_element_count(sum_count, elements_max)
        partitions = []
        for _ in range(partition_count):
            index, epoch, offset, last_epoch, log_start, size = _FETCH_PARTITION_V12.unpack_from(
                view, position
            )
            position += _FETCH_PARTITION_V12.size
            watermark = NO_WATERMARK
            if view[position]:
                watermark, position = _watermark_from_tags(view, position)
            else:
                position += 1
            partitions.append(
                FetchPartition(index, offset, size, epoch, last_epoch, log_start, watermark)
            )
        position = skip_tags(view, position)
        topics.append((key, partitions))
    forgotten, position = _forgotten_flexible(view, position, by_id, elements_max - sum_count)
    rack, position = read_compact_string(view, position)
    if version >= 15:
        replica_id, replica_epoch, token = _replica_from_tags(view, position)
    else:
        skip_tags(view, position)
    return FetchRequest(
        replica_id,
        wait,
        low,
        high,
        isolation,
        session_id,
        session_epoch,
        topics,
        forgotten,
        replica_epoch,
        token,
        rack,
    )


def _watermark_from_tags(view: memoryview, position: int) -> tuple[int, int]:
    """The high watermark that a follower knows, and the position behind the tags."""
    watermark = NO_WATERMARK
    tags, position = read_tagged_fields(view, position, len(view))
    for tag, start, _ in tags:
        if tag == _WATERMARK_TAG:
            (watermark,) = INT64.unpack_from(view, start)
    return watermark, position


def _forgotten_flexible(
    view: memoryview, position: int, by_id: bool, elements_max: int
) -> tuple[list[tuple[TopicKey, list[int]]], int]:
    count, position = read_compact_count(view, position, 3)
    sum_count = count
    check_element_count(sum_count, elements_max)
    forgotten: list[tuple[TopicKey, list[int]]] = []
    for _ in range(count):
        key, position = read_compact_topic(view, position, by_id)
        index_count, position = read_compact_count(view, position, 4)
        sum_count += index_count
        check_element_count(sum_count, elements_max)
        indexes = list(Struct(f">{index_count}i").unpack_from(view, position))
        position = skip_tags(view, position + 4 * index_count)
        forgotten.append((key, indexes))
    return forgotten, position


def _replica_from_tags(view: memoryview, position: int) -> tuple[int, int, bytes]:
    """The id, epoch and token with which a follower names itself from version 15 on."""
    replica_id, epoch, token = -1, -1, b""
    for tag, start, stop in read_tagged_fields(view, position, len(view))[0]:
        if tag == REPLICA_STATE_TAG:
            replica_id, epoch = _REPLICA_STATE.unpack_from(view, start)
        elif tag == REPLICA_TOKEN_TAG:
            token = bytes(view[start:stop])
    return replica_id, epoch, token


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
    """A whole Fetch response as a frame in parts: bytes between the file ranges to send."""
    parts: list[bytes | R] = []
    out = bytearray(8)
    INT32.pack_into(out, 4, correlation_id)
    flexible = version >= FETCH_FLEXIBLE
    out += b"\0\0\0\0\0" if flexible else b"\0\0\0\0"  # header tags, throttle time
    if version >= 7:
        out += INT16.pack(error_code)
        out += INT32.pack(session_id)
    put_count = write_compact_count if flexible else write_count
    put_topic = write_compact_topic if flexible else write_string
    put_count(out, len(topics))
    sent_bytes = 0
    hints: list[LeaderHint] = []
    for key, partitions in topics:
        put_topic(out, key)
        put_count(out, len(partitions))
        for partition in partitions:
            _write_fetched_head(out, version, partition)
            records = partition.records
            size = records.size_bytes if records is not None else 0
            if flexible:
                write_unsigned_varint(out, size + 1)
            else:
                out += INT32.pack(size)
            if records is not None:
                parts += (bytes(out), records)
                sent_bytes += len(out) + size
                out = bytearray()
            if flexible:
                _write_fetched_tags(out, version, partition, hints)
        if flexible:
            out.append(0)
    if flexible:
        write_leader_endpoints(out, hints)
    if out:
        parts.append(bytes(out))
        sent_bytes += len(out)
    head = parts[0]
    assert isinstance(head, bytes), "a response begins with its header, not with a file range"
    parts[0] = INT32.pack(sent_bytes - 4) + head[4:]
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
        out += INT32.pack(-1 if aborted is None else len(aborted))
    for producer_id, first_offset in aborted or ():
        out += _ABORTED.pack(producer_id, first_offset)
        if version >= FETCH_FLEXIBLE:
            out.append(0)
    if version >= FETCH_RACKS:
        out += INT32.pack(partition.preferred)


def _write_fetched_tags(
    out: bytearray, version: int, partition: FetchedPartition[R], hints: list[LeaderHint]
) -> None:
    """Write the tags of a partition; a leader that they name is added to the hints."""
    diverging = partition.diverging
    leader = partition.leader if version >= _LEADER_HINTS_MIN else None
    out.append((diverging is not None) + (leader is not None))
    if diverging is not None:
        epoch, end_offset = diverging
        out += b"\x00\x0d"  # number 0; 13 bytes
        out += INT32.pack(epoch)
        out += INT64.pack(end_offset)
        out.append(0)
    if leader is not None:
        hints.append(leader)
        write_leader_tag(out, 1, leader)
