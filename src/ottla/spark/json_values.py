"""Values that are JSON become typed columns in bulk; what cannot be read is told apart."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

_NUMBER, _VALUE = "n", "v"
_MARGIN_BYTES = 1 << 16


def parse_json(values: pa.Array, value_type: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Values as `value_type`, and which of them could not be read (their place is null).

    Fields that the type does not have are passed over, those that are missing are null.
    """
    try:
        return _parse_all(values, value_type), pa.repeat(pa.scalar(False), len(values))
    except pa.ArrowInvalid:
        if len(values) == 1:
            return pa.nulls(1, value_type), pa.array([True])
    # Halves until the bad ones are alone: the good ones stay with many others.
    half = len(values) // 2
    parts = [parse_json(part, value_type) for part in (values[:half], values[half:])]
    return (
        pa.concat_arrays([parsed for parsed, _ in parts]),
        pa.concat_arrays([is_bad for _, is_bad in parts]),
    )


def _parse_all(values: pa.Array, value_type: pa.DataType) -> pa.Array:
    """Every value, or `ArrowInvalid`.

    Each is put into an object with its number: a value that holds two objects, or none, cannot
    shift those behind it.
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
