"""One Produce request with one record, encoded by hand: what the unbatched rows send."""

import struct
import time
from typing import Final

from crc32c import crc32c

VERSION: Final = 9  # the first flexible one; every broker of today answers it
TIMEOUT_MS: Final = 30_000
CLIENT_ID: Final = b"bench"


def one_record_request(topic: str, value: bytes, *, acks: int) -> bytes:
    """The request with its size in front. Partition 0; no key; time of creation is now."""
    batch = _batch(value, time.time_ns() // 1_000_000)
    name = topic.encode()
    frame = b"".join(
        (
            struct.pack(">hhih", 0, VERSION, 1, len(CLIENT_ID)) + CLIENT_ID + b"\0",
            b"\0" + struct.pack(">hi", acks, TIMEOUT_MS),
            b"\2" + _unsigned_varint(len(name) + 1) + name,
            b"\2" + struct.pack(">i", 0) + _unsigned_varint(len(batch) + 1) + batch,
            b"\0\0\0",
        )
    )
    return struct.pack(">i", len(frame)) + frame


def error_code_at(topic: str) -> int:
    """Where the answer to such a request carries its error code, counted after its size."""
    return 4 + 1 + 1 + len(_unsigned_varint(len(topic) + 1)) + len(topic.encode()) + 1 + 4


def value_at(request: bytes, size_bytes: int) -> int:
    """Where the value of such a request begins: behind it are a count of headers and three tags."""
    return len(request) - 4 - size_bytes


def checksum_at(request: bytes, size_bytes: int) -> int:
    """Where the batch of such a request has its checksum."""
    return len(request) - 3 - len(_batch(bytes(size_bytes), 0)) + 17


def api_versions_request() -> bytes:
    """The oldest ApiVersions: every broker answers it, and it proves that one is there."""
    frame = struct.pack(">hhih", 18, 0, 1, len(CLIENT_ID)) + CLIENT_ID
    return struct.pack(">i", len(frame)) + frame


def _batch(value: bytes, now_ms: int) -> bytes:
    record = b"\0\0\0" + _varint(-1) + _varint(len(value)) + value + _varint(0)
    body = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1)
    body += _varint(len(record)) + record
    checked = struct.pack(">I", crc32c(body)) + body
    after_length = struct.pack(">ib", -1, 2) + checked
    return struct.pack(">qi", 0, len(after_length)) + after_length


def _varint(value: int) -> bytes:
    return _unsigned_varint((value << 1) ^ (value >> 63))


def _unsigned_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
