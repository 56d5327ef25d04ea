"""A record in parts that are copied as they are encoded: nothing of it is decoded for a copy."""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from ottla.errors import InvalidRecord, ProtocolViolation
from ottla.protocol.primitives import read_varint, read_varlong, write_varint


class HeaderPart(NamedTuple):
    """A header of a record; `encoded` is the whole of it."""

    name: bytes
    value: bytes | None
    encoded: bytes


class RecordParts(NamedTuple):
    """A record: key and value are encoded, one behind the other."""

    timestamp_delta_ms: int
    key_and_value: bytes
    headers: list[HeaderPart]


def read_parts(payload: bytes, start: int) -> RecordParts:
    """The parts of the record at a position of a payload."""
    try:
        return _read_parts(payload, start)
    except (ProtocolViolation, IndexError) as problem:
        raise InvalidRecord(f"a record cannot be decoded: {problem}") from None


def _read_parts(payload: bytes, start: int) -> RecordParts:
    size_bytes, at = read_varint(payload, start)
    end = at + size_bytes
    timestamp_delta_ms, at = read_varlong(payload, at + 1)  # after unused attributes
    while payload[at] >= 0x80:  # the offset's delta
        at += 1
    key_at = at = at + 1
    for _ in range(2):  # key and value
        _, at = _skip_bytes(payload, at)
    key_and_value = payload[key_at:at]
    count, at = read_varint(payload, at)
    headers = []
    for _ in range(count):
        header_at = at
        name_at, at = _skip_bytes(payload, at)
        if name_at is None:
            raise InvalidRecord("a record header without a name")
        name = payload[name_at:at]
        value_at, at = _skip_bytes(payload, at)
        value = None if value_at is None else payload[value_at:at]
        headers.append(HeaderPart(name, value, payload[header_at:at]))
    if at != end or count < 0:
        raise InvalidRecord("a record's length does not match its content")
    return RecordParts(timestamp_delta_ms, key_and_value, headers)


def _skip_bytes(payload: bytes, at: int) -> tuple[int | None, int]:
    """Where bytes begin, None if there are none, and where they end; their length is at `at`."""
    number = payload[at]
    if number < 0x80:
        at += 1
        return (None, at) if number & 1 else (at, at + (number >> 1))
    size_bytes, at = read_varint(payload, at)
    return (None, at) if size_bytes < 0 else (at, at + size_bytes)


@cache
def _encoded_name(name: str) -> bytes:
    out = bytearray()
    write_varint(out, len(name.encode()))
    return bytes(out) + name.encode()


def encode_header(name: str, value: bytes) -> bytes:
    """A header of Ottla's own as it is encoded in a record."""
    size_bytes = bytearray()
    write_varint(size_bytes, len(value))
    return _encoded_name(name) + bytes(size_bytes) + value


def write_parts(
    out: bytearray, offset_delta: int, key_and_value: bytes, headers: Iterable[bytes]
) -> None:
    """Append a record of such parts, with the timestamp of its batch."""
    encoded = list(headers)
    body = bytearray(2)  # attributes, unused, and the timestamp's delta
    write_varint(body, offset_delta)
    body += key_and_value
    write_varint(body, len(encoded))
    body += b"".join(encoded)
    write_varint(out, len(body))
    out += body
