"""The content of a batch: its row count and a digest independent of tasks and order.

The digest is the sum of a 64-bit hash of every row. A batch that Spark runs again has the same
rows, but may have them in other tasks and in another order: the sum is the same. It detects
accidental differences; it is no protection against an attacker.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ottla.protocol.primitives import Buffer
from ottla.spark.arrow_numpy import numbers_of, validity_of
from ottla.spark.kernel import IS_COMPILED, kernel

_MASK: Final = 2**64 - 1
_MULTIPLIER: Final = 0x9E3779B97F4A7C15
_WORD_BYTES: Final = 8
_NUMBERS: Final = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}

Hashes = NDArray[np.uint64]
Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Content:
    """A row count and the sum of the hashes of these rows."""

    rows: int = 0
    digest: int = 0

    def __add__(self, other: "Content") -> "Content":
        return Content(self.rows + other.rows, (self.digest + other.digest) & _MASK)


NO_ROWS: Final = Content()


def sum_contents(contents: Iterable[Content]) -> Content:
    """The content of all of them together."""
    return sum(contents, start=NO_ROWS)


def content_of(batch: pa.RecordBatch) -> Content:
    """The content of an Arrow batch; a column of nulls counts as absent."""
    rows: Hashes = np.zeros(batch.num_rows, np.uint64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        rows += _mix(_hashes_of(column) ^ np.uint64(hash_of_bytes(name.encode()))) * _validity(
            column
        )
    return Content(batch.num_rows, int(_mix(rows).sum(dtype=np.uint64)))


# Hashes of columns: one number for each row, 0 for null


def _hashes_of(column: pa.Array) -> Hashes:
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint64)
    if pa.types.is_dictionary(kind):
        return _hashes_of(column.dictionary_decode())
    if pa.types.is_map(kind):
        pair = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return _hashes_of(column.cast(pa.list_(pair)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_lists(column) * _validity(column)
    if pa.types.is_struct(kind):
        return _of_structs(column) * _validity(column)
    if pa.types.is_boolean(kind):
        return _hashes_of(column.cast(pa.uint8()))
    if kind.id in _VARIABLE:
        return _of_bytes(column)
    return _of_fixed(column) * _validity(column)


_VARIABLE: Final = {
    kind.id for kind in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
}


def _of_bytes(column: pa.Array) -> Hashes:
    is_large = column.type in (pa.large_binary(), pa.large_string())
    _, offsets, content = column.buffers()
    edges = np.frombuffer(offsets, np.int64 if is_large else np.int32)
    edges = edges[column.offset : column.offset + len(column) + 1].astype(np.int64)
    sizes = np.diff(edges)
    if column.null_count:
        sizes[_validity(column) == 0] = -1
    source: Buffer = b"" if content is None else memoryview(content)
    return hash_bytes(source, np.ascontiguousarray(edges[:-1]), sizes)


def _of_fixed(column: pa.Array) -> Hashes:
    """Hashes of fixed-width values: numbers, dates, times, decimals."""
    bits = column.type.bit_width
    _, content = column.buffers()
    if content is None:
        return np.zeros(len(column), np.uint64)
    number = _NUMBERS.get(bits)
    if number is not None:
        values = np.frombuffer(content, number)[column.offset : column.offset + len(column)]
        return _mix(values.astype(np.uint64) + np.uint64(1))
    size = bits // 8
    ats = (np.arange(len(column), dtype=np.int64) + column.offset) * size
    return hash_bytes(memoryview(content), ats, np.full(len(column), size, np.int64))


def _of_structs(column: pa.Array) -> Hashes:
    rows: Hashes = np.full(len(column), _MULTIPLIER, np.uint64)
    for number, child in enumerate(column.flatten(), start=1):
        rows += _mix(_hashes_of(child) + np.uint64(number)) * _validity(child)
    return _mix(rows)


def _of_lists(column: pa.Array) -> Hashes:
    """Hashes of lists; elements are hashed with their index, so that their order matters."""
    lengths = numbers_of(column.value_lengths().cast(pa.int64()), np.int64)
    lengths = np.where(validity_of(column), lengths, 0)
    ends = np.cumsum(lengths)
    elements = column.flatten()
    positions = np.arange(len(elements), dtype=np.int64) - np.repeat(ends - lengths, lengths)
    hashes = _mix(_hashes_of(elements) + _mix(positions.astype(np.uint64) + np.uint64(1)))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    return _mix(sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64) + np.uint64(1))


def _validity(column: pa.Array) -> Hashes:
    """1 for each row with a value, 0 for null."""
    if not column.null_count:
        return np.ones(len(column), np.uint64)
    return validity_of(column).astype(np.uint64)


def _mix(values: Hashes) -> Hashes:
    """The finalizer of splitmix64: every input bit affects every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


# Hashes of bytes, by the compiled kernel or in Python


def compiled_hash_bytes(source: Buffer, ats: Positions, sizes: Positions) -> Hashes:
    """The hash of each value in C; 0 for null values, whose size is -1."""
    out: Hashes = np.zeros(len(ats), np.uint64)
    kernel.hash_bytes(source, ats, sizes, out)
    return out


def python_hash_bytes(source: Buffer, ats: Positions, sizes: Positions) -> Hashes:
    """`compiled_hash_bytes` in Python."""
    view = memoryview(source)
    positions = zip(ats.tolist(), sizes.tolist(), strict=True)
    return np.array(
        [hash_of_bytes(bytes(view[at : at + size])) if size >= 0 else 0 for at, size in positions],
        np.uint64,
    )


def hash_of_bytes(data: bytes) -> int:
    """A 64-bit hash of bytes, computed eight bytes at a time."""
    value = (len(data) + 1) * _MULTIPLIER & _MASK
    whole = len(data) - len(data) % _WORD_BYTES
    for at in range(0, whole, _WORD_BYTES):
        word = int.from_bytes(data[at : at + _WORD_BYTES], "little")
        value = (value ^ word) * _MULTIPLIER & _MASK
        value ^= value >> 32
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


hash_bytes: Final = compiled_hash_bytes if IS_COMPILED else python_hash_bytes
