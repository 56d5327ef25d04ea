"""Avro values, each a record of one schema, as typed columns; and columns as Avro values.

A value has neither a schema nor the name of one, unless the id of one is in front of it (a schema
registry's): without an id, bytes of another schema are detected only if they do not fit.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from types import ModuleType
from typing import Any, Final

import pyarrow as pa

from ottla.spark.option_reader import OptionRefused
from ottla.spark.typed_values import TypedValues, parse_by_bisection
from ottla.spark.wire_format import HEADER_BYTES, NO_ID, read_header

AvroSchema = Any  # JSON: a name, an object, or a list of them

DECIMAL_DIGITS_MAX: Final = 38  # of Spark
_TIMESTAMP: Final = ("TIMESTAMP", pa.timestamp("us", tz="UTC"))
_LOCAL_TIMESTAMP: Final = ("TIMESTAMP_NTZ", pa.timestamp("us"))
_PRIMITIVES: Final = {
    "boolean": ("BOOLEAN", pa.bool_()),
    "int": ("INT", pa.int32()),
    "long": ("BIGINT", pa.int64()),
    "float": ("FLOAT", pa.float32()),
    "double": ("DOUBLE", pa.float64()),
    "bytes": ("BINARY", pa.binary()),
    "string": ("STRING", pa.string()),
}
# Logical types that Spark has. All others are read as their base type, as Avro specifies.
_LOGICAL: Final = {
    ("int", "date"): ("DATE", pa.date32()),
    ("long", "timestamp-millis"): _TIMESTAMP,
    ("long", "timestamp-micros"): _TIMESTAMP,
    ("long", "local-timestamp-millis"): _LOCAL_TIMESTAMP,
    ("long", "local-timestamp-micros"): _LOCAL_TIMESTAMP,
}
_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
# Exceptions of fastavro for bytes that do not match the schema.
_UNREADABLE: Final = (
    ArithmeticError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class AvroType:
    """A type in Spark's DDL, in Arrow, and in the schema that fastavro reads with."""

    ddl: str
    arrow: pa.DataType
    schema: AvroSchema  # without most logical types


@cache
def read_schema(text: str) -> AvroType:
    """Parse the option valueSchema; raises `OptionRefused`."""
    try:
        schema = json.loads(text)
    except ValueError:
        raise OptionRefused(f"valueSchema is not an Avro schema, which is JSON: {text}") from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise OptionRefused('valueSchema must be an Avro record: {"type":"record","fields":[...]}')
    found = _Types(named={}).type_of(schema, "the value")
    _check_names(found.schema)
    return found


ReadRow = Callable[[bytes], tuple[object, str | None]]  # to a row, or to the problem
WriterSchema = Callable[[int], str | None]  # the text of the schema of an id


def parse_avro(values: pa.Array, value_type: pa.DataType, read: ReadRow) -> TypedValues:
    """Values as `value_type`, which has all fields of the schema or some of them."""
    import pyarrow.compute as pc  # noqa: PLC0415  # slow to load

    rows, problems = list[object](), list[str | None]()
    for value in values.to_pylist():
        row, problem = None, None
        if value is not None:
            row, problem = read(value)
        rows.append(row)
        problems.append(problem)
    # Some Avro values have no Spark value, such as a decimal with too many digits.
    numbers = pa.array(range(len(rows)), pa.int64())
    held = parse_by_bisection(
        numbers,
        value_type,
        lambda part: pa.array([rows[number] for number in part.to_pylist()], value_type),
    )
    unreadable = pa.array(problems, pa.string())
    return TypedValues(held.typed, pc.coalesce(unreadable, held.problems))


@cache
def plain_reader(schema_text: str) -> ReadRow:
    """A function that parses values of one schema."""
    return _reader(_parsed_schema(schema_text), None)


def registered_reader(schema_text: str, writer_schema: WriterSchema) -> ReadRow:
    """A function that parses values with the id of their own schema in front."""
    readers = dict[int, ReadRow]()

    def read(value: bytes) -> tuple[object, str | None]:
        schema_id = read_header(value)
        if schema_id is None:
            return None, NO_ID
        reader = readers.get(schema_id)
        if reader is None:
            text = writer_schema(schema_id)
            if text is None:  # not remembered: it may be registered soon
                return None, f"schema {schema_id} is not an Avro schema of the registry"
            reader = readers[schema_id] = _reader_of(schema_id, text, schema_text)
        return reader(value[HEADER_BYTES:])

    return read


