"""Rows as Parquet files, written by tasks of `format("ottla-delta")`.

Readers see a file once a commit adds it to a table: values of partition columns are in the commit
and not in the file, so all files are in one directory, under random names.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ottla.spark.arrow_numpy import array_of

ROW_GROUP_BYTES: Final = 32 << 20  # in memory; smaller on disk
OPEN_FILES_MAX: Final = 32  # by one task: rows sorted by date need one or two
_PARTITION_TYPES: Final = (
    pa.string(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.date32(),
    pa.bool_(),
)

PartitionValues = tuple[str | None, ...]  # in the order of the partition columns, as Delta has them
_PartitionValue = str | int | bool | date | None


class PartitionRefused(ValueError):
    """A column that a table cannot be partitioned by."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A whole Parquet file; `partition_values` are those of all its rows."""

    name: str
    size_bytes: int
    rows: int
    partition_values: PartitionValues


def check_partition_columns(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Refuse columns that a table cannot be partitioned by, before anything is written."""
    for column in columns:
        if column not in schema.names:
            raise PartitionRefused(
                f"partitionColumns: there is no column {column} in {', '.join(schema.names)}"
            )
        if schema.field(column).type not in _PARTITION_TYPES:
            raise PartitionRefused(
                f"partitionColumns: {column} is {schema.field(column).type}; tables are split by"
                " strings, whole numbers, dates and booleans, such as CAST(timestamp AS DATE)"
            )
    if len(columns) == len(schema.names):
        raise PartitionRefused("partitionColumns names every column: one has to remain for files")


def write_files(
    batches: Iterator[pa.RecordBatch],
    files: FileSystem,
    schema: pa.Schema,
    partition_columns: Sequence[str],
    new_name: Callable[[], str],
) -> list[DataFile]:
    """Write every row into a file of its partition values. Leaves no file when it fails."""
    done = list[DataFile]()
    open_files = dict[PartitionValues, _OpenFile]()
    in_files = pa.schema([field for field in schema if field.name not in partition_columns])
    try:
        for batch in batches:
            for values, rows in _split(batch.cast(schema), partition_columns):
                if values not in open_files:
                    if len(open_files) == OPEN_FILES_MAX:
                        oldest = open_files.pop(next(iter(open_files)))
                        done.append(oldest.close())
                    open_files[values] = _OpenFile(files, new_name(), in_files, values)
                open_files[values].write(rows)
        while open_files:
            _, file = open_files.popitem()
            done.append(file.close())
    except BaseException:
        for file in open_files.values():
            file.discard()
        remove_files(files, done)
        raise
    return done


def remove_files(files: FileSystem, unwanted: Sequence[DataFile]) -> None:
    """Delete files that no table will have."""
    for file in unwanted:
        _remove(files, file.name)


def _remove(files: FileSystem, name: str) -> None:
    with suppress(FileNotFoundError):
        files.delete_file(name)


class _OpenFile:
    """Owns a Parquet file while it is written; collects small batches into row groups."""

    def __init__(
        self, files: FileSystem, name: str, schema: pa.Schema, values: PartitionValues
    ) -> None:
        self._files = files
        self._name = name
        self._schema = schema
        self._values = values
        self._stream = files.open_output_stream(name)
        self._writer = pq.ParquetWriter(self._stream, schema, compression="zstd")
        self._waiting = list[pa.RecordBatch]()
        self._waiting_bytes = 0
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch.select(self._schema.names))
        self._waiting_bytes += batch.nbytes
        self._rows += batch.num_rows
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def close(self) -> DataFile:
        self._write_row_group()
        self._writer.close()
        size_bytes = self._stream.tell()
        self._stream.close()
        return DataFile(self._name, size_bytes, self._rows, self._values)

    def discard(self) -> None:
        self._writer.close()
        self._stream.close()
        _remove(self._files, self._name)

    def _write_row_group(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._waiting_bytes = [], 0


def _split(
    batch: pa.RecordBatch, columns: Sequence[str]
) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Rows by partition values, in order; none for an empty batch."""
    if not batch.num_rows:
        return
    if not columns:
        yield (), batch
        return
    rows_by_values = dict[tuple[_PartitionValue, ...], list[int]]()
    for row, values in enumerate(zip(*(batch[name].to_pylist() for name in columns), strict=True)):
        rows_by_values.setdefault(values, []).append(row)
    for values, rows in rows_by_values.items():
        yield tuple(map(_as_text, values)), batch.take(array_of(np.array(rows)))


def _as_text(value: _PartitionValue) -> str | None:
    """A partition value as Delta writes it; Delta reads an empty string as null."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case date():
            return value.isoformat()
        case _:
            return str(value)
