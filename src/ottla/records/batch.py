"""A record batch (format v2) through its 61-byte header; its records only on request.

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
from ottla.protocol.primitives import read_varint, read_varlong, write_varint, write_varlong
from ottla.records.compression import Codec, compress, decompress
from ottla.records.crc import crc32c

Buffer = bytes | bytearray | memoryview

HEADER_BYTES: Final = 61
LENGTH_END: Final = 12  # a batch's length counts the bytes behind this position
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21  # the CRC covers everything from here on
MAX_TIMESTAMP_AT: Final = 35
_PRODUCER_AT: Final = 43
MAGIC: Final = 2
SEQUENCE_MASK: Final = 0x7FFF_FFFF  # sequences wrap from 2^31 - 1 to 0

CODEC_MASK: Final = 0x07
_CODEC_MAX: Final = int(Codec.ZSTD)
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40  # the base timestamp says when tombstones may go (KIP-534)

FIRST_OFFSET: Final = Offset(0)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
DECOMPRESSED_BYTES_MIN: Final = 8 << 20  # every topic may expand a batch at least this far
SEARCHED_RECORDS_MAX: Final = 20_000  # of one batch, in a search by time

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BOUNDS: Final = struct.Struct(">qi4xb6xi")  # base offset, length, magic, last offset delta
_PLAIN: Final = struct.Struct(">8xi4xbIhiqq14xi")  # without offset, epoch and producer
_STAMP: Final = struct.Struct(">qii")
_MARKER_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")


class BatchHeader(NamedTuple):
    """The envelope, field by field in the order of the wire."""

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
        """The whole batch, header included."""
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        """Where the next batch may begin: compaction can leave gaps below it."""
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
        """When tombstones and markers in the batch may go; None before compaction has set it."""
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
    """One letter: what a producer wrote and where it landed."""

    offset: Offset = FIRST_OFFSET
    timestamp_ms: TimestampMs = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class MarkerKind(IntEnum):
    """How a transaction ended."""

    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    """What a control batch says about its producer's transaction."""

    kind: MarkerKind
    coordinator_epoch: int


def decompressed_bytes_max(message_bytes_max: int) -> int:
    """How far a batch may expand on a topic that takes batches of `message_bytes_max`."""
    return max(DECOMPRESSED_BYTES_MIN, 16 * message_bytes_max)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header that begins at `position`; the caller has made sure that it is there."""
    return tuple.__new__(BatchHeader, HEADER.unpack_from(buffer, position))


def check_stored(buffer: Buffer) -> BatchHeader:
    """Make sure that `buffer` is exactly one intact batch, whoever placed it."""
    size_bytes = len(buffer)
    if size_bytes < HEADER_BYTES:
        raise CorruptBatch(f"{size_bytes} bytes are too few for a record batch")
    header = read_header(buffer)
    if header.magic != MAGIC:
        raise InvalidRecord(f"record format v{header.magic} is not supported: send format v2")
    if header.size_bytes < HEADER_BYTES or header.size_bytes > size_bytes:
        raise CorruptBatch(f"the batch says {header.size_bytes} bytes, {size_bytes} arrived")
    if header.size_bytes < size_bytes:
        raise InvalidRecord("more than one batch for a partition: send one per request")
    if crc32c(memoryview(buffer)[ATTRIBUTES_AT:]) != header.crc:
        raise CorruptBatch("the batch's CRC does not match its bytes")
    if header.attributes & CODEC_MASK > _CODEC_MAX:
        raise UnsupportedCompression(f"codec {header.attributes & CODEC_MASK} is unknown")
    return header


def check_plain(buffer: Buffer) -> tuple[int, int, int] | None:
    """Last offset delta, first and largest timestamp of an intact batch without a producer id.

    None when it has one, or when anything is wrong or unusual: `check_batch` says what.
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
    """Make sure that `buffer` is one intact batch as a producer may send it."""
    size_bytes = len(buffer)
    if size_bytes >= HEADER_BYTES:
        header = tuple.__new__(BatchHeader, HEADER.unpack_from(buffer))
        _, length, _, magic, crc, attributes, last_delta, _, _, producer, epoch, first, count = (
            header
        )
        if producer >= 0 <= first and epoch >= 0:
            attributes &= ~TRANSACTIONAL
        if (  # the common case in one breath: of plain attributes only the codec is left
            magic == MAGIC
            and length + LENGTH_END == size_bytes
            and count == last_delta + 1 > 0
            and 0 <= attributes <= _CODEC_MAX
            and (producer < 0 or (first >= 0 and epoch >= 0))
            and crc == crc32c(memoryview(buffer)[ATTRIBUTES_AT:])
        ):
            return header
    return _check_closely(buffer)