def _reader_of(schema_id: int, text: str, schema_text: str) -> ReadRow:
    try:
        return _reader(_parsed_schema(text), _parsed_schema(schema_text))
    except OptionRefused as refused:
        problem = f"schema {schema_id}: {refused}"
    return lambda _: (None, problem)


def _reader(written: AvroSchema, wanted: AvroSchema | None) -> ReadRow:
    fastavro = _fastavro()
    unreadable = (*_UNREADABLE, fastavro.read.SchemaResolutionError)

    def read(value: bytes) -> tuple[object, str | None]:
        stream = BytesIO(value)
        try:
            row = fastavro.schemaless_reader(stream, written, wanted)
        except unreadable as problem:
            return None, str(problem) or "the value ends too early"
        left_bytes = len(value) - stream.tell()
        return (None, f"{left_bytes} unread bytes after the record") if left_bytes else (row, None)

    return read


def avro_writer(schema_text: str) -> Callable[[Mapping[str, object]], bytes]:
    """A function that encodes rows; it raises `ValueError` or `TypeError` for others."""
    fastavro = _fastavro()
    schema = _parsed_schema(schema_text)

    def write(row: Mapping[str, object]) -> bytes:
        stream = BytesIO()
        fastavro.schemaless_writer(stream, schema, row)
        return stream.getvalue()

    return write


@cache
def _parsed_schema(schema_text: str) -> AvroSchema:
    return _fastavro().parse_schema(read_schema(schema_text).schema)


def _fastavro() -> ModuleType:
    try:
        import fastavro  # noqa: PLC0415  # the extra `avro` is optional
    except ImportError:
        raise OptionRefused(
            "valueFormat=avro needs fastavro, here and on every executor: pip install 'ottla[avro]'"
        ) from None
    return fastavro


def _check_names(schema: AvroSchema) -> None:
    """Let fastavro check names, sizes and defaults by Avro's rules."""
    fastavro = _fastavro()
    try:
        fastavro.parse_schema(schema)
    except (fastavro.schema.SchemaParseException, KeyError, TypeError, ValueError) as problem:
        raise OptionRefused(f"valueSchema: {problem}") from None


