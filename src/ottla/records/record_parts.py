"""A record in parts that are copied as they are encoded: nothing of it is decoded for a copy."""

from functools import cache, lru_cache
from typing import Final, NamedTuple

from ottla.errors import InvalidRecord, ProtocolViolation
from ottla.protocol.primitives import read_varint, read_varlong, write_varint

# A record: timestamp delta in ms, key and value as they are encoded, and its headers with their
# count in front. A plain tuple, because making a named one takes as long as finding the parts.
RecordParts = tuple[int, bytes, bytes]

_NO_DELTA: Final = bytes(2)  # attributes, unused, and the timestamp's delta


class HeaderPart(NamedTuple):
    """A header of a record; `encoded` is the whole of it."""

    name: bytes
    value: bytes | None
    encoded: bytes


def read_parts(payload: bytes, start: int, end: int) -> RecordParts:
    """The parts of the record between two positions of a payload; `read_headers` opens the last."""
    try:
        return _read_parts(payload, start, end)
    except (ProtocolViolation, IndexError) as problem:
        raise InvalidRecord(f"a record cannot be decoded: {problem}") from None


def _read_parts(payload: bytes, at: int, end: int) -> RecordParts:
    while payload[at] >= 0x80:  # the record's length
        at += 1
    number = payload[at + 2]  # after unused attributes
    if number < 0x80:
        delta_ms = (number >> 1) ^ -(number & 1)
        at += 3
    elif payload[at + 3] < 0x80:
        number = number & 0x7F | payload[at + 3] << 7
        delta_ms = (number >> 1) ^ -(number & 1)
        at += 4
    else:
        delta_ms, at = read_varlong(payload, at + 2)
    while payload[at] >= 0x80:  # the offset's delta
        at += 1
    key_at = at = at + 1
    for _ in (0, 1):  # key and value
        number = payload[at]
        if number < 0x80:
            at += 1 if number & 1 else 1 + (number >> 1)
        elif payload[at + 1] < 0x80 and not number & 1:
            at += 2 + ((number & 0x7F | payload[at + 1] << 7) >> 1)
        else:
            size_bytes, at = read_varint(payload, at)
            at += max(size_bytes, 0)
    if at >= end:
        raise InvalidRecord("a record's length does not match its content")
    return delta_ms, payload[key_at:at], payload[at:end]


def read_headers(encoded: bytes) -> list[HeaderPart]:
    """The headers of a record in parts."""
    try:
        return _read_headers(encoded)
    except (ProtocolViolation, IndexError) as problem:
        raise InvalidRecord(f"a record cannot be decoded: {problem}") from None


def _read_headers(encoded: bytes) -> list[HeaderPart]:
    count, at = read_varint(encoded, 0)
    headers = []
    for _ in range(count):
        header_at = at
        name_at, at = _skip_bytes(encoded, at)
        if name_at is None:
            raise InvalidRecord("a record header without a name")
        name = encoded[name_at:at]
        value_at, at = _skip_bytes(encoded, at)
        value = None if value_at is None else encoded[value_at:at]
        headers.append(HeaderPart(name, value, encoded[header_at:at]))
    if at != len(encoded) or count < 0:
        raise InvalidRecord("a record's length does not match its content")
    return headers


def _skip_bytes(payload: bytes, at: int) -> tuple[int | None, int]:
    """Where bytes begin, None if there are none, and where they end; their length is at `at`."""
    size_bytes, at = read_varint(payload, at)
    return (None, at) if size_bytes < 0 else (at, at + size_bytes)


@cache
def _encoded_name(name: str) -> bytes:
    encoded = name.encode()
    return encode_varint(len(encoded)) + encoded


def encode_header(name: str, value: bytes) -> bytes:
    """A header of Ottla's own as it is encoded in a record."""
    return _encoded_name(name) + encode_varint(len(value)) + value


@lru_cache(maxsize=1024)
def encode_varint(number: int) -> bytes:
    """A signed number; small ones come again and again, and are kept."""
    out = bytearray()
    write_varint(out, number)
    return bytes(out)


def write_parts(out: bytearray, offset_delta: int, key_and_value: bytes, headers: bytes) -> None:
    """Append a record of such parts, with the timestamp of its batch."""
    head = _NO_DELTA + encode_varint(offset_delta)
    size_bytes = len(head) + len(key_and_value) + len(headers)
    if 64 <= size_bytes < 8192:  # most records: two bytes, without a call
        out.append((size_bytes << 1) & 0x7F | 0x80)
        out.append(size_bytes >> 6)
    else:
        write_varint(out, size_bytes)
    out += head
    out += key_and_value
    out += headers
