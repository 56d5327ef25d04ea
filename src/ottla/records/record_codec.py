"""A record as encoded inside a batch: deltas, key, value and headers behind its length."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from ottla.errors import InvalidRecord
from ottla.protocol.primitives import read_varint, read_varlong, write_varint, write_varlong

Buffer = bytes | bytearray | memoryview
Headers = tuple[tuple[str, bytes | None], ...]
_ONE_BYTE_MAX: Final = 64  # what is smaller takes one byte as a varint
_HEADS_MAX: Final = 4096  # of first records, that are remembered


def read_record(
    payload: Buffer, position: int
) -> tuple[int, int, bytes | None, bytes | None, Headers, int]:
    """Timestamp delta, offset delta, key, value and headers at `position`, and the end position."""
    size_bytes, position = read_varint(payload, position)
    end = position + size_bytes
    if size_bytes < 0 or end > len(payload):
        raise InvalidRecord(f"a record of {size_bytes} bytes exceeds its batch")
    timestamp_delta, position = read_varlong(payload, position + 1)  # after unused attributes
    offset_delta, position = read_varint(payload, position)
    key, position = _read_bytes(payload, position, end)
    value, position = _read_bytes(payload, position, end)
    header_count, position = read_varint(payload, position)
    headers = []
    for _ in range(header_count):
        name, position = _read_bytes(payload, position, end)
        if name is None:
            raise InvalidRecord("a record header without a name")
        content, position = _read_bytes(payload, position, end)
        headers.append((name.decode(), content))
    if position != end or header_count < 0:
        raise InvalidRecord("a record's length does not match its content")
    return timestamp_delta, offset_delta, key, value, tuple(headers), end


def write_record(
    out: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
) -> None:
    """Append one encoded record."""
    if timestamp_delta == 0 and offset_delta < _ONE_BYTE_MAX:
        body = bytearray((0, 0, offset_delta << 1))
    else:
        body = bytearray(1)  # attributes, unused
        write_varlong(body, timestamp_delta)
        write_varint(body, offset_delta)
    for content in (key, value):  # `_write_bytes` without its calls, for this is hot
        if content is None:
            body.append(1)
            continue
        size_bytes = len(content)
        if size_bytes < _ONE_BYTE_MAX:
            body.append(size_bytes << 1)
        else:
            write_varint(body, size_bytes)
        body += content
    if headers:
        write_headers(body, headers)
    else:
        body.append(0)
    write_varint(out, len(body))
    out += body


def write_first_record(out: bytearray, key: bytes, value: bytes) -> None:
    """Append the first record of a batch, with the batch's time and without headers.

    The bytes in front of a value are remembered: who writes such records uses the same keys, and
    values of the same size.
    """
    out += _first_head(key, len(value))
    out += value
    out.append(0)


@lru_cache(_HEADS_MAX)
def _first_head(key: bytes, value_bytes: int) -> bytes:
    body = bytearray(3)  # attributes, timestamp delta, offset delta
    _write_bytes(body, key)
    write_varint(body, value_bytes)
    out = bytearray()
    write_varint(out, len(body) + value_bytes + 1)  # and a count of headers
    return bytes(out + body)


def write_headers(out: bytearray, headers: Sequence[tuple[str, bytes | None]]) -> None:
    """Append the headers of a record, and how many there are."""
    write_varint(out, len(headers))
    for name, content in headers:
        _write_bytes(out, name.encode())
        _write_bytes(out, content)


def _read_bytes(payload: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    size_bytes, position = read_varint(payload, position)
    if size_bytes < 0:
        return None, position
    if position + size_bytes > end:
        raise InvalidRecord("a field exceeds its record")
    return bytes(payload[position : position + size_bytes]), position + size_bytes


def _write_bytes(out: bytearray, content: bytes | None) -> None:
    if content is None:
        write_varint(out, -1)
    else:
        write_varint(out, len(content))
        out += content