@dataclass(frozen=True, slots=True)
class _Types:
    """Resolves the types of a schema. Owns the named types found so far.

    Refuses types without a column type, and types without bytes: a list may claim a billion of
    those, and reading it would not end.
    """

    named: dict[str, AvroType]
    inside: tuple[str, ...] = ()  # the enclosing records
    namespace: str = ""  # of the enclosing record: the default of names in it

    def type_of(self, schema: AvroSchema, where: str) -> AvroType:
        match schema:
            case list():
                return self._union(schema, where)
            case dict():
                return self._complex(schema, where)
            case str() if schema in _PRIMITIVES:
                return AvroType(*_PRIMITIVES[schema], schema)
            case str() if (name := self._full(schema)) in self.named:
                known = self.named[name]
                return AvroType(known.ddl, known.arrow, name)
            case str() if self._full(schema) in self.inside:
                raise OptionRefused(f"valueSchema: {where} contains itself, which no column can")
        raise OptionRefused(
            f"valueSchema: {where} is {json.dumps(schema)}, which is not a supported type"
        )

    def _union(self, members: list[AvroSchema], where: str) -> AvroType:
        others = [member for member in members if member != "null"]
        if len(others) != 1:
            raise OptionRefused(
                f"valueSchema: {where} may be one of several types; a column has one (and null)"
            )
        found = self.type_of(others[0], where)
        either = [found.schema if member != "null" else "null" for member in members]
        return AvroType(found.ddl, found.arrow, either)

    def _complex(self, schema: Mapping[str, AvroSchema], where: str) -> AvroType:
        match schema.get("type"):
            case "record":
                return self._record(schema)
            case "array":
                item = self.type_of(schema.get("items"), where)
                kept = {"type": "array", "items": item.schema}
                return AvroType(f"ARRAY<{item.ddl}>", pa.list_(item.arrow), kept)
            case "map":
                item = self.type_of(schema.get("values"), where)
                kept = {"type": "map", "values": item.schema}
                arrow = pa.map_(pa.string(), item.arrow)
                return AvroType(f"MAP<STRING, {item.ddl}>", arrow, kept)
            case "enum":
                return self._remember(("STRING", pa.string()), schema, ("symbols",))
            case "fixed":
                return self._fixed(schema, where)
            case dict() | list() as wrapped:
                return self.type_of(wrapped, where)
            case plain:
                return self._logical(plain, schema, where)

    def _record(self, schema: Mapping[str, AvroSchema]) -> AvroType:
        name = self._name_of(schema)
        fields = schema.get("fields")
        if not isinstance(fields, list) or not fields:
            raise OptionRefused(f"valueSchema: record {name} has no fields")
        inner = _Types(self.named, (*self.inside, name), name.rpartition(".")[0])
        found = dict[str, AvroType]()
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise OptionRefused(f"valueSchema: a field of {name} has no name")
            if not _NAME.fullmatch(field["name"]):
                raise OptionRefused(
                    f"valueSchema: {name} has a field {field['name']}, which is not a name"
                )
            found[field["name"]] = inner.type_of(field.get("type"), f"{name}.{field['name']}")
        made = AvroType(
            f"STRUCT<{', '.join(f'`{field}`: {one.ddl}' for field, one in found.items())}>",
            pa.struct([(field, one.arrow) for field, one in found.items()]),
            {
                "type": "record",
                "name": name,
                "fields": [_kept_field(field, found[field["name"]].schema) for field in fields],
            },
        )
        self.named[name] = made
        return made

    def _fixed(self, schema: Mapping[str, AvroSchema], where: str) -> AvroType:
        size_bytes = schema.get("size")
        if not isinstance(size_bytes, int) or size_bytes < 1:
            raise OptionRefused(f"valueSchema: {where} is fixed and has no size")
        if schema.get("logicalType") == "decimal":
            kept = ("size", *_DECIMAL)
            return self._remember(_decimal(schema, where), schema, kept)
        return self._remember(_PRIMITIVES["bytes"], schema, ("size",))

    def _remember(
        self,
        kind: tuple[str, pa.DataType],
        schema: Mapping[str, AvroSchema],
        attributes: tuple[str, ...],
    ) -> AvroType:
        name = self._name_of(schema)
        kept = {key: schema[key] for key in ("type", *attributes) if key in schema}
        made = self.named[name] = AvroType(*kind, {**kept, "name": name})
        return made

    def _logical(self, plain: AvroSchema, schema: Mapping[str, AvroSchema], where: str) -> AvroType:
        logical = schema.get("logicalType")
        if plain == "bytes" and logical == "decimal":
            kept = {key: schema[key] for key in ("type", *_DECIMAL) if key in schema}
            return AvroType(*_decimal(schema, where), kept)
        if (str(plain), str(logical)) in _LOGICAL:
            kind = _LOGICAL[str(plain), str(logical)]
            return AvroType(*kind, {"type": plain, "logicalType": logical})
        return self.type_of(plain, where)

    def _name_of(self, schema: Mapping[str, AvroSchema]) -> str:
        name, namespace = schema.get("name"), schema.get("namespace")
        if not isinstance(name, str) or not name:
            raise OptionRefused(f"valueSchema: a {schema.get('type')} has no name")
        return f"{namespace}.{name}" if namespace and "." not in name else self._full(name)

    def _full(self, name: str) -> str:
        return f"{self.namespace}.{name}" if self.namespace and "." not in name else name


def _kept_field(field: Mapping[str, AvroSchema], schema: AvroSchema) -> dict[str, AvroSchema]:
    """A field with its aliases and default, which resolve other versions of the schema.

    fastavro does not convert the default of a logical type, so of those only null is kept.
    """
    kept = {name: field[name] for name in ("aliases", "default") if name in field}
    if kept.get("default") is not None and "logicalType" in json.dumps(schema):
        del kept["default"]
    return {"name": field["name"], "type": schema, **kept}


_DECIMAL: Final = ("logicalType", "precision", "scale")


def _decimal(schema: Mapping[str, AvroSchema], where: str) -> tuple[str, pa.DataType]:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        raise OptionRefused(f"valueSchema: {where} is a decimal without a precision")
    if not 0 <= scale <= precision <= DECIMAL_DIGITS_MAX or not precision:
        raise OptionRefused(
            f"valueSchema: {where} has {precision} digits, {scale} of them after the point;"
            f" Spark's decimals have at most {DECIMAL_DIGITS_MAX}"
        )
    return f"DECIMAL({precision}, {scale})", pa.decimal128(precision, scale)
