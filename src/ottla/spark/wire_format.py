"""Confluent's wire format: a zero byte, the id of a schema, then the value."""

import struct
from typing import Final

import pyarrow as pa

from ottla.spark.typed_values import TypedValues

_HEADER: Final = struct.Struct(">bI")
HEADER_BYTES: Final = _HEADER.size
_MAGIC: Final = 0
_END: Final = 2**31 - 1
NO_ID: Final = "the value has no schema id in front"


def header_of(schema_id: int) -> bytes:
    """The bytes in front of a value of this schema."""
    return _HEADER.pack(_MAGIC, schema_id)


def read_header(value: bytes) -> int | None:
    """The schema id in front of a value; None if there is none."""
    if len(value) < HEADER_BYTES:
        return None
    magic, schema_id = _HEADER.unpack_from(value)
    return int(schema_id) if magic == _MAGIC else None


def without_headers(values: pa.Array) -> TypedValues:
    """The texts behind the headers, with a problem for each value without one."""
    import pyarrow.compute as pc  # noqa: PLC0415  # slow to load

    has_header = pc.and_(
        pc.greater_equal(pc.binary_length(values), HEADER_BYTES),
        pc.equal(pc.binary_slice(values, 0, 1), pa.scalar(bytes([_MAGIC]))),
    )
    is_good = pc.fill_null(has_header, False)
    # To a fixed end: Arrow fails to slice short values to their own (Negative buffer resize).
    payloads = pc.if_else(is_good, pc.binary_slice(values, HEADER_BYTES, _END), None)
    # Bytes of JSON as a string, unchecked: Spark reads them as it reads any.
    texts = pa.Array.from_buffers(
        pa.string(), len(payloads), payloads.buffers(), payloads.null_count, payloads.offset
    )
    is_bad = pc.and_(values.is_valid(), pc.invert(is_good))
    return TypedValues(texts, pc.if_else(is_bad, pa.scalar(NO_ID), None).cast(pa.string()))
