"""Where the fields of many records lie, found in bulk: by a compiled kernel, or by its plain twin.

The table that is filled has one row for each `Field` and one column for each record, so that a
field of all records is one contiguous array. Positions count bytes of `source`. A key or a value
that is null has a size of -1. What a record says of its own place is relative to its batch.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ottla.errors import InvalidRecord, ProtocolViolation
from ottla.protocol.primitives import Buffer, read_varint, read_varlong

try:
    from ottla.spark import _kernel
except ImportError:  # it was installed where nothing could be compiled
    _kernel = None  # type: ignore[assignment]

IS_COMPILED: Final = _kernel is not None
RECORD_BYTES_MIN: Final = 7  # length, attributes, two deltas, two sizes, header count

Table = NDArray[np.int64]
Source = Buffer


class Field(IntEnum):
    """The rows of the table of records."""

    TIMESTAMP = 0
    OFFSET = 1
    KEY_AT = 2
    KEY_BYTES = 3
    VALUE_AT = 4
    VALUE_BYTES = 5
    HEADERS_AT = 6  # behind the count
    HEADER_COUNT = 7


class HeaderField(IntEnum):
    """The rows of the table of record headers."""

    NAME_AT = 0
    NAME_BYTES = 1
    CONTENT_AT = 2
    CONTENT_BYTES = 3


def table_of(fields: type[IntEnum], room: int) -> Table:
    """A table with room for this many records or headers."""
    return np.empty((len(fields), room), np.int64)


def find_fields(
    source: Source, start: int, end: int, count: int, table: Table, column: int
) -> None:
    """Fill `table` from `column` on with the records that lie in `source[start:end]`.

    They must be exactly `count`, each of them whole, else `InvalidRecord`.
    """
    _find_fields(source, start, end, count, table, column)


def find_headers(source: Source, ats: Table, counts: Table) -> Table:
    """The table of the headers of every record in turn; `find_fields` has found them sound."""
    return _find_headers(source, ats, counts)


# The compiled kernel


def compiled_find_fields(
    source: Source, start: int, end: int, count: int, table: Table, column: int
) -> None:
    """`find_fields` in C: about 15 ns for a record."""
    try:
        _kernel.find_fields(source, start, end, count, table, column, table.shape[1])
    except ValueError as problem:
        raise InvalidRecord(str(problem)) from None


def compiled_find_headers(source: Source, ats: Table, counts: Table) -> Table:
    """`find_headers` in C."""
    table = table_of(HeaderField, int(counts.sum()))
    _kernel.find_headers(
        source,
        np.ascontiguousarray(ats),
        np.ascontiguousarray(counts),
        table,
        table.shape[1],
    )
    return table


# Its plain twin


def python_find_fields(
    source: Source, start: int, end: int, count: int, table: Table, column: int
) -> None:
    """`find_fields` in Python: about 3 µs for a record."""
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
        raise InvalidRecord("bytes are left over behind the last record")
    if rows:
        table[:, column : column + count] = np.array(rows, np.int64).T


def _find_record(records: memoryview, at: int) -> tuple[tuple[int, ...], int]:
    size_bytes, at = read_varint(records, at)
    end = at + size_bytes
    if size_bytes < 0 or end > len(records):
        raise InvalidRecord(f"a record of {size_bytes} bytes does not fit into its batch")
    timestamp_delta, at = read_varlong(records, at + 1)  # behind unused attributes
    offset_delta, at = read_varint(records, at)
    key_at, key_bytes, at = _skip_field(records, at, end)
    value_at, value_bytes, at = _skip_field(records, at, end)
    header_count, headers_at = read_varint(records, at)
    if header_count < 0:
        raise InvalidRecord("a record with less than no headers")
    at = headers_at
    for _ in range(header_count):
        _, name_bytes, at = _skip_field(records, at, end)
        if name_bytes < 0:
            raise InvalidRecord("a record header without a name")
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
        place = at
        for _ in range(count):
            name_at, name_bytes, place = _skip_field(view, place, len(view))
            content_at, content_bytes, place = _skip_field(view, place, len(view))
            rows.append((name_at, name_bytes, content_at, content_bytes))
    return np.array(rows, np.int64).reshape(-1, len(HeaderField)).T


def _skip_field(view: memoryview, at: int, end: int) -> tuple[int, int, int]:
    """Where a field begins, its size, and where it ends."""
    size_bytes, at = read_varint(view, at)
    if size_bytes < 0:
        return at, -1, at
    if at + size_bytes > end:
        raise InvalidRecord("a field reaches beyond its record")
    return at, size_bytes, at + size_bytes


_FindFields = Callable[[Any, int, int, int, Table, int], None]
_find_fields: Final[_FindFields] = compiled_find_fields if IS_COMPILED else python_find_fields
_find_headers: Final = compiled_find_headers if IS_COMPILED else python_find_headers
