"""The records of a batch as slices of it: for compaction, and for topics that need keys.

Where `batch.records` opens every letter, this looks at the address only. Its loop is what
compaction spends its time in, so numbers of one and two bytes, nearly all there are, are read in
place.
"""

from typing import Final

from ottla.errors import InvalidRecord, ProtocolViolation, UnsupportedCompression
from ottla.model import NO_PRODUCER, NO_SEQUENCE, NO_TIMESTAMP, TimestampMs
from ottla.protocol.primitives import read_varint, read_varlong, write_varint, write_varlong
from ottla.records.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    NO_PRODUCER_EPOCH,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    assemble,
)
from ottla.records.compression import Codec, compress, decompress

_CODEC_MAX: Final = int(Codec.ZSTD)
_NULL: Final = 1  # the length of a value that is not there: -1, zig-zag


# Where one record lies among the bytes of its batch, and what is written on it: start, end,
# timestamp delta in ms, offset delta, key, and whether it is a tombstone. A plain tuple, because
# making one with names takes as long as all the rest.
Letter = tuple[int, int, int, int, bytes | None, bool]


def payload_of(batch: Buffer, header: BatchHeader, bytes_max: int) -> bytes:
    """The records of a batch, one behind the other, decompressed."""
    if header.attributes & CODEC_MASK > _CODEC_MAX:
        raise UnsupportedCompression(f"codec {header.attributes & CODEC_MASK} is unknown")
    if not header.record_count:
        return b""
    payload = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    return bytes(decompress(payload, header.codec, bytes_max=bytes_max))


def find_letters(payload: bytes, count: int) -> list[Letter]:
    """Every record of a payload that holds `count`, or `InvalidRecord`."""
    try:
        return _find_letters(payload, count)
    except (ProtocolViolation, IndexError) as problem:
        raise InvalidRecord(f"a record cannot be read: {problem}") from None


def _find_letters(payload: bytes, count: int) -> list[Letter]:  # noqa: C901  # one tight loop
    size = len(payload)
    found: list[Letter] = []
    at = 0
    for _ in range(count):
        start = at
        number = payload[at]
        if number < 0x80:
            at += 1
        elif payload[at + 1] < 0x80:
            number = number & 0x7F | payload[at + 1] << 7
            at += 2
        else:
            number, at = read_varint(payload, at)
            number *= 2
        end = at + (number >> 1)
        if number & 1 or end > size:
            raise InvalidRecord("a record does not fit into its batch")
        number = payload[at + 1]  # behind unused attributes
        if number < 0x80:
            time = (number >> 1) ^ -(number & 1)
            at += 2
        elif payload[at + 2] < 0x80:
            number = number & 0x7F | payload[at + 2] << 7
            time = (number >> 1) ^ -(number & 1)
            at += 3
        else:
            time, at = read_varlong(payload, at + 1)
        number = payload[at]
        if number < 0x80:
            delta = (number >> 1) ^ -(number & 1)
            at += 1
        elif payload[at + 1] < 0x80:
            number = number & 0x7F | payload[at + 1] << 7
            delta = (number >> 1) ^ -(number & 1)
            at += 2
        else:
            delta, at = read_varint(payload, at)
        number = payload[at]
        if number < 0x80:
            key_bytes = (number >> 1) ^ -(number & 1)
            at += 1
        else:
            key_bytes, at = read_varint(payload, at)
        key = None
        if key_bytes >= 0:
            key = payload[at : at + key_bytes]
            at += key_bytes
        if at >= end:
            raise InvalidRecord("a key reaches beyond its record")
        found.append((start, end, time, delta, key, payload[at] == _NULL))
        at = end
    if at != size:
        raise InvalidRecord("bytes are left over behind the last record")
    return found


def check_keys(batch: Buffer, header: BatchHeader, *, decompressed_bytes_max: int) -> None:
    """Refuse a batch in which a record has no key: its topic could never compact it."""
    payload = payload_of(batch, header, decompressed_bytes_max)
    for _, _, _, _, key, _ in find_letters(payload, header.record_count):
        if key is None:
            raise InvalidRecord("every record of a compacted topic needs a key")


def rebuild(
    header: BatchHeader,
    payload: bytes,
    letters: list[Letter],
    *,
    delete_horizon_ms: TimestampMs | None = None,
) -> bytearray:
    """A batch with fewer records, in the same place and under the same codec.

    Offsets and times of the records stay what they were. A delete horizon takes the place of the
    base timestamp, so that the records' deltas have to be written anew.
    """
    assert letters, "a batch without records is a shell"
    base_timestamp_ms, attributes = header.base_timestamp_ms, header.attributes
    if delete_horizon_ms is None:
        kept: Buffer = b"".join([payload[start:end] for start, end, *_ in letters])
    else:
        shift_ms = base_timestamp_ms - delete_horizon_ms
        kept = _shifted(payload, letters, shift_ms)
        base_timestamp_ms, attributes = delete_horizon_ms, attributes | DELETE_HORIZON
    max_timestamp_ms = header.max_timestamp_ms
    if not attributes & LOG_APPEND_TIME:
        newest_ms = max(delta_ms for _, _, delta_ms, *_ in letters)
        max_timestamp_ms = header.base_timestamp_ms + newest_ms
    changed = header._replace(
        attributes=attributes,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        record_count=len(letters),
    )
    return assemble(changed, compress(kept, header.codec))


def _shifted(payload: bytes, letters: list[Letter], shift_ms: int) -> bytearray:
    """The same records with every timestamp delta changed by `shift_ms`."""
    out = bytearray()
    for start, end, delta_ms, *_ in letters:
        _, at = read_varint(payload, start)
        _, behind_time = read_varlong(payload, at + 1)
        body = bytearray(payload[at : at + 1])
        write_varlong(body, delta_ms + shift_ms)
        body += payload[behind_time:end]
        write_varint(out, len(body))
        out += body
    return out


def shell(header: BatchHeader, *, keeps_producer: bool) -> bytearray:
    """A batch without records that holds its place: its offsets, and its producer's if wanted."""
    attributes = header.attributes & (TRANSACTIONAL | CONTROL) if keeps_producer else 0
    changed = header._replace(
        attributes=attributes,
        base_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=NO_TIMESTAMP,
        record_count=0,
    )
    if not keeps_producer:
        changed = changed._replace(
            producer_id=NO_PRODUCER, producer_epoch=NO_PRODUCER_EPOCH, base_sequence=NO_SEQUENCE
        )
    return assemble(changed, b"")
