"""Protobuf values of a schema registry as typed columns, and columns as Protobuf values.

A schema is a FileDescriptorSet in base64, its own file last, so that no .proto has to be compiled.
A message is read with the newest schema of its subject, whatever the schema that it was written
with: Protobuf's fields are found by their numbers.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from ottla.errors import ProtocolViolation
from ottla.protocol.primitives import read_varint
from ottla.spark.option_reader import OptionRefused
from ottla.spark.typed_values import TypedValues, parse_by_bisection
from ottla.spark.wire_format import HEADER_BYTES, NO_ID, header_of, read_header

_UNSIGNED_LONG: Final = ("DECIMAL(20, 0)", pa.decimal128(20, 0))
_SCALARS: Final = {
    FieldDescriptor.CPPTYPE_BOOL: ("BOOLEAN", pa.bool_()),
    FieldDescriptor.CPPTYPE_INT32: ("INT", pa.int32()),
    FieldDescriptor.CPPTYPE_INT64: ("BIGINT", pa.int64()),
    FieldDescriptor.CPPTYPE_UINT32: ("BIGINT", pa.int64()),
    FieldDescriptor.CPPTYPE_UINT64: _UNSIGNED_LONG,
    FieldDescriptor.CPPTYPE_FLOAT: ("FLOAT", pa.float32()),
    FieldDescriptor.CPPTYPE_DOUBLE: ("DOUBLE", pa.float64()),
    FieldDescriptor.CPPTYPE_ENUM: ("STRING", pa.string()),
}
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

FromMessage = Callable[[Any], object]  # of a class that is made from its descriptor


@dataclass(frozen=True, slots=True)
class ProtobufType:
    """A type in Spark's DDL and in Arrow; values of messages to rows and back."""

    ddl: str
    arrow: pa.DataType
    to_row: FromMessage
    to_message: FromMessage  # a value that a field can be assigned, or a message


@dataclass(frozen=True, slots=True)
class ProtobufSchema:
    """The first message of a schema, and its columns."""

    make: Callable[[], Message]
    type: ProtobufType

    def parse(self, values: pa.Array, value_type: pa.DataType) -> TypedValues:
        """Values as `value_type`, which has all fields of the schema or some of them."""
        rows, problems = list[object](), list[str | None]()
        for value in values.to_pylist():
            row, problem = (None, None) if value is None else _read(value, self)
            rows.append(row)
            problems.append(problem)
        numbers = pa.array(range(len(rows)), pa.int64())
        held = parse_by_bisection(
            numbers,
            value_type,
            lambda part: pa.array([rows[number] for number in part.to_pylist()], value_type),
        )
        return TypedValues(held.typed, pc.coalesce(pa.array(problems, pa.string()), held.problems))

    def encode(self, row: Mapping[str, object], schema_id: int) -> bytes:
        """A row in the wire format, as the first message of its schema."""
        message = self.type.to_message(row)
        assert isinstance(message, Message)
        body: bytes = message.SerializeToString(deterministic=True)
        return header_of(schema_id) + b"\0" + body


@cache
def read_protobuf_schema(text: str) -> ProtobufSchema:
    """Parse a FileDescriptorSet in base64; raises `OptionRefused` for what no column can be."""
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(text)).file
    pool = descriptor_pool.DescriptorPool()
    known = set[str]()
    for file in files:
        _add_well_known(pool, file.dependency, known)
        for missing in set(file.dependency) - known:
            raise OptionRefused(
                f"the Protobuf schema of the subject imports {missing}, which it does not refer to"
            )
        pool.Add(file)
        known.add(file.name)
    messages = list(pool.FindFileByName(files[-1].name).message_types_by_name.values())
    if not messages:
        raise OptionRefused("the Protobuf schema of the subject has no message")
    first = pool.FindMessageTypeByName(
        f"{files[-1].package}.{files[-1].message_type[0].name}".strip(".")
    )
    return ProtobufSchema(message_factory.GetMessageClass(first), _message(first, ()))


def descriptor_set(text: str, files: tuple[tuple[str, str], ...]) -> str:
    """A schema of a registry and the files that it imports, as one text."""
    every = descriptor_pb2.FileDescriptorSet()
    for name, file in (*files, ("", text)):
        made = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(file))
        made.name = name or made.name or "value.proto"
        every.file.append(made)
    return base64.b64encode(every.SerializeToString()).decode()


def _read(value: bytes, schema: ProtobufSchema) -> tuple[object, str | None]:
    if read_header(value) is None:
        return None, NO_ID
    try:
        indexes, at = _read_indexes(value)
    except (ProtocolViolation, ValueError):
        return None, "the value ends within its header"
    if indexes not in ([], [0]):
        return None, f"the value is message {indexes} of its schema, not the first"
    message = schema.make()
    try:
        message.ParseFromString(value[at:])
    except DecodeError as problem:
        return None, str(problem)
    return schema.type.to_row(message), None


def _read_indexes(value: bytes) -> tuple[list[int], int]:
    """The indexes of the message in its schema, and where it begins; none mean the first."""
    count, at = read_varint(value, HEADER_BYTES)
    if not 0 <= count <= len(value):
        raise ValueError(count)
    indexes = list[int]()
    for _ in range(count):
        index, at = read_varint(value, at)
        indexes.append(index)
    return indexes, at


