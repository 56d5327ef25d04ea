"""A record batch (format v2) by its 61-byte header; records are decoded on request only.

The layout, big-endian: base offset (8), length of what follows (4), leader epoch (4), magic (1),
CRC-32C (4), attributes (2), last offset delta (4), base timestamp (8), max timestamp (8),
producer id (8), producer epoch (2), base sequence (4), record count (4), records. The CRC covers
everything from the attributes on, so a leader may stamp offset and epoch without touching it.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    ProtocolViolation,
    UnsupportedCompression,
)
from ottla.model import (
    NO_EPOCH,
    NO_PRODUCER,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)
from ottla.model import Sequence as SequenceNumber
from ottla.records.compression import Codec, compress, decompress
from ottla.records.crc import crc32c
from ottla.records.record_codec import read_record, write_record

Buffer = bytes | bytearray | memoryview

HEADER_BYTES: Final = 61
LENGTH_END: Final = 12  # a batch's length counts the bytes after this position
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21  # the CRC covers everything from here on
FLAGS_AT: Final = ATTRIBUTES_AT + 1  # the byte of the attributes that has codec and flags
MAX_TIMESTAMP_AT: Final = 35
_PRODUCER_AT: Final = 43
_PRODUCER: Final = struct.Struct(">qh")
MAGIC: Final = 2
SEQUENCE_MASK: Final = 0x7FFF_FFFF  # sequences wrap from 2^31 - 1 to 0

CODEC_MASK: Final = 0x07
_CODEC_MAX: Final = int(Codec.ZSTD)
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40  # the base timestamp is when tombstones may be deleted (KIP-534)
HIDES_SOME: Final = 0x100  # some records wait, or are commands: readers do not see them
HIDES_ALL: Final = 0x200
HIDES: Final = HIDES_SOME | HIDES_ALL
LEADER_WRITTEN: Final = 0x400  # says which records that waited have been released, or wait on

FIRST_OFFSET: Final = Offset(0)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
DECOMPRESSED_BYTES_MIN: Final = 8 << 20  # every topic may expand a batch at least this far

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BOUNDS: Final = struct.Struct(">qi4xb6xi")  # base offset, length, magic, last offset delta
_PLAIN: Final = struct.Struct(">8xi4xbIhiqq14xi")  # without offset, epoch and producer
_STAMP: Final = struct.Struct(">qii")
_CRC: Final = struct.Struct(">I")
_MARKER_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")


class BatchHeader(NamedTuple):
    """The header of a record batch, in wire order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, header included."""
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        """The smallest offset of the next batch; compaction can leave gaps below it."""
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def last_sequence(self) -> int:
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> TimestampMs | None:
        """When tombstones and markers may be deleted; None until compaction sets it."""
        if self.attributes & DELETE_HORIZON:
            return TimestampMs(self.base_timestamp_ms)
        return None


# Indexes of fields in what `HEADER` unpacks: for loops in which a `BatchHeader` costs too much.
BASE_OFFSET_FIELD: Final = BatchHeader._fields.index("base_offset")
LENGTH_FIELD: Final = BatchHeader._fields.index("length")
LEADER_EPOCH_FIELD: Final = BatchHeader._fields.index("leader_epoch")
MAGIC_FIELD: Final = BatchHeader._fields.index("magic")
CRC_FIELD: Final = BatchHeader._fields.index("crc")
ATTRIBUTES_FIELD: Final = BatchHeader._fields.index("attributes")
LAST_DELTA_FIELD: Final = BatchHeader._fields.index("last_offset_delta")
MAX_TIMESTAMP_FIELD: Final = BatchHeader._fields.index("max_timestamp_ms")
PRODUCER_ID_FIELD: Final = BatchHeader._fields.index("producer_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record as written by a producer, with its offset in the partition."""

    offset: Offset = FIRST_OFFSET
    timestamp_ms: TimestampMs = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class MarkerKind(IntEnum):
    """The outcome of a transaction."""

    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    """The content of a control batch that ends its producer's transaction."""

    kind: MarkerKind
    coordinator_epoch: int


