"""Encodes Arrow columns to packed records in bulk: no Python object per record without headers.

The inverse of `decode`: Arrow's own offsets give the positions of keys and values, rows are sorted
by partition, and `kernel_write` packs them.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ottla.client.partitioner import Partitioner
from ottla.model import TimestampMs, TopicPartition
from ottla.protocol.primitives import write_varint
from ottla.records.batch import Packed
from ottla.spark.arrow_numpy import numbers_of, validity_of
from ottla.spark.kernel_read import Source, Table
from ottla.spark.kernel_write import Hashes, PackField, PackSources, hash_keys, pack_records

BATCH_BYTES_MAX: Final = 512 << 10  # before compression; below every broker's default limit
_POSITIVE: Final = np.uint32(0x7FFFFFFF)

Routes = dict[TopicPartition, list[Packed]]


class RowRefused(ValueError):
    """A row that cannot become a record."""


def rows_by_topic(batch: pa.RecordBatch, topic: str | None) -> dict[str, Table]:
    """Rows by topic: all to `topic` if given, else by the column `topic`."""
    if topic is not None:
        return {topic: np.arange(batch.num_rows)}
    column = batch.column("topic")
    if column.null_count:
        raise RowRefused("a row has no topic: its column `topic` is null")
    distinct = column.dictionary_encode()
    numbers = numbers_of(distinct.indices, np.int32)
    return {
        name: np.flatnonzero(numbers == number)
        for number, name in enumerate(distinct.dictionary.to_pylist())
    }


def encode(
    batch: pa.RecordBatch,
    rows_of: Mapping[str, Table],
    partitioners: Mapping[str, Partitioner],
    now_ms: TimestampMs,
) -> Routes:
    """Every row packed for its partition, in row order."""
    sources = _sources_of(batch)
    bounds = sources.record_bytes_max
    hashes, has_key = hash_keys(sources), sources.table[PackField.KEY_BYTES] >= 0
    routes: Routes = {}
    for topic, rows in rows_of.items():
        partitions = _partitions_of(batch, rows, hashes, has_key, topic, partitioners[topic])
        for partition, chosen in _by_partition(partitions):
            tp = TopicPartition(topic, partition)
            routes[tp] = [
                Packed(
                    payload=pack_records(sources, some),
                    record_count=len(some),
                    base_timestamp_ms=now_ms,
                    max_timestamp_ms=now_ms,
                )
                for some in _pieces(rows[chosen], bounds)
            ]
    packed = sum(one.record_count for packs in routes.values() for one in packs)
    assert packed == sum(map(len, rows_of.values())), "a record for each row"
    return routes


# Partitions of rows


def _partitions_of(
    batch: pa.RecordBatch,
    rows: Table,
    hashes: Hashes,
    has_key: NDArray[np.bool_],
    topic: str,
    partitioner: Partitioner,
) -> NDArray[np.int64]:
    """The partition of each of these rows of a topic."""
    by_key = (hashes[rows] & _POSITIVE) % np.uint32(partitioner.partition_count)
    chosen = np.where(has_key[rows], by_key, partitioner.choose(None))
    if "partition" not in batch.schema.names:
        return chosen
    column = batch.column("partition")
    given, is_given = numbers_of(column, np.int32)[rows], validity_of(column)[rows]
    wrong = is_given & ((given < 0) | (given >= partitioner.partition_count))
    if wrong.any():
        raise RowRefused(f"topic {topic} has no partition {given[wrong][0]}")
    return np.where(is_given, given, chosen)


def _by_partition(partitions: NDArray[np.int64]) -> Iterator[tuple[int, Table]]:
    """Each partition with the indexes of its rows, in order."""
    order = np.argsort(partitions, kind="stable")
    sorted_ = partitions[order]
    edges = np.flatnonzero(np.diff(sorted_, prepend=-1, append=-1))
    for start, end in pairwise(edges.tolist()):
        yield int(sorted_[start]), order[start:end]


def _pieces(rows: Table, record_bytes_max: NDArray[np.int64]) -> Iterator[Table]:
    """Rows for batches of at most `BATCH_BYTES_MAX`; a larger record gets its own batch."""
    ends = np.cumsum(record_bytes_max[rows])
    start = taken_bytes = 0
    while start < len(rows):
        end = int(np.searchsorted(ends, taken_bytes + BATCH_BYTES_MAX, "right"))
        end = max(end, start + 1)
        yield rows[start:end]
        start, taken_bytes = end, int(ends[end - 1])


# Content of rows


def _sources_of(batch: pa.RecordBatch) -> PackSources:
    table: Table = np.zeros((len(PackField), batch.num_rows), np.int64)
    table[PackField.KEY_BYTES] = -1
    names = batch.schema.names
    keys: Source = b""
    if "key" in names:
        keys = _locate(batch.column("key"), table[PackField.KEY_AT], table[PackField.KEY_BYTES])
    values = _locate(batch.column("value"), table[PackField.VALUE_AT], table[PackField.VALUE_BYTES])
    headers: Source = b""
    if "headers" in names:
        column = batch.column("headers")
        headers = _encode_headers(
            column, table[PackField.HEADERS_AT], table[PackField.HEADERS_BYTES]
        )
    return PackSources(keys=keys, values=values, headers=headers, table=table)


def _locate(column: pa.Array, ats: Table, sizes: Table) -> Source:
    """Fill in positions and sizes of a column's values; returns the buffer that they refer to."""
    is_large = column.type in (pa.large_binary(), pa.large_string())
    _, offsets, content = column.buffers()
    edges = np.frombuffer(offsets, np.int64 if is_large else np.int32)
    edges = edges[column.offset : column.offset + len(column) + 1]
    ats[:] = edges[:-1]
    sizes[:] = np.diff(edges)
    if column.null_count:
        sizes[~validity_of(column)] = -1
    return b"" if content is None else memoryview(content)


def _encode_headers(column: pa.Array, ats: Table, sizes: Table) -> bytes:
    """Headers of every row as encoded in records; few records have any, so not in bulk."""
    out = bytearray()
    for row, headers in enumerate(column.to_pylist()):
        if headers:
            start = len(out)
            _write_headers(out, headers)
            ats[row], sizes[row] = start, len(out) - start
    return bytes(out)


def _write_headers(out: bytearray, headers: list[dict[str, Any]]) -> None:
    write_varint(out, len(headers))
    for header in headers:
        if header is None or header["key"] is None:
            raise RowRefused("a header has no key")
        name = header["key"].encode()
        write_varint(out, len(name))
        out += name
        content = header["value"]
        write_varint(out, -1 if content is None else len(content))
        out += content or b""