def _add_well_known(
    pool: descriptor_pool.DescriptorPool, names: Iterable[str], known: set[str]
) -> None:
    """Add the files of google.protobuf that every compiler has, and no registry."""
    for name in names:
        if name in known or not name.startswith("google/protobuf/"):
            continue
        module = name.removeprefix("google/protobuf/").removesuffix(".proto")
        try:
            import_module(f"google.protobuf.{module}_pb2")
        except ImportError:
            raise OptionRefused(
                f"the Protobuf schema of the subject imports {name}, which the installed protobuf"
                " does not have"
            ) from None
        file = descriptor_pb2.FileDescriptorProto()
        descriptor_pool.Default().FindFileByName(name).CopyToProto(file)
        _add_well_known(pool, file.dependency, known)
        pool.Add(file)
        known.add(name)


# Types


def _message(found: Descriptor, inside: tuple[str, ...]) -> ProtobufType:
    if found.full_name in inside:
        raise OptionRefused(f"{found.full_name} contains itself, which no column can")
    if found.full_name == _TIMESTAMP:
        timestamp = pa.timestamp("us", tz="UTC")
        return ProtobufType("TIMESTAMP", timestamp, _micros, _timestamp_writer(found))
    if found.full_name in _WRAPPERS:
        wrapped = _scalar(found.fields_by_name["value"])
        make = message_factory.GetMessageClass(found)
        return ProtobufType(
            wrapped.ddl,
            wrapped.arrow,
            lambda message: message.value,
            lambda value: make(value=value),
        )
    fields = {field.name: _field(field, (*inside, found.full_name)) for field in found.fields}
    if not fields:
        raise OptionRefused(f"{found.full_name} has no fields, which no column can")
    return ProtobufType(
        f"STRUCT<{', '.join(f'`{name}`: {one.ddl}' for name, one in fields.items())}>",
        pa.struct([(name, one.arrow) for name, one in fields.items()]),
        _row_reader(found, fields),
        _row_writer(found, fields),
    )


def _row_reader(found: Descriptor, fields: Mapping[str, ProtobufType]) -> FromMessage:
    has_presence = {field.name: field.has_presence for field in found.fields}

    def read(message: Message) -> object:
        return {
            name: None
            if has_presence[name] and not message.HasField(name)
            else one.to_row(getattr(message, name))
            for name, one in fields.items()
        }

    return read


def _row_writer(found: Descriptor, fields: Mapping[str, ProtobufType]) -> FromMessage:
    make = message_factory.GetMessageClass(found)

    def write(row: Mapping[str, object]) -> object:
        given = {name: value for name, value in row.items() if value is not None}
        return make(**{name: fields[name].to_message(value) for name, value in given.items()})

    return write


def _field(field: FieldDescriptor, inside: tuple[str, ...]) -> ProtobufType:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _map(field, inside)
    one = _single(field, inside)
    if not field.is_repeated:
        return one
    return ProtobufType(
        f"ARRAY<{one.ddl}>",
        pa.list_(one.arrow),
        lambda values: [one.to_row(value) for value in values],
        lambda values: [one.to_message(value) for value in values],
    )


def _map(field: FieldDescriptor, inside: tuple[str, ...]) -> ProtobufType:
    entry = field.message_type
    key = _single(entry.fields_by_name["key"], inside)
    item = _single(entry.fields_by_name["value"], inside)
    return ProtobufType(
        f"MAP<{key.ddl}, {item.ddl}>",
        pa.map_(key.arrow, item.arrow),
        lambda values: [(key.to_row(name), item.to_row(values[name])) for name in values],
        lambda values: {
            key.to_message(name): item.to_message(value) for name, value in values.items()
        },
    )


def _single(field: FieldDescriptor, inside: tuple[str, ...]) -> ProtobufType:
    return _scalar(field) if field.message_type is None else _message(field.message_type, inside)


def _scalar(field: FieldDescriptor) -> ProtobufType:
    if field.enum_type is not None:
        names = {one.number: one.name for one in field.enum_type.values}
        return ProtobufType(
            *_SCALARS[field.cpp_type], lambda number: names.get(number, str(number)), _same
        )
    if field.type == FieldDescriptor.TYPE_BYTES:
        return ProtobufType("BINARY", pa.binary(), _same, _same)
    if field.type == FieldDescriptor.TYPE_STRING:
        return ProtobufType("STRING", pa.string(), _same, _same)
    is_unsigned = field.cpp_type == FieldDescriptor.CPPTYPE_UINT64
    return ProtobufType(*_SCALARS[field.cpp_type], _same, int if is_unsigned else _same)


def _same(value: object) -> object:
    return value


def _micros(timestamp: Timestamp) -> object:
    return timestamp.seconds * 1_000_000 + timestamp.nanos // 1000


def _timestamp_writer(found: Descriptor) -> FromMessage:
    make = message_factory.GetMessageClass(found)

    def write(value: datetime) -> object:
        micros = (value - _EPOCH) // timedelta(microseconds=1)
        return make(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)

    return write
