"""Parses JSON values into typed columns in bulk, and reports those that cannot be parsed."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ottla.spark.typed_values import TypedValues, parse_by_bisection

_NUMBER, _VALUE = "n", "v"
_MARGIN_BYTES = 1 << 16


def parse_json(values: pa.Array, value_type: pa.DataType) -> TypedValues:
    """Values as `value_type`. Unknown fields are ignored, missing ones are null."""
    return parse_by_bisection(values, value_type, lambda part: _parse_all(part, value_type))


def _parse_all(values: pa.Array, value_type: pa.DataType) -> pa.Array:
    """All values; raises `ArrowInvalid` if any cannot be parsed.

    Each is put into an object with its number: a value with two objects, or none, cannot shift
    those after it.
    """
    if not len(values):
        return pa.nulls(0, value_type)
    numbers = pa.array(range(len(values)), pa.int32())
    heads = pc.binary_join_element_wise(
        pa.scalar(f'{{"{_NUMBER}":'), numbers.cast(pa.string()), pa.scalar(f',"{_VALUE}":'), ""
    ).cast(pa.binary())
    texts = values.fill_null(b"null")
    lines = pc.binary_join_element_wise(heads, texts, pa.scalar(b"}\n"), pa.scalar(b""))
    joined = lines.buffers()[2]
    schema = pa.schema([(_NUMBER, pa.int32()), (_VALUE, value_type)])
    table = pj.read_json(
        pa.BufferReader(joined),
        read_options=pj.ReadOptions(use_threads=False, block_size=joined.size + _MARGIN_BYTES),
        parse_options=pj.ParseOptions(
            explicit_schema=schema,
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        ),
    )
    if not table.column(_NUMBER).combine_chunks().equals(numbers):
        raise pa.ArrowInvalid("values and lines do not match")
    parsed = table.column(_VALUE).combine_chunks()
    return parsed if isinstance(parsed, pa.Array) else parsed.chunk(0)
