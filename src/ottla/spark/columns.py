"""The columns of `format("ottla")`: those of Spark's Kafka connector, typed values if asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ottla.spark.decode import COLUMNS, HEADERS_TYPE, TIMESTAMP_TYPE, Located
from ottla.spark.json_values import parse_json
from ottla.spark.options import ColumnOptions, OptionRefused, ValueFormat

CORRUPT: Final = "_corrupt"  # the bytes of a value that could not be read
_TYPES: Final[Mapping[str, tuple[pa.DataType, ...]]] = {
    "key": (pa.binary(), pa.string()),
    "topic": (pa.string(),),
    "partition": (pa.int32(),),
    "offset": (pa.int64(),),
    "timestamp": (TIMESTAMP_TYPE,),
    "timestampType": (pa.int32(),),
    "headers": (HEADERS_TYPE,),
    CORRUPT: (pa.binary(),),
}


def ddl_of(options: ColumnOptions) -> str:
    """The schema that the options give, in Spark's words."""
    value = {
        ValueFormat.BINARY: "value BINARY",
        ValueFormat.STRING: "value STRING",
        ValueFormat.JSON: f"value STRUCT<{options.value_schema}>",
    }[options.value_format]
    columns = [
        "key BINARY",
        value,
        "topic STRING",
        "partition INT",
        "offset BIGINT",
        "timestamp TIMESTAMP",
        "timestampType INT",
    ]
    if options.include_headers:
        columns.append("headers ARRAY<STRUCT<key: STRING, value: BINARY>>")
    if options.value_format is ValueFormat.JSON:
        columns.append(f"{CORRUPT} BINARY")
    return ", ".join(columns)


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns that are wanted, and how they are made of records."""

    schema: pa.Schema

    def __post_init__(self) -> None:
        for field in self.schema:
            _check_field(field)

    def batch_of(self, rows: Located) -> pa.RecordBatch:
        """All wanted columns of these records."""
        made = dict[str, pa.Array]()
        if "value" in self.schema.names or CORRUPT in self.schema.names:
            made |= self._values(COLUMNS["value"](rows))
        arrays = [
            made[field.name] if field.name in made else _column(field, rows)
            for field in self.schema
        ]
        if not arrays:  # a count needs rows, and no columns
            return pa.RecordBatch.from_struct_array(pa.nulls(len(rows), pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _values(self, raw: pa.Array) -> dict[str, pa.Array]:
        at = self.schema.get_field_index("value")
        value_type = raw.type if at < 0 else self.schema.field(at).type
        if value_type == pa.binary():
            return {"value": raw, CORRUPT: pa.nulls(len(raw), pa.binary())}
        if value_type == pa.string():
            return {"value": _as_text(raw), CORRUPT: pa.nulls(len(raw), pa.binary())}
        parsed, is_bad = parse_json(raw, value_type)
        nothing = pa.nulls(len(raw), pa.binary())
        return {"value": parsed, CORRUPT: pc.if_else(is_bad, raw, nothing)}


def projection_of(schema: StructType) -> Projection:
    """Read the schema that Spark passes: ours, or one that a user gave."""
    return Projection(to_arrow_schema(schema, timezone="UTC"))


def _check_field(field: pa.Field) -> None:
    if field.name == "value":
        if field.type in (pa.binary(), pa.string()) or pa.types.is_struct(field.type):
            return
        raise OptionRefused(f"value can be BINARY, STRING or (JSON) a STRUCT, not {field.type}")
    if field.name not in _TYPES:
        known = ", ".join(["value", *_TYPES])
        raise OptionRefused(f"there is no column {field.name}; there are {known}")
    if field.type not in _TYPES[field.name]:
        expected = " or ".join(map(str, _TYPES[field.name]))
        raise OptionRefused(f"{field.name} is {expected}, not {field.type}")


def _column(field: pa.Field, rows: Located) -> pa.Array:
    made = COLUMNS[field.name](rows)
    return _as_text(made) if made.type == pa.binary() and field.type == pa.string() else made


def _as_text(raw: pa.Array) -> pa.Array:
    """The same bytes called text, as `CAST(value AS STRING)` does: nothing is checked."""
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers(), raw.null_count, raw.offset)
