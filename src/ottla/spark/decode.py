"""Decodes fetched record batches to Arrow columns in bulk: no Python object per record.

Batches are checked (CRC) and decompressed, their records located by `kernel_read`; then Arrow
copies whole columns out of the fetched bytes. Control batches, aborted transactions and records
outside of the requested range are left out.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from mmap import mmap
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ottla.client.isolation import readable
from ottla.client.partitions import Fetched
from ottla.errors import InvalidRecord
from ottla.model import Offset, OffsetRange, TopicPartition
from ottla.records.batch import HEADER_BYTES, BatchHeader, Buffer, check_stored
from ottla.records.compression import Codec, decompress_into
from ottla.spark.arrow_numpy import array_of, booleans_of, repeated_text
from ottla.spark.kernel import RECORD_BYTES_MIN, Field
from ottla.spark.kernel_read import (
    HeaderField,
    Table,
    find_fields,
    find_headers,
    table_of,
)

BATCH_BYTES_MAX: Final = 256 << 20  # decompressed; a larger one is an attack
SOURCE_BYTES_MAX: Final = 64 << 20  # decompressed at once, and one batch more
_US_PER_MS: Final = 1000
_TIMESTAMP_MS_MAX: Final = (2**63 - 1) // _US_PER_MS

TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedRecords:
    """Records of one partition, found in `source` and not yet copied out of it."""

    tp: TopicPartition
    source: Buffer
    table: Table  # with timestamps in ms and offsets made absolute
    is_log_append_time: NDArray[np.bool_]

    def __len__(self) -> int:
        return int(self.table.shape[1])

    def filter(self, wanted: NDArray[np.bool_]) -> "LocatedRecords":
        """The records for which `wanted` is true."""
        return LocatedRecords(
            tp=self.tp,
            source=self.source,
            table=self.table[:, wanted],
            is_log_append_time=self.is_log_append_time[wanted],
        )

    def slices(self, rows_max: int, bytes_max: int) -> Iterator["LocatedRecords"]:
        """The same records in slices of at most `rows_max` records and about `bytes_max` bytes."""
        if not len(self):
            return
        span_bytes = int(self.table[Field.HEADERS_AT, -1] - self.table[Field.KEY_AT, 0])
        rows_for_bytes = max(1, len(self) * bytes_max // max(span_bytes, 1))
        rows = min(rows_max, rows_for_bytes)
        for start in range(0, len(self), rows):
            yield LocatedRecords(
                tp=self.tp,
                source=self.source,
                table=self.table[:, start : start + rows],
                is_log_append_time=self.is_log_append_time[start : start + rows],
            )


Column = Callable[[LocatedRecords], pa.Array]


@dataclass(frozen=True, slots=True)
class _Span:
    """The records of one batch, at `start` to `end` of a source."""

    header: BatchHeader
    start: int
    end: int


class Decoder:
    """Locates records in fetched batches. Owns the memory that batches are decompressed to.

    A result of `locate` is valid until the next call.
    """

    def __init__(self) -> None:
        self._room: memoryview | None = None

    def locate(
        self, tp: TopicPartition, fetched: Fetched, wanted: OffsetRange
    ) -> tuple[LocatedRecords, Offset]:
        """The records of `wanted` in the fetched batches, and the offset to continue from.

        Decompresses at least one batch, and no further one beyond `SOURCE_BYTES_MAX`.
        """
        position = wanted.start
        batches: list[tuple[BatchHeader, int]] = []
        at = 0
        for header, batch in readable(fetched.batches, fetched.aborted):
            if batch is not None and header.last_offset >= wanted.start:
                if header.base_offset >= wanted.end:
                    position = wanted.end
                    break
                check_stored(batch)
                batches.append((header, at))
            position = Offset(max(position, header.next_offset))
            at += header.size_bytes
        spans, source, position = self._open(fetched.batches, batches, position)
        return _locate(tp, source, spans, wanted), position

    def _open(
        self, fetched: Buffer, batches: list[tuple[BatchHeader, int]], position: Offset
    ) -> tuple[list[_Span], Buffer, Offset]:
        """The records of all batches in one buffer: the fetched one if none is compressed."""
        if all(header.codec is Codec.NONE for header, _ in batches):
            spans = [
                _Span(header, at + HEADER_BYTES, at + header.size_bytes) for header, at in batches
            ]
            return spans, fetched, position
        room = self._room
        if room is None:
            room = self._room = memoryview(mmap(-1, SOURCE_BYTES_MAX + BATCH_BYTES_MAX))
        view = memoryview(fetched)
        spans, start = [], 0
        for header, at in batches:
            if start > SOURCE_BYTES_MAX:
                return spans, room, Offset(header.base_offset)
            payload = view[at + HEADER_BYTES : at + header.size_bytes]
            into = room[start : start + BATCH_BYTES_MAX]
            # Compaction leaves shells: batches that keep their offsets and have no records.
            is_shell = not header.record_count
            end = start + (0 if is_shell else decompress_into(payload, header.codec, into))
            spans.append(_Span(header, start, end))
            start = end
        return spans, room, position


def _locate(
    tp: TopicPartition, source: Buffer, spans: list[_Span], wanted: OffsetRange
) -> LocatedRecords:
    for span in spans:
        if not 0 <= span.header.record_count <= (span.end - span.start) // RECORD_BYTES_MIN:
            raise InvalidRecord(
                f"{span.header.record_count} records do not fit into {span.end - span.start} bytes"
            )
    headers = [span.header for span in spans]
    counts = np.array([header.record_count for header in headers], np.int64)
    table = table_of(Field, int(counts.sum()))
    column = 0
    for span in spans:
        find_fields(source, span.start, span.end, span.header.record_count, table, column)
        column += span.header.record_count
    is_log_append_time = _make_absolute(table, counts, headers)
    assert column == table.shape[1], "a row for each record of the batches' counts"
    found = LocatedRecords(tp=tp, source=source, table=table, is_log_append_time=is_log_append_time)
    offsets = table[Field.OFFSET]
    inside = (offsets >= wanted.start) & (offsets < wanted.end)
    if not inside.all():
        return found.filter(inside)
    return found


def _make_absolute(
    table: Table, counts: NDArray[np.int64], headers: list[BatchHeader]
) -> NDArray[np.bool_]:
    """Turn deltas of records into offsets and timestamps; True for log append time."""
    base_offsets = np.array([one.base_offset for one in headers], np.int64)
    base_timestamps = np.array([one.base_timestamp_ms for one in headers], np.int64)
    table[Field.OFFSET] += np.repeat(base_offsets, counts)
    by_broker = np.array([one.is_log_append_time for one in headers], np.bool_)
    is_log_append_time = np.repeat(by_broker, counts)
    timestamps = table[Field.TIMESTAMP]
    timestamps += np.repeat(base_timestamps, counts)
    if by_broker.any():
        arrivals = np.array([one.max_timestamp_ms for one in headers], np.int64)
        timestamps[is_log_append_time] = np.repeat(arrivals, counts)[is_log_append_time]
    if len(timestamps) and (
        timestamps.max() > _TIMESTAMP_MS_MAX or timestamps.min() < -_TIMESTAMP_MS_MAX
    ):
        raise InvalidRecord("a record's timestamp does not fit into microseconds of 64 bits")
    return is_log_append_time


# Columns, each of all records at once


def key_column(rows: LocatedRecords) -> pa.Array:
    """Keys as bytes."""
    return _gather(rows.source, rows.table[Field.KEY_AT], rows.table[Field.KEY_BYTES])


def value_column(rows: LocatedRecords) -> pa.Array:
    """Values as bytes."""
    return _gather(rows.source, rows.table[Field.VALUE_AT], rows.table[Field.VALUE_BYTES])


def topic_column(rows: LocatedRecords) -> pa.Array:
    """The topic's name in every row."""
    return repeated_text(rows.tp.topic, len(rows))


