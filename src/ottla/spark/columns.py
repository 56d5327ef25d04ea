"""The columns of `format("ottla")`: those of Spark's Kafka connector, optionally typed values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ottla.spark.avro_values import parse_avro, plain_reader, read_schema
from ottla.spark.column_options import BadRows, ColumnOptions, ValueFormat
from ottla.spark.dead_letters import CORRUPT
from ottla.spark.decode import COLUMNS, HEADERS_TYPE, TIMESTAMP_TYPE, LocatedRecords
from ottla.spark.option_reader import OptionRefused
from ottla.spark.registry import avro_reader_of, read_protobuf
from ottla.spark.typed_values import TypedValues
from ottla.spark.wire_format import without_headers

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
    """The schema that the options give, as Spark's DDL."""
    columns = [
        "key BINARY",
        f"value {_value_type(options)}",
        "topic STRING",
        "partition INT",
        "offset BIGINT",
        "timestamp TIMESTAMP",
        "timestampType INT",
    ]
    if options.include_headers:
        columns.append("headers ARRAY<STRUCT<key: STRING, value: BINARY>>")
    if options.is_typed and options.bad_rows is BadRows.NULL:
        columns.append(f"{CORRUPT} BINARY")
    return ", ".join(columns)


def _value_type(options: ColumnOptions) -> str:
    match options.value_format:
        case ValueFormat.BINARY:
            return "BINARY"
        case ValueFormat.STRING | ValueFormat.JSON:
            return "STRING"
        case ValueFormat.AVRO:
            return read_schema(options.value_schema or "").ddl
        case ValueFormat.PROTOBUF:
            return read_protobuf(options.value_schema or "").type.ddl


@dataclass(frozen=True, slots=True)
class ProjectedRows:
    """Records as a batch for Spark; `problems` are of values that could not be parsed."""

    batch: pa.RecordBatch
    problems: pa.Array | None = None  # of text, null where there is none; None if there are none


@dataclass(frozen=True, slots=True)
class Projection:
    """The requested columns, and how they are made from records."""

    schema: pa.Schema
    options: ColumnOptions

    def __post_init__(self) -> None:
        for field in self.schema:
            _check_field(field)

    def project(self, rows: LocatedRecords) -> ProjectedRows:
        """The requested columns of these records."""
        made, problems = dict[str, pa.Array](), None
        if "value" in self.schema.names or CORRUPT in self.schema.names:
            made, problems = self._values(COLUMNS["value"](rows))
        arrays = [
            made[field.name] if field.name in made else _column(field, rows)
            for field in self.schema
        ]
        if not arrays:  # count() needs rows and no columns
            return ProjectedRows(
                pa.RecordBatch.from_struct_array(pa.nulls(len(rows), pa.struct([])))
            )
        return ProjectedRows(pa.RecordBatch.from_arrays(arrays, schema=self.schema), problems)

    def _values(self, raw: pa.Array) -> tuple[dict[str, pa.Array], pa.Array | None]:
        at = self.schema.get_field_index("value")
        value_type = raw.type if at < 0 else self.schema.field(at).type
        nothing = pa.nulls(len(raw), pa.binary())
        if value_type == pa.binary():
            return {"value": raw, CORRUPT: nothing}, None
        if value_type == pa.string() and self.options.value_format is not ValueFormat.JSON:
            return {"value": _as_text(raw), CORRUPT: nothing}, None
        found = self._typed(raw, value_type)
        if not found.has_problems:
            return {"value": found.typed, CORRUPT: nothing}, None
        import pyarrow.compute as pc  # noqa: PLC0415  # slow to load, and seldom needed

        corrupt = pc.if_else(found.problems.is_valid(), raw, nothing)
        return {"value": found.typed, CORRUPT: corrupt}, found.problems

    def _typed(self, raw: pa.Array, value_type: pa.DataType) -> TypedValues:
        schema, registry = self.options.value_schema or "", self.options.registry
        if self.options.value_format is ValueFormat.JSON:
            return without_headers(raw)
        if self.options.value_format is ValueFormat.PROTOBUF:
            return read_protobuf(schema).parse(raw, value_type)
        if registry is None:
            return parse_avro(raw, value_type, plain_reader(schema))
        return parse_avro(raw, value_type, avro_reader_of(schema, registry))


def projection_of(schema: StructType, options: ColumnOptions) -> Projection:
    """The projection for the schema that Spark passes: the default, or the user's."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    if "value" in arrow.names and pa.types.is_struct(arrow.field("value").type):
        _check_fields(arrow.field("value").type, struct_of(options))
    return Projection(arrow, options)


def struct_of(options: ColumnOptions) -> pa.StructType:
    """The fields of values by their schema; `OptionRefused` where values have no fields."""
    if options.value_format is ValueFormat.AVRO:
        return read_schema(options.value_schema or "").arrow
    if options.value_format is ValueFormat.PROTOBUF:
        return read_protobuf(options.value_schema or "").type.arrow
    raise OptionRefused(
        "value can be a STRUCT with valueFormat=avro or protobuf; JSON is parsed by Spark:"
        " ottla.spark.with_json_values(records, 'id BIGINT')"
    )


def _check_fields(value_type: pa.StructType, known: pa.StructType) -> None:
    """Refuse fields that the schema does not have with this type; any subset is allowed."""
    theirs = {field.name: field.type for field in known}
    for field in value_type:
        if theirs.get(field.name) != field.type:
            raise OptionRefused(
                f"value.{field.name} is {theirs.get(field.name, 'no field')} in valueSchema,"
                f" not {field.type}"
            )


def _check_field(field: pa.Field) -> None:
    if field.name == "value":
        if field.type in (pa.binary(), pa.string()) or pa.types.is_struct(field.type):
            return
        raise OptionRefused(
            f"value can be BINARY, STRING or (Avro, Protobuf) a STRUCT, not {field.type}"
        )
    if field.name not in _TYPES:
        known = ", ".join(["value", *_TYPES])
        raise OptionRefused(f"there is no column {field.name}; the columns are {known}")
    if field.type not in _TYPES[field.name]:
        expected = " or ".join(map(str, _TYPES[field.name]))
        raise OptionRefused(f"{field.name} is {expected}, not {field.type}")


def _column(field: pa.Field, rows: LocatedRecords) -> pa.Array:
    made = COLUMNS[field.name](rows)
    return _as_text(made) if made.type == pa.binary() and field.type == pa.string() else made


def _as_text(raw: pa.Array) -> pa.Array:
    """The same bytes as strings, unchecked, as `CAST(value AS STRING)` does."""
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers(), raw.null_count, raw.offset)