def decompressed_bytes_max(message_bytes_max: int) -> int:
    """The decompressed size allowed on a topic that accepts batches of `message_bytes_max`."""
    return max(DECOMPRESSED_BYTES_MIN, 16 * message_bytes_max)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; the caller has checked that the bytes suffice."""
    return tuple.__new__(BatchHeader, HEADER.unpack_from(buffer, position))


def check_stored(buffer: Buffer) -> BatchHeader:
    """Check that `buffer` is exactly one intact batch, written by a producer or a broker."""
    size_bytes = len(buffer)
    if size_bytes < HEADER_BYTES:
        raise CorruptBatch(f"{size_bytes} bytes are too few for a record batch")
    header = read_header(buffer)
    if header.magic != MAGIC:
        raise InvalidRecord(f"record format v{header.magic} is not supported: send format v2")
    if header.size_bytes < HEADER_BYTES or header.size_bytes > size_bytes:
        raise CorruptBatch(
            f"the batch's header says {header.size_bytes} bytes, {size_bytes} arrived"
        )
    if header.size_bytes < size_bytes:
        raise InvalidRecord("more than one batch for a partition: send one per request")
    if crc32c(memoryview(buffer)[ATTRIBUTES_AT:]) != header.crc:
        raise CorruptBatch("the batch's CRC does not match its bytes")
    if header.attributes & CODEC_MASK > _CODEC_MAX:
        raise UnsupportedCompression(f"unknown compression codec {header.attributes & CODEC_MASK}")
    return header


def read_producer(batch: Buffer) -> tuple[ProducerId, ProducerEpoch]:
    """Producer id and epoch of a batch that has a header."""
    producer_id, producer_epoch = _PRODUCER.unpack_from(batch, _PRODUCER_AT)
    return ProducerId(producer_id), ProducerEpoch(producer_epoch)


def check_plain(buffer: Buffer) -> tuple[int, int, int] | None:
    """Last offset delta, first and largest timestamp of an intact batch without a producer id.

    None for any other batch; `check_batch` checks it in full and says what is wrong.
    """
    size_bytes = len(buffer)
    if size_bytes < HEADER_BYTES or buffer[_PRODUCER_AT] < 0x80:  # the sign of the producer id
        return None
    length, magic, crc, attributes, last_delta, base_time, max_time, count = _PLAIN.unpack_from(
        buffer
    )
    if (
        magic == MAGIC
        and length + LENGTH_END == size_bytes
        and count == last_delta + 1 > 0
        and 0 <= attributes <= _CODEC_MAX  # of all attributes only the codec
        and crc == crc32c(memoryview(buffer)[ATTRIBUTES_AT:])
    ):
        return last_delta, base_time, max_time
    return None


def check_batch(buffer: Buffer) -> BatchHeader:
    """Check that `buffer` is one intact batch as a producer may send it."""
    size_bytes = len(buffer)
    if size_bytes >= HEADER_BYTES:
        header = tuple.__new__(BatchHeader, HEADER.unpack_from(buffer))
        _, length, _, magic, crc, attributes, last_delta, _, _, producer, epoch, first, count = (
            header
        )
        if producer >= 0 <= first and epoch >= 0:
            attributes &= ~TRANSACTIONAL
        if (  # the common case in one expression: of the attributes only the codec is left
            magic == MAGIC
            and length + LENGTH_END == size_bytes
            and count == last_delta + 1 > 0
            and 0 <= attributes <= _CODEC_MAX
            and (producer < 0 or (first >= 0 and epoch >= 0))
            and crc == crc32c(memoryview(buffer)[ATTRIBUTES_AT:])
        ):
            return header
    return _check_in_steps(buffer)


def _check_in_steps(buffer: Buffer) -> BatchHeader:
    """The check of `check_batch` step by step, raising an error that names the fault."""
    header = check_stored(buffer)
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        raise InvalidRecord(
            f"{header.record_count} records for offset deltas 0 to {header.last_offset_delta}"
        )
    if header.is_control:
        raise InvalidRecord("control batches are written by brokers only")
    if header.is_log_append_time:
        raise InvalidTimestamp("log append time is set by brokers only")
    if header.attributes & DELETE_HORIZON:
        raise InvalidRecord("delete horizons are set by brokers only")
    if header.attributes >> 7:
        raise InvalidRecord("attribute bits 7 to 15 are set by brokers only")
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise InvalidRecord("a producer id without producer epoch or sequence")
    elif header.is_transactional:
        raise InvalidRecord("a transactional batch without a producer id")
    return header


def stamp(buffer: bytearray | memoryview, base_offset: Offset, leader_epoch: LeaderEpoch) -> None:
    """Write the two fields a leader owns. Both lie outside the CRC, so it stays true."""
    _STAMP.pack_into(buffer, 0, base_offset, len(buffer) - LENGTH_END, leader_epoch)


def stamp_producer_id(buffer: bytearray | memoryview, producer_id: ProducerId) -> None:
    """Give the batch another producer; the CRC is computed anew."""
    struct.pack_into(">q", buffer, _PRODUCER_AT, producer_id)
    _stamp_crc(buffer)


def stamp_time(buffer: bytearray | memoryview, now_ms: TimestampMs) -> None:
    """Set the log append time of every record of the batch; the CRC is computed anew."""
    (attributes,) = struct.unpack_from(">h", buffer, ATTRIBUTES_AT)
    struct.pack_into(">h", buffer, ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    struct.pack_into(">q", buffer, MAX_TIMESTAMP_AT, now_ms)
    _stamp_crc(buffer)


def stamp_max_timestamp(buffer: bytearray | memoryview, max_timestamp_ms: int) -> None:
    """Correct the largest timestamp in a producer's header; the CRC is computed anew."""
    struct.pack_into(">q", buffer, MAX_TIMESTAMP_AT, max_timestamp_ms)
    _stamp_crc(buffer)