def _check_closely(buffer: Buffer) -> BatchHeader:
    """The same check step by step, saying what is wrong."""
    header = check_stored(buffer)
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        raise InvalidRecord(
            f"{header.record_count} records do not fill offsets 0 to {header.last_offset_delta}"
        )
    if header.is_control:
        raise InvalidRecord("control batches are written by brokers only")
    if header.is_log_append_time:
        raise InvalidTimestamp("only brokers give records the time of their arrival")
    if header.attributes & DELETE_HORIZON:
        raise InvalidRecord("delete horizons are set by brokers only")
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise InvalidRecord("a producer id without producer epoch and sequence")
    elif header.is_transactional:
        raise InvalidRecord("a transactional batch without producer id")
    return header


def stamp(buffer: bytearray | memoryview, base_offset: Offset, leader_epoch: LeaderEpoch) -> None:
    """Write the two fields a leader owns. Both lie outside the CRC, so it stays true."""
    _STAMP.pack_into(buffer, 0, base_offset, len(buffer) - LENGTH_END, leader_epoch)


def stamp_time(buffer: bytearray | memoryview, now_ms: TimestampMs) -> None:
    """Give every record of the batch the broker's time, which needs a new CRC."""
    (attributes,) = struct.unpack_from(">h", buffer, ATTRIBUTES_AT)
    struct.pack_into(">h", buffer, ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    struct.pack_into(">q", buffer, MAX_TIMESTAMP_AT, now_ms)
    _stamp_crc(buffer)


def stamp_max_timestamp(buffer: bytearray | memoryview, max_timestamp_ms: int) -> None:
    """Correct what a producer's header says about its records, which needs a new CRC."""
    struct.pack_into(">q", buffer, MAX_TIMESTAMP_AT, max_timestamp_ms)
    _stamp_crc(buffer)


def _stamp_crc(buffer: bytearray | memoryview) -> None:
    struct.pack_into(">I", buffer, CRC_AT, crc32c(memoryview(buffer)[ATTRIBUTES_AT:]))


def batches(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every whole batch of `buffer` in turn; a partial one at its end is left out."""
    view = memoryview(buffer)
    position, end = 0, len(view)
    while position + HEADER_BYTES <= end:
        header = read_header(view, position)
        if header.magic != MAGIC or header.size_bytes < HEADER_BYTES:
            raise CorruptBatch(f"no record batch at byte {position}")
        if position + header.size_bytes > end:
            return
        yield header, view[position : position + header.size_bytes]
        position += header.size_bytes


def records(
    batch: Buffer, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MIN
) -> Iterator[Record]:
    """Open the letters of one batch that has been checked."""
    header = read_header(batch)
    if header.attributes & CODEC_MASK > _CODEC_MAX:
        raise UnsupportedCompression(f"codec {header.attributes & CODEC_MASK} is unknown")
    payload = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    letters = decompress(payload, header.codec, bytes_max=decompressed_bytes_max)
    position = 0
    try:
        for _ in range(header.record_count):
            record, position = _read_record(letters, position, header)
            yield record
    except (ProtocolViolation, IndexError, UnicodeDecodeError) as problem:
        raise InvalidRecord(f"a record cannot be read: {problem}") from None
    if position != len(letters):
        raise InvalidRecord("bytes are left over behind the last record")


def _read_record(letters: Buffer, position: int, header: BatchHeader) -> tuple[Record, int]:
    size_bytes, position = read_varint(letters, position)
    end = position + size_bytes
    if size_bytes < 0 or end > len(letters):
        raise InvalidRecord(f"a record of {size_bytes} bytes does not fit into its batch")
    timestamp_delta, position = read_varlong(letters, position + 1)  # behind unused attributes
    offset_delta, position = read_varint(letters, position)
    key, position = _read_bytes(letters, position, end)
    value, position = _read_bytes(letters, position, end)
    header_count, position = read_varint(letters, position)
    headers = []
    for _ in range(header_count):
        name, position = _read_bytes(letters, position, end)
        if name is None:
            raise InvalidRecord("a record header without a name")
        content, position = _read_bytes(letters, position, end)
        headers.append((name.decode(), content))
    if position != end or header_count < 0:
        raise InvalidRecord("a record's length does not match its content")
    if header.attributes & LOG_APPEND_TIME:
        timestamp_ms = header.max_timestamp_ms
    else:
        timestamp_ms = header.base_timestamp_ms + timestamp_delta
    record = Record(
        offset=Offset(header.base_offset + offset_delta),
        timestamp_ms=TimestampMs(timestamp_ms),
        key=key,
        value=value,
        headers=tuple(headers),
    )
    return record, end


def first_since(
    batch: Buffer, start: Offset, timestamp_ms: TimestampMs, *, decompressed_bytes_max: int
) -> tuple[Offset, TimestampMs] | None:
    """The first record from `start` on that is not older than `timestamp_ms`, with its time.

    Looks at two numbers of each record, and not at more than `SEARCHED_RECORDS_MAX` of them: a
    few kilobytes can hold millions. Where the search ends there, so does the answer: every record
    before it is older.
    """
    header = read_header(batch)
    if header.attributes & LOG_APPEND_TIME:
        if header.max_timestamp_ms < timestamp_ms or header.last_offset < start:
            return None
        return Offset(max(header.base_offset, start)), TimestampMs(header.max_timestamp_ms)
    payload = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    letters = decompress(payload, header.codec, bytes_max=decompressed_bytes_max)
    wanted_delta = timestamp_ms - header.base_timestamp_ms
    position = 0
    try:
        for number in range(header.record_count):
            size_bytes, position = read_varint(letters, position)
            end = position + size_bytes
            if size_bytes < 0 or end > len(letters):
                raise InvalidRecord(f"a record of {size_bytes} bytes does not fit into its batch")
            delta, position = read_varlong(letters, position + 1)  # behind unused attributes
            offset = header.base_offset + read_varint(letters, position)[0]
            if (delta >= wanted_delta and offset >= start) or number >= SEARCHED_RECORDS_MAX:
                time_ms = TimestampMs(header.base_timestamp_ms + delta)
                return Offset(max(offset, start)), time_ms
            position = end
    except (ProtocolViolation, IndexError) as problem:
        raise InvalidRecord(f"a record cannot be read: {problem}") from None
    return None


def _read_bytes(letters: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    size_bytes, position = read_varint(letters, position)
    if size_bytes < 0:
        return None, position
    if position + size_bytes > end:
        raise InvalidRecord("a field reaches beyond its record")
    return bytes(letters[position : position + size_bytes]), position + size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Records as they lie in a batch, one behind the other, before they are compressed."""

    payload: Buffer
    count: int
    base_timestamp_ms: TimestampMs
    max_timestamp_ms: TimestampMs


def pack(letters: Sequence[Record]) -> Packed:
    """Lay records one behind the other; their offsets count from the first."""
    assert letters, "a batch holds at least one record"
    base_timestamp_ms = letters[0].timestamp_ms
    payload = bytearray()
    for delta, letter in enumerate(letters):
        _write_record(payload, letter, delta, letter.timestamp_ms - base_timestamp_ms)
    return Packed(
        payload=payload,
        count=len(letters),
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max(letter.timestamp_ms for letter in letters),
    )


def build_batch(
    letters: Sequence[Record],
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
    """Pack records into a batch; they get the offsets from `base_offset` on, in their order."""
    return seal(
        pack(letters),
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
    """A batch of records that are packed already."""
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=codec
        | (TRANSACTIONAL if is_transactional else 0)
        | (CONTROL if is_control else 0),
        last_offset_delta=packed.count - 1,
        base_timestamp_ms=packed.base_timestamp_ms,
        max_timestamp_ms=packed.max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=packed.count,
    )
    return assemble(header, compress(packed.payload, codec))


def assemble(header: BatchHeader, payload: Buffer) -> bytearray:
    """Header and payload as one batch, with its true length and CRC."""
    length = HEADER_BYTES - LENGTH_END + len(payload)
    batch = bytearray(HEADER.pack(*header._replace(length=length)))
    batch += payload
    _stamp_crc(batch)
    return batch


def _write_record(out: bytearray, letter: Record, delta: int, timestamp_delta: int) -> None:
    body = bytearray(1)  # attributes, unused
    write_varlong(body, timestamp_delta)
    write_varint(body, delta)
    _write_bytes(body, letter.key)
    _write_bytes(body, letter.value)
    write_varint(body, len(letter.headers))
    for name, content in letter.headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, content)
    write_varint(out, len(body))
    out += body


def _write_bytes(out: bytearray, content: bytes | None) -> None:
    if content is None:
        write_varint(out, -1)
    else:
        write_varint(out, len(content))
        out += content


def recompress(batch: Buffer, codec: Codec, *, decompressed_bytes_max: int) -> bytearray:
    """The same records under another codec."""
    header = read_header(batch)
    payload = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    letters = decompress(payload, header.codec, bytes_max=decompressed_bytes_max)
    attributes = header.attributes & ~CODEC_MASK | codec
    return assemble(header._replace(attributes=attributes), compress(letters, codec))


def build_marker(
    marker: Marker,
    *,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    timestamp_ms: TimestampMs,
) -> bytearray:
    """The control batch that ends a producer's transaction."""
    letter = Record(
        timestamp_ms=timestamp_ms,
        key=_MARKER_KEY.pack(0, marker.kind),
        value=_MARKER_VALUE.pack(0, marker.coordinator_epoch),
    )
    return build_batch(
        [letter],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_marker(batch: Buffer) -> Marker | None:
    """What a control batch says; None when it is of a kind that ends no transaction."""
    for letter in records(batch):
        if letter.key is None or letter.value is None or len(letter.key) < _MARKER_KEY.size:
            raise InvalidRecord("a control record without key or value")
        _, kind = _MARKER_KEY.unpack_from(letter.key)
        if kind not in {MarkerKind.ABORT, MarkerKind.COMMIT}:
            return None
        if len(letter.value) < _MARKER_VALUE.size:
            raise InvalidRecord("a transaction marker without coordinator epoch")
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(letter.value)
        return Marker(MarkerKind(kind), coordinator_epoch)
    return None
