"""Records packed for a batch in bulk, by the compiled kernel or in Python.

The inverse of `kernel_read`: a table has the positions of keys, values and headers, one row for
each `PackField` and one column for each record. A key or a value that is null has a size of -1;
headers are encoded already, and a size of 0 means none.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ottla.client.partitioner import murmur2
from ottla.protocol.primitives import write_varint
from ottla.spark.kernel import IS_COMPILED, kernel
from ottla.spark.kernel_read import Source, Table

OVERHEAD_BYTES_MAX: Final = 23  # length, attributes, two deltas, two sizes, no headers

Hashes = NDArray[np.uint32]


class PackField(IntEnum):
    """The rows of the table of records to pack."""

    KEY_AT = 0
    KEY_BYTES = 1
    VALUE_AT = 2
    VALUE_BYTES = 3
    HEADERS_AT = 4
    HEADERS_BYTES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSources:
    """Buffers with keys, values and headers, and the table of positions in them."""

    keys: Source
    values: Source
    headers: Source
    table: Table

    @property
    def record_bytes_max(self) -> NDArray[np.int64]:
        """An upper bound of the packed size of each record."""
        sizes = self.table[[PackField.KEY_BYTES, PackField.VALUE_BYTES, PackField.HEADERS_BYTES]]
        bound: NDArray[np.int64] = np.maximum(sizes, 0).sum(axis=0) + OVERHEAD_BYTES_MAX
        return bound


def pack_records(sources: PackSources, rows: Table) -> memoryview:
    """The records of these rows, packed in order; their timestamp delta is 0."""
    return _pack_records(sources, rows)


def hash_keys(sources: PackSources) -> Hashes:
    """The murmur2 hash of each key, which chooses its partition; 0 for null keys."""
    return _hash_keys(sources)


# The compiled kernel


def compiled_pack_records(sources: PackSources, rows: Table) -> memoryview:
    """`pack_records` in C."""
    out = np.empty(int(sources.record_bytes_max[rows].sum()), np.uint8)
    size_bytes = kernel.pack_records(
        sources.keys,
        sources.values,
        sources.headers,
        sources.table,
        sources.table.shape[1],
        np.ascontiguousarray(rows),
        out,
    )
    return out.data[:size_bytes]


def compiled_hash_keys(sources: PackSources) -> Hashes:
    """`hash_keys` in C."""
    out = np.zeros(sources.table.shape[1], np.uint32)
    kernel.hash_keys(
        sources.keys, sources.table[PackField.KEY_AT], sources.table[PackField.KEY_BYTES], out
    )
    return out


# The Python fallback


def python_pack_records(sources: PackSources, rows: Table) -> memoryview:
    """`pack_records` in Python."""
    keys, values = memoryview(sources.keys), memoryview(sources.values)
    headers = memoryview(sources.headers)
    out = bytearray()
    for delta, positions in enumerate(sources.table[:, rows].T.tolist()):
        key_at, key_bytes, value_at, value_bytes, headers_at, headers_bytes = positions
        body = bytearray(2)  # unused attributes and timestamp delta 0
        write_varint(body, delta)
        _write_piece(body, keys, key_at, key_bytes)
        _write_piece(body, values, value_at, value_bytes)
        body += headers[headers_at : headers_at + headers_bytes] if headers_bytes > 0 else b"\0"
        write_varint(out, len(body))
        out += body
    return memoryview(out)


def _write_piece(out: bytearray, source: memoryview, at: int, size_bytes: int) -> None:
    write_varint(out, max(size_bytes, -1))
    if size_bytes > 0:
        out += source[at : at + size_bytes]


def python_hash_keys(sources: PackSources) -> Hashes:
    """`hash_keys` in Python."""
    keys = memoryview(sources.keys)
    positions = zip(
        sources.table[PackField.KEY_AT].tolist(),
        sources.table[PackField.KEY_BYTES].tolist(),
        strict=True,
    )
    return np.array(
        [murmur2(bytes(keys[at : at + size])) if size >= 0 else 0 for at, size in positions],
        np.uint32,
    )


_pack_records: Final = compiled_pack_records if IS_COMPILED else python_pack_records
_hash_keys: Final = compiled_hash_keys if IS_COMPILED else python_hash_keys
