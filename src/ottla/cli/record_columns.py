"""The records of a batch as columns: what `consume` prints is made of whole columns at a time.

A record as an object takes 3 µs to decode and as long to print; the compiled kernel finds the
fields of all records of a batch at once, and a column is sliced only if it is printed.
"""

from array import array
from bisect import bisect_left
from dataclasses import replace
from typing import Protocol

from ottla.client.reader import FetchedBatch, ReadRange
from ottla.model import Offset, TimestampMs
from ottla.records.batch import LOG_APPEND_TIME, Record
from ottla.records.record_codec import Headers
from ottla.spark.kernel import IS_COMPILED, RECORD_BYTES_MIN, Field, kernel


class RecordColumns(Protocol):
    """The wanted records of one batch, in order; a null key or value is None."""

    def __len__(self) -> int: ...
    def part(self, first: int, last: int) -> "RecordColumns": ...
    def offsets(self) -> list[int]: ...
    def timestamps_ms(self) -> list[TimestampMs]: ...
    def record_keys(self) -> list[bytes | None]: ...
    def record_values(self) -> list[bytes | None]: ...
    def record_headers(self) -> list[Headers]: ...


def decode_columns(batch: FetchedBatch) -> RecordColumns:
    """The wanted records of a batch; `Unreadable` if it is damaged."""
    count = batch.header.record_count
    if IS_COMPILED:
        payload = bytes(batch.payload())
        if 0 < count <= len(payload) // RECORD_BYTES_MIN:
            table = array("q", bytes(8 * len(Field) * count))
            try:
                kernel.find_fields(payload, 0, len(payload), count, table, 0, count)
            except ValueError:
                pass  # decoding it in Python says why
            else:
                return FoundRecords(batch, payload, table)
    return DecodedRecords(batch.records())


class FoundRecords:
    """Records as positions in a payload, found by the kernel."""

    def __init__(
        self,
        batch: FetchedBatch,
        payload: bytes,
        table: "array[int]",
        rows: tuple[int, int] | None = None,
    ) -> None:
        self._batch = batch
        self._payload = payload
        self._table = table
        self._first, self._last = rows or (0, batch.header.record_count)
        if rows is None:
            self._cut(batch.part)

    def _cut(self, part: ReadRange) -> None:
        """Leave out records outside of the range that is read."""
        header = self._batch.header
        is_cut = part.end is not None and header.last_offset >= part.end
        if is_cut or header.base_offset < part.start:
            offsets = self.offsets()
            self._first = bisect_left(offsets, part.start)
            if part.end is not None:
                self._last = max(self._first, bisect_left(offsets, part.end))

    def __len__(self) -> int:
        return self._last - self._first

    def part(self, first: int, last: int) -> "FoundRecords":
        rows = (self._first + first, self._first + last)
        return FoundRecords(self._batch, self._payload, self._table, rows)

    def offsets(self) -> list[int]:
        base_offset = self._batch.header.base_offset
        return [base_offset + delta for delta in self._column(Field.OFFSET)]

    def timestamps_ms(self) -> list[TimestampMs]:
        header = self._batch.header
        if header.attributes & LOG_APPEND_TIME:
            return [TimestampMs(header.max_timestamp_ms)] * len(self)
        base_ms = header.base_timestamp_ms
        return [TimestampMs(base_ms + delta) for delta in self._column(Field.TIMESTAMP)]

    def record_keys(self) -> list[bytes | None]:
        return self._slices(Field.KEY_AT, Field.KEY_BYTES)

    def record_values(self) -> list[bytes | None]:
        return self._slices(Field.VALUE_AT, Field.VALUE_BYTES)

    def record_headers(self) -> list[Headers]:
        if not any(self._column(Field.HEADER_COUNT)):
            return [()] * len(self)
        headers = [record.headers for record in self._batch_records()]
        return headers[self._first : self._last]

    def _batch_records(self) -> list[Record]:
        return replace(self._batch, part=ReadRange(Offset(0))).records()

    def _slices(self, at: Field, size: Field) -> list[bytes | None]:
        payload = self._payload
        return [
            payload[start : start + size_bytes] if size_bytes >= 0 else None
            for start, size_bytes in zip(self._column(at), self._column(size), strict=True)
        ]

    def _column(self, field: Field) -> "array[int]":
        start = field * self._batch.header.record_count
        return self._table[start + self._first : start + self._last]


class DecodedRecords:
    """Records as objects, for an installation without the compiled kernel."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def part(self, first: int, last: int) -> "DecodedRecords":
        return DecodedRecords(self._records[first:last])

    def offsets(self) -> list[int]:
        return [record.offset for record in self._records]

    def timestamps_ms(self) -> list[TimestampMs]:
        return [record.timestamp_ms for record in self._records]

    def record_keys(self) -> list[bytes | None]:
        return [record.key for record in self._records]

    def record_values(self) -> list[bytes | None]:
        return [record.value for record in self._records]

    def record_headers(self) -> list[Headers]:
        return [record.headers for record in self._records]
