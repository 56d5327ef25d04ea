"""Varints and tag sections, used by Kafka's messages and its records alike.

A varint is an integer in as few bytes as it needs, seven bits to a byte, lowest bits first. Readers
take any buffer of bytes and return the value with the position after it. Input is never trusted: an
unterminated number, or one out of range, is a `ProtocolViolation`.
"""

from typing import Final

from ottla.errors import ProtocolViolation

Buffer = bytes | bytearray | memoryview

TAGGED_FIELDS_MAX: Final = 256  # in one struct; Kafka 4.3 defines at most four

_UINT32_MAX: Final = 2**32 - 1
_UINT64_MAX: Final = 2**64 - 1


def read_unsigned_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """An unsigned 32-bit number in at most 5 bytes: lengths and tags of flexible versions."""
    try:
        byte = buffer[position]
        if byte < 0x80:
            return byte, position + 1
    except IndexError:
        raise _ends_inside(position) from None
    return _read_longer(buffer, position, 5, _UINT32_MAX)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """A signed 32-bit number, zig-zag encoded: the sign is the lowest bit."""
    value, position = read_unsigned_varint(buffer, position)
    return (value >> 1) ^ -(value & 1), position


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """A signed 64-bit number in at most 10 bytes, zig-zag encoded."""
    value, position = _read_longer(buffer, position, 10, _UINT64_MAX)
    return (value >> 1) ^ -(value & 1), position


def read_tagged_fields(
    buffer: Buffer, position: int, end: int, *, count_max: int = TAGGED_FIELDS_MAX
) -> tuple[list[tuple[int, int, int]], int]:
    """The (tag, start, stop) of each field in a tag section (KIP-482), by ascending tag."""
    count, position = read_unsigned_varint(buffer, position)
    if count > count_max:
        raise ProtocolViolation(
            f"{count} tagged fields in one struct; at most {count_max} are allowed"
        )
    entries = []
    last_tag = -1
    for _ in range(count):
        tag, position = read_unsigned_varint(buffer, position)
        if tag <= last_tag:
            raise ProtocolViolation(f"tag {tag} follows tag {last_tag}; tags must ascend")
        last_tag = tag
        size_bytes, start = read_unsigned_varint(buffer, position)
        position = start + size_bytes
        if position > end:
            raise ProtocolViolation(f"the bytes end inside the field with tag {tag}")
        entries.append((tag, start, position))
    return entries, position


def write_unsigned_varint(out: bytearray, value: int) -> None:
    """Append an unsigned 32-bit number."""
    assert 0 <= value <= _UINT32_MAX, value
    if value > 0x7F:
        _write(out, value)
    else:
        out.append(value)


def write_varint(out: bytearray, value: int) -> None:
    """Append a signed 32-bit number, zig-zag encoded."""
    assert -(2**31) <= value < 2**31, value
    if -64 <= value < 64:
        out.append((value << 1) ^ (value >> 31))
    elif 64 <= value < 8192:
        out += bytes((value << 1 & 0x7F | 0x80, value >> 6))
    else:
        _write(out, (value << 1) ^ (value >> 31))


def write_varlong(out: bytearray, value: int) -> None:
    """Append a signed 64-bit number, zig-zag encoded."""
    assert -(2**63) <= value < 2**63, value
    if -64 <= value < 64:
        out.append((value << 1) ^ (value >> 63))
    else:
        _write(out, (value << 1) ^ (value >> 63))


def _read_longer(
    buffer: Buffer, position: int, size_bytes_max: int, value_max: int
) -> tuple[int, int]:
    value = shift = 0
    start = position
    try:
        while position < start + size_bytes_max:
            byte = buffer[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        else:
            raise ProtocolViolation(
                f"the varint at byte {start} is longer than {size_bytes_max} bytes"
            )
    except IndexError:
        raise _ends_inside(start) from None
    if value > value_max:
        raise ProtocolViolation(f"the varint at byte {start} exceeds {value_max}")
    return value, position


def _ends_inside(position: int) -> ProtocolViolation:
    return ProtocolViolation(f"the bytes end inside the varint at byte {position}")


def _write(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
