"""Strings, counts, topics and tags as Produce and Fetch read and write them by hand."""

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from ottla.errors import ProtocolViolation
from ottla.protocol.primitives import (
    read_tagged_fields,
    read_unsigned_varint,
    write_unsigned_varint,
)

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")
UUID_BYTES: Final = 16
TAGS_MAX: Final = 8  # in a struct that repeats; Kafka 4.3 defines at most two there

TopicKey = str | bytes  # a name, or from the id versions on an id of 16 bytes


class LeaderHint(NamedTuple):
    """The leader of a partition, for a client that asked another broker (KIP-951)."""

    broker_id: int
    epoch: int
    host: str
    port: int
    rack: str | None = None


def read_string(view: memoryview, position: int) -> tuple[str | None, int]:
    (size,) = INT16.unpack_from(view, position)
    return _text(view, position + 2, size)


def read_compact_string(view: memoryview, position: int) -> tuple[str | None, int]:
    size, position = read_unsigned_varint(view, position)
    return _text(view, position, size - 1)


def _text(view: memoryview, position: int, size: int) -> tuple[str | None, int]:
    if size == -1:
        return None, position
    end = position + size
    if size < 0 or end > len(view):
        raise ProtocolViolation(f"a string of {size} bytes exceeds the request")
    return str(view[position:end], "utf-8"), end


def read_compact_topic(view: memoryview, position: int, by_id: bool) -> tuple[TopicKey, int]:
    if by_id:
        end = position + UUID_BYTES
        if end > len(view):
            raise ProtocolViolation("the request ends inside a topic id")
        return bytes(view[position:end]), end
    name, position = read_compact_string(view, position)
    if name is None:
        raise ProtocolViolation("a topic name is null")
    return name, position


def read_slice(view: memoryview, position: int, size: int) -> tuple[memoryview | None, int]:
    """A record batch of `size` bytes as a view; None when the size says null."""
    if size == -1:
        return None, position
    end = position + size
    if size < 0 or end > len(view):
        raise ProtocolViolation(f"a batch of {size} bytes exceeds the request")
    return view[position:end], end


def read_count(view: memoryview, position: int, element_bytes_min: int) -> tuple[int, int]:
    """An array's length, refused when the remaining bytes could not hold so many elements."""
    (count,) = INT32.unpack_from(view, position)
    return _checked(count, view, position + 4, element_bytes_min)


def read_compact_count(view: memoryview, position: int, element_bytes_min: int) -> tuple[int, int]:
    count, position = read_unsigned_varint(view, position)
    return _checked(count - 1, view, position, element_bytes_min)


def _checked(
    count: int, view: memoryview, position: int, element_bytes_min: int
) -> tuple[int, int]:
    if not 0 <= count <= (len(view) - position) // element_bytes_min:
        raise ProtocolViolation(f"an array of {count} elements exceeds the request")
    return count, position


def check_element_count(element_count: int, elements_max: int) -> None:
    """Refuse a request with too many elements: three bytes can become objects of hundreds."""
    if element_count > elements_max:
        raise ProtocolViolation(
            f"more than {elements_max} topics and partitions in one request (a Fetch's number is"
            " limited by max.request.elements)"
        )


def skip_tags(view: memoryview, position: int) -> int:
    if view[position] == 0:
        return position + 1
    return read_tagged_fields(view, position, len(view), count_max=TAGS_MAX)[1]


def write_count(out: bytearray, count: int) -> None:
    out += INT32.pack(count)


def write_compact_count(out: bytearray, count: int) -> None:
    write_unsigned_varint(out, count + 1)


def write_string(out: bytearray, text: TopicKey) -> None:
    raw = text.encode() if isinstance(text, str) else text
    out += INT16.pack(len(raw))
    out += raw


def write_compact_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    raw = text.encode()
    write_unsigned_varint(out, len(raw) + 1)
    out += raw


def write_compact_topic(out: bytearray, key: TopicKey) -> None:
    if isinstance(key, str):
        write_compact_string(out, key)
    else:
        out += key


def write_leader_tag(out: bytearray, tag: int, hint: LeaderHint) -> None:
    """The tagged field of a partition that says who leads it."""
    out.append(tag)
    out += _LEADER.pack(9, hint.broker_id, hint.epoch, 0)  # 9 bytes follow; no tags of its own


def write_leader_endpoints(out: bytearray, hints: Iterable[LeaderHint]) -> None:
    """The tags of a response: the addresses of the leaders that its partitions name, if any."""
    endpoints = {hint.broker_id: hint for hint in hints}
    if not endpoints:
        out.append(0)
        return
    field = bytearray()
    write_compact_count(field, len(endpoints))
    for broker_id, hint in endpoints.items():
        field += INT32.pack(broker_id)
        write_compact_string(field, hint.host)
        field += INT32.pack(hint.port)
        write_compact_string(field, hint.rack)
        field.append(0)
    out += b"\x01\x00"  # one tag; number 0
    write_unsigned_varint(out, len(field))
    out += field


_LEADER: Final = Struct(">BiiB")