def partition_column(rows: LocatedRecords) -> pa.Array:
    """The partition's number in every row."""
    return array_of(np.full(len(rows), rows.tp.partition, np.int32))


def offset_column(rows: LocatedRecords) -> pa.Array:
    """Offsets."""
    return array_of(rows.table[Field.OFFSET])


def timestamp_column(rows: LocatedRecords) -> pa.Array:
    """Timestamps in microseconds, as Spark has them; Kafka's are milliseconds."""
    return array_of(rows.table[Field.TIMESTAMP] * _US_PER_MS, kind=TIMESTAMP_TYPE)


def timestamp_type_column(rows: LocatedRecords) -> pa.Array:
    """The origin of a record's timestamp: 0 the producer, 1 the broker."""
    return array_of(rows.is_log_append_time.astype(np.int32))


def headers_column(rows: LocatedRecords) -> pa.Array:
    """Headers in order; null for a record without any, as in Spark's connector."""
    counts = rows.table[Field.HEADER_COUNT]
    found = find_headers(rows.source, rows.table[Field.HEADERS_AT], counts)
    names = _gather(rows.source, found[HeaderField.NAME_AT], found[HeaderField.NAME_BYTES])
    contents = _gather(rows.source, found[HeaderField.CONTENT_AT], found[HeaderField.CONTENT_BYTES])
    try:
        texts = names.cast(pa.string())
    except pa.ArrowInvalid:
        raise InvalidRecord("the name of a record header is not UTF-8") from None
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    pairs = pa.StructArray.from_arrays([texts, contents], fields=list(HEADERS_TYPE.value_type))
    return pa.ListArray.from_arrays(
        array_of(ends), pairs, type=HEADERS_TYPE, mask=booleans_of(counts == 0)
    )


COLUMNS: Final[Mapping[str, Column]] = {
    "key": key_column,
    "value": value_column,
    "topic": topic_column,
    "partition": partition_column,
    "offset": offset_column,
    "timestamp": timestamp_column,
    "timestampType": timestamp_type_column,
    "headers": headers_column,
}


def _gather(source: Buffer, ats: NDArray[np.int64], sizes: NDArray[np.int64]) -> pa.Array:
    """A binary column of slices of `source` at rising positions; size -1 is null.

    The source is viewed as a column of slice, gap, slice, gap: Arrow copies every other one.
    """
    count = len(ats)
    if not count:
        return pa.nulls(0, pa.binary())
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = ats
    edges[1::2] = ats + np.maximum(sizes, 0)
    alternating = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(source)]
    )
    wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
    null = sizes < 0
    return alternating.take(array_of(wanted, is_null=null if null.any() else None))
