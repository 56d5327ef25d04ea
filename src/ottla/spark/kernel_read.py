"""Positions of the fields of many records, found in bulk by the compiled kernel or in Python.

The table that is filled has one row for each `Field` and one column for each record, so that a
field of all records is one contiguous array. Positions count bytes of `source`. A key or a value
that is null has a size of -1. Offsets and timestamps are deltas, relative to the record's batch.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ottla.errors import InvalidRecord, ProtocolViolation
from ottla.protocol.primitives import Buffer, read_varint, read_varlong
from ottla.spark.kernel import IS_COMPILED, kernel

Table = NDArray[np.int64]
Source = Buffer


class HeaderField(IntEnum):
    """The rows of the table of record headers."""

    NAME_AT = 0
    NAME_BYTES = 1
    CONTENT_AT = 2
    CONTENT_BYTES = 3


def table_of(fields: type[IntEnum], room: int) -> Table:
    """An empty table for this many records or headers."""
    return np.empty((len(fields), room), np.int64)


def find_fields(
    source: Source, start: int, end: int, count: int, table: Table, column: int
) -> None:
    """Fill `table` from `column` on with the records in `source[start:end]`.

    Raises `InvalidRecord` unless these bytes are exactly `count` whole records.
    """
    _find_fields(source, start, end, count, table, column)


def find_headers(source: Source, ats: Table, counts: Table) -> Table:
    """The table of the headers of all records in order; `find_fields` has validated them."""
    return _find_headers(source, ats, counts)


# The compiled kernel


def compiled_find_fields(
    source: Source, start: int, end: int, count: int, table: Table, column: int
) -> None:
    """`find_fields` in C: about 15 ns per record."""
    try:
        kernel.find_fields(source, start, end, count, table, column, table.shape[1])
    except ValueError as problem:
        raise InvalidRecord(str(problem)) from None


def compiled_find_headers(source: Source, ats: Table, counts: Table) -> Table:
    """`find_headers` in C."""
    table = table_of(HeaderField, int(counts.sum()))
    kernel.find_headers(
        source,
        np.ascontiguousarray(ats),
        np.ascontiguousarray(counts),
        table,
        table.shape[1],
    )
    return table


# The Python fallback


def python_find_fields(
    source: Source, start: int, end: int, count: int, table: Table, column: int
) -> None:
    """`find_fields` in Python: about 3 µs per record."""
    records = memoryview(source)[:end]
    rows: list[tuple[int, ...]] = []
    at = start
    try:
        for _ in range(count):
            row, at = _find_record(records, at)
            rows.append(row)
    except (ProtocolViolation, IndexError) as problem:
        raise InvalidRecord(f"a record cannot be read: {problem}") from None
    if at != end:
        raise InvalidRecord("unread bytes after the last record")
    if rows:
        table[:, column : column + count] = np.array(rows, np.int64).T


def _find_record(records: memoryview, at: int) -> tuple[tuple[int, ...], int]:
    size_bytes, at = read_varint(records, at)
    end = at + size_bytes
    if size_bytes < 0 or end > len(records):
        raise InvalidRecord(f"a record of {size_bytes} bytes does not fit into its batch")
    timestamp_delta, at = read_varlong(records, at + 1)  # after the unused attributes
    offset_delta, at = read_varint(records, at)
    key_at, key_bytes, at = _skip_field(records, at, end)
    value_at, value_bytes, at = _skip_field(records, at, end)
    header_count, headers_at = read_varint(records, at)
    if header_count < 0:
        raise InvalidRecord("a record has a negative header count")
    at = headers_at
    for _ in range(header_count):
        _, name_bytes, at = _skip_field(records, at, end)
        if name_bytes < 0:
            raise InvalidRecord("a record header has no name")
        _, _, at = _skip_field(records, at, end)
    if at != end:
        raise InvalidRecord("a record's length does not match its content")
    row = (
        timestamp_delta,
        offset_delta,
        key_at,
        key_bytes,
        value_at,
        value_bytes,
        headers_at,
        header_count,
    )
    return row, end


def python_find_headers(source: Source, ats: Table, counts: Table) -> Table:
    """`find_headers` in Python."""
    view = memoryview(source)
    rows: list[tuple[int, int, int, int]] = []
    for at, count in zip(ats.tolist(), counts.tolist(), strict=True):
        position = at
        for _ in range(count):
            name_at, name_bytes, position = _skip_field(view, position, len(view))
            content_at, content_bytes, position = _skip_field(view, position, len(view))
            rows.append((name_at, name_bytes, content_at, content_bytes))
    return np.array(rows, np.int64).reshape(-1, len(HeaderField)).T


def _skip_field(view: memoryview, at: int, end: int) -> tuple[int, int, int]:
    """Start, size (-1 for null) and end of the field at `at`."""
    size_bytes, at = read_varint(view, at)
    if size_bytes < 0:
        return at, -1, at
    if at + size_bytes > end:
        raise InvalidRecord("a field extends beyond its record")
    return at, size_bytes, at + size_bytes


_FindFields = Callable[[Any, int, int, int, Table, int], None]
_find_fields: Final[_FindFields] = compiled_find_fields if IS_COMPILED else python_find_fields
_find_headers: Final = compiled_find_headers if IS_COMPILED else python_find_headers