def _stamp_crc(buffer: bytearray | memoryview) -> None:
    _CRC.pack_into(buffer, CRC_AT, crc32c(memoryview(buffer)[ATTRIBUTES_AT:]))


def batches(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every complete batch of `buffer` in turn; a partial one at its end is left out."""
    view = memoryview(buffer)
    position, end = 0, len(view)
    while position + HEADER_BYTES <= end:
        header = read_header(view, position)
        start, position = position, position + header.size_bytes
        if header.magic != MAGIC or position < start + HEADER_BYTES:
            raise CorruptBatch(f"no record batch at byte {start}")
        if position > end:
            return
        yield header, view[start:position]


def open_payload(batch: Buffer, header: BatchHeader, bytes_max: int) -> Buffer:
    """The records of a batch, encoded one after the other, decompressed."""
    if header.attributes & CODEC_MASK > _CODEC_MAX:
        raise UnsupportedCompression(f"unknown compression codec {header.attributes & CODEC_MASK}")
    payload = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    return decompress(payload, header.codec, bytes_max=bytes_max)


def records(
    batch: Buffer, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MIN
) -> Iterator[Record]:
    """Decode the records of one batch that has been checked."""
    header = read_header(batch)
    payload = open_payload(batch, header, decompressed_bytes_max)
    append_time_ms = header.max_timestamp_ms if header.attributes & LOG_APPEND_TIME else None
    position = 0
    try:
        for _ in range(header.record_count):
            timestamp_delta, offset_delta, key, value, headers, position = read_record(
                payload, position
            )
            if append_time_ms is None:
                timestamp_ms = header.base_timestamp_ms + timestamp_delta
            else:
                timestamp_ms = append_time_ms
            yield Record(
                offset=Offset(header.base_offset + offset_delta),
                timestamp_ms=TimestampMs(timestamp_ms),
                key=key,
                value=value,
                headers=headers,
            )
    except (ProtocolViolation, IndexError, UnicodeDecodeError) as problem:
        raise InvalidRecord(f"a record cannot be decoded: {problem}") from None
    if position != len(payload):
        raise InvalidRecord("bytes are left over after the last record")


class Packed(NamedTuple):
    """Records encoded one after the other, before compression."""

    payload: Buffer
    record_count: int
    base_timestamp_ms: TimestampMs
    max_timestamp_ms: TimestampMs


def pack(records: Sequence[Record]) -> Packed:
    """Encode records one after the other; their offsets count from the first."""
    assert records, "a batch has at least one record"
    base_timestamp_ms = records[0].timestamp_ms
    payload = bytearray()
    for delta, record in enumerate(records):
        timestamp_delta = record.timestamp_ms - base_timestamp_ms
        write_record(payload, timestamp_delta, delta, record.key, record.value, record.headers)
    return Packed(
        payload=payload,
        record_count=len(records),
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max(record.timestamp_ms for record in records),
    )


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: Offset = FIRST_OFFSET,
    codec: Codec = Codec.NONE,
    leader_epoch: LeaderEpoch = NO_EPOCH,
    producer_id: ProducerId = NO_PRODUCER,
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    base_sequence: SequenceNumber = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    """A batch of `records`, which get consecutive offsets from `base_offset` on."""
    return seal(
        pack(records),
        base_offset=base_offset,
        codec=codec,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
        is_control=is_control,
    )


def seal(
    packed: Packed,
    *,
    base_offset: Offset = FIRST_OFFSET,
    codec: Codec = Codec.NONE,
    leader_epoch: LeaderEpoch = NO_EPOCH,
    producer_id: ProducerId = NO_PRODUCER,
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    base_sequence: SequenceNumber = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    """A batch of packed records: compress them and put the header in front."""
    payload = packed.payload if codec is Codec.NONE else compress(packed.payload, codec)
    attributes = codec | (TRANSACTIONAL if is_transactional else 0) | (CONTROL if is_control else 0)
    head = HEADER.pack(
        base_offset,
        HEADER_BYTES - LENGTH_END + len(payload),
        leader_epoch,
        MAGIC,
        0,
        attributes,
        packed.record_count - 1,
        packed.base_timestamp_ms,
        packed.max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        packed.record_count,
    )
    return _join(head, payload)


def assemble(header: BatchHeader, payload: Buffer) -> bytearray:
    """Header and payload as one batch, with correct length and CRC."""
    length = HEADER_BYTES - LENGTH_END + len(payload)
    return _join(HEADER.pack(header.base_offset, length, *header[2:]), payload)


def _join(head: bytes, payload: Buffer) -> bytearray:
    batch = bytearray(head)
    batch += payload
    _CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return batch


def recompress(
    batch: Buffer, codec: Codec, *, level: int | None = None, decompressed_bytes_max: int
) -> bytearray:
    """The batch compressed with another codec, at its own default level if there is no `level`."""
    header = read_header(batch)
    payload = open_payload(batch, header, decompressed_bytes_max)
    attributes = header.attributes & ~CODEC_MASK | codec
    return assemble(header._replace(attributes=attributes), compress(payload, codec, level))


def build_marker(
    marker: Marker,
    *,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    timestamp_ms: TimestampMs,
) -> bytearray:
    """The control batch that ends a producer's transaction."""
    record = Record(
        timestamp_ms=timestamp_ms,
        key=_MARKER_KEY.pack(0, marker.kind),
        value=_MARKER_VALUE.pack(0, marker.coordinator_epoch),
    )
    return build_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_marker(batch: Buffer) -> Marker | None:
    """The marker in a control batch; None for a control batch that ends no transaction."""
    for record in records(batch):
        if record.key is None or record.value is None or len(record.key) < _MARKER_KEY.size:
            raise InvalidRecord("a control record without key or value")
        _, kind = _MARKER_KEY.unpack_from(record.key)
        if kind not in {MarkerKind.ABORT, MarkerKind.COMMIT}:
            return None
        if len(record.value) < _MARKER_VALUE.size:
            raise InvalidRecord("a transaction marker without coordinator epoch")
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
        return Marker(MarkerKind(kind), coordinator_epoch)
    return None
