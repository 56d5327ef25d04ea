"""Numbers between numpy and Arrow, by their buffers.

`pa.array` and `Array.to_numpy` import pandas where it is installed, which takes a process longer
than everything else that it needs to read and write records.
"""

from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)

_BIT_ORDER: Final = "little"  # of validity bits and booleans


def array_of(
    values: NDArray[np.number],
    *,
    kind: pa.DataType | None = None,
    is_null: NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Numbers as an Arrow array of `kind`, which has their width; by default of their own type."""
    kind = kind or pa.from_numpy_dtype(values.dtype)
    valid = None if is_null is None else _bits(~is_null)
    content = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [valid, content])


def booleans_of(values: NDArray[np.bool_]) -> pa.Array:
    """Booleans as an Arrow array."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def repeated_text(text: str, count: int) -> pa.Array:
    """An Arrow array that has the text in every row."""
    content = text.encode()
    row = pa.Array.from_buffers(
        pa.string(),
        1,
        [None, pa.py_buffer(np.array([0, len(content)], np.int32)), pa.py_buffer(content)],
    )
    return pa.repeat(row[0], count)


def numbers_of(column: pa.Array, dtype: type[Number]) -> NDArray[Number]:
    """The numbers of an Arrow array, whose width `dtype` has; anything where it is null."""
    _, content = column.buffers()
    if content is None:
        return np.zeros(len(column), dtype)
    return np.frombuffer(content, dtype)[column.offset : column.offset + len(column)]


def validity_of(column: pa.Array) -> NDArray[np.bool_]:
    """False for each row that is null."""
    valid = column.buffers()[0]
    if valid is None:
        return np.full(len(column), not column.null_count)
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder=_BIT_ORDER)
    return bits[column.offset : column.offset + len(column)].astype(np.bool_)


def _bits(values: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder=_BIT_ORDER))
