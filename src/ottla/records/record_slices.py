"""The records of a batch as slices of its payload: for compaction, key checks and time searches.

`batch.records` decodes every field; here only positions, deltas and keys are read. Compaction
spends its time in this loop, so varints of one and two bytes, nearly all, are decoded inline.
"""

from typing import Final

from ottla.errors import InvalidRecord, ProtocolViolation, RecordError
from ottla.model import NO_PRODUCER, NO_SEQUENCE, NO_TIMESTAMP, Offset, TimestampMs
from ottla.protocol.primitives import read_varint, read_varlong, write_varint, write_varlong
from ottla.records.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    NO_PRODUCER_EPOCH,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    assemble,
    open_payload,
    read_header,
)
from ottla.records.compression import compress

SEARCHED_RECORDS_MAX: Final = 20_000  # of one batch, in a search by time
_EMPTY_LENGTH: Final = (HEADER_BYTES - LENGTH_END).to_bytes(4, "big")  # of a batch's header alone
_NULL: Final = 1  # the encoded length of a null value: -1, zig-zag

# One record of a payload: start and end position, timestamp delta in ms, offset delta, key, and
# whether it is a tombstone. A plain tuple, because making a named one takes as long as the rest.
RecordSlice = tuple[int, int, int, int, bytes | None, bool]


def payload_of(batch: Buffer, header: BatchHeader, bytes_max: int) -> bytes:
    """The records of a batch, encoded one after the other, decompressed; b"" without records."""
    if not header.record_count:
        return b""
    return bytes(open_payload(batch, header, bytes_max))


def slice_records(payload: bytes, count: int) -> list[RecordSlice]:
    """The slices of a payload of `count` records, or `InvalidRecord`."""
    try:
        return _slice_records(payload, count)
    except (ProtocolViolation, IndexError) as problem:
        raise InvalidRecord(f"a record cannot be decoded: {problem}") from None


def _slice_records(payload: bytes, count: int) -> list[RecordSlice]:  # noqa: C901  # one tight loop
    size = len(payload)
    found: list[RecordSlice] = []
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
            raise InvalidRecord("a record exceeds its batch")
        number = payload[at + 1]  # after unused attributes
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
            raise InvalidRecord("a key exceeds its record")
        found.append((start, end, time, delta, key, payload[at] == _NULL))
        at = end
    if at != size:
        raise InvalidRecord("bytes are left over after the last record")
    return found


def first_since(
    batch: Buffer, start: Offset, timestamp_ms: TimestampMs, *, decompressed_bytes_max: int
) -> tuple[Offset, TimestampMs] | None:
    """The offset and time of the first record from `start` on not older than `timestamp_ms`.

    Decodes two numbers of each record, and stops after `SEARCHED_RECORDS_MAX` records, because a
    few kilobytes can hold millions; then the record reached is returned: all before are older.
    """
    header = read_header(batch)
    if header.attributes & LOG_APPEND_TIME:
        if header.max_timestamp_ms < timestamp_ms or header.last_offset < start:
            return None
        return Offset(max(header.base_offset, start)), TimestampMs(header.max_timestamp_ms)
    payload = open_payload(batch, header, decompressed_bytes_max)
    wanted_delta = timestamp_ms - header.base_timestamp_ms
    position = 0
    try:
        for number in range(header.record_count):
            size_bytes, position = read_varint(payload, position)
            end = position + size_bytes
            if size_bytes < 0 or end > len(payload):
                raise InvalidRecord(f"a record of {size_bytes} bytes exceeds its batch")
            delta, position = read_varlong(payload, position + 1)  # after unused attributes
            offset = header.base_offset + read_varint(payload, position)[0]
            if (delta >= wanted_delta and offset >= start) or number >= SEARCHED_RECORDS_MAX:
                time_ms = TimestampMs(header.base_timestamp_ms + delta)
                return Offset(max(offset, start)), time_ms
            position = end
    except (ProtocolViolation, IndexError) as problem:
        raise InvalidRecord(f"a record cannot be decoded: {problem}") from None
    return None


def check_keys(batch: Buffer, header: BatchHeader, *, decompressed_bytes_max: int) -> None:
    """Refuse a batch with a record without a key: its topic could never compact it."""
    payload = payload_of(batch, header, decompressed_bytes_max)
    found = slice_records(payload, header.record_count)
    bad = [index for index, (_, _, _, _, key, _) in enumerate(found) if key is None]
    if bad:
        raise InvalidRecord(
            f"every record of a compacted topic needs a key: {len(bad)} of {len(found)} have none",
            (RecordError(index, "a record of a compacted topic needs a key") for index in bad),
        )


def rebuild(
    header: BatchHeader,
    payload: bytes,
    kept: list[RecordSlice],
    *,
    delete_horizon_ms: TimestampMs | None = None,
) -> bytearray:
    """A batch with a selection of the records, at the same offsets and with the same codec.

    Offsets and times of the records are unchanged. A delete horizon replaces the base timestamp, so
    the records' timestamp deltas are written anew.
    """
    assert kept, "a batch without records is made by empty_batch"
    base_timestamp_ms, attributes = header.base_timestamp_ms, header.attributes
    if delete_horizon_ms is None:
        payload_kept: Buffer = b"".join([payload[start:end] for start, end, *_ in kept])
    else:
        shift_ms = base_timestamp_ms - delete_horizon_ms
        payload_kept = _shifted(payload, kept, shift_ms)
        base_timestamp_ms, attributes = delete_horizon_ms, attributes | DELETE_HORIZON
    max_timestamp_ms = header.max_timestamp_ms
    if not attributes & LOG_APPEND_TIME:
        newest_ms = max(delta_ms for _, _, delta_ms, *_ in kept)
        max_timestamp_ms = header.base_timestamp_ms + newest_ms
    changed = header._replace(
        attributes=attributes,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        record_count=len(kept),
    )
    return assemble(changed, compress(payload_kept, header.codec))


def _shifted(payload: bytes, records: list[RecordSlice], shift_ms: int) -> bytearray:
    """The records with every timestamp delta changed by `shift_ms`."""
    out = bytearray()
    for start, end, delta_ms, *_ in records:
        _, at = read_varint(payload, start)
        _, after_time = read_varlong(payload, at + 1)
        body = bytearray(payload[at : at + 1])
        write_varlong(body, delta_ms + shift_ms)
        body += payload[after_time:end]
        write_varint(out, len(body))
        out += body
    return out


def empty_batch(header: BatchHeader, *, keeps_producer: bool) -> bytearray:
    """A batch without records that keeps its offsets, and its producer's state if wanted."""
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


def are_empty_batches(data: Buffer) -> bool:
    """True if the bytes are whole batches without records, one after the other, and nothing else.

    Such a batch is its header alone, so all lengths are the same and at the same distance.
    """
    count, rest = divmod(len(data), HEADER_BYTES)
    view = bytes(data)
    return not rest and all(
        view[position::HEADER_BYTES] == bytes([byte]) * count
        for position, byte in enumerate(_EMPTY_LENGTH, LENGTH_END - len(_EMPTY_LENGTH))
    )
