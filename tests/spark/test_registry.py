"""Values with the id of a registry's schema, against the serializers of Confluent's own client."""

import base64
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.message import Message
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ottla.spark.column_options import parse_columns
from ottla.spark.columns import ddl_of, struct_of
from ottla.spark.encode import RowRefused
from ottla.spark.option_reader import OptionRefused
from ottla.spark.read_task import BadRow
from ottla.spark.registry import AVRO, RegistryFailed, registry_for, resolve_columns
from ottla.spark.registry_options import RegistryOptions
from ottla.spark.sink import BatchWriter, batch_writer
from spark.direct_readers import read
from spark.direct_writers import save
from spark.schema_registry import SchemaRegistry, schema_registry
from spark.topics import TIMEOUT_S, Topic

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
    ],
}
NEWER = ORDER | {
    "fields": [
        *ORDER["fields"],
        {"name": "shop", "type": "string", "default": "none"},
        {
            "name": "sent",
            "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
            "default": None,
        },
    ]
}
AT = datetime(2026, 11, 15, 10, tzinfo=UTC)
ROW = {"id": 7, "at": AT, "price": Decimal("12.50"), "tags": ["a"], "counts": {"x": 1}}
PROTO = descriptor_pb2.FieldDescriptorProto
PROTO_ROW = {
    "id": 2**40,
    "name": "n",
    "at": AT,
    "big": Decimal(2**64 - 1),
    "kind": "PAID",
    "tags": ["a", "b"],
    "counts": {"x": 1},
    "place": {"city": "Prague"},
    "note": None,
}


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as server:
        yield server


@pytest.fixture
def client(registry: SchemaRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as made:
        yield made


def put(topic: Topic, values: Sequence[bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": topic.address})
    for value in values:
        producer.produce(topic.name, value=value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def context(topic: Topic) -> SerializationContext:
    return SerializationContext(topic.name, MessageField.VALUE)


def options(
    topic: Topic, registry: SchemaRegistry, value_format: str, **more: str
) -> dict[str, str]:
    return topic.options(valueFormat=value_format, schema__registry__url=registry.url, **more)


def schema_of(raw: dict[str, str]) -> StructType:
    """The columns value and _corrupt that Spark would pass to the reader."""
    value = struct_of(resolve_columns(parse_columns(raw)))
    return from_arrow_schema(pa.schema([("value", value), ("_corrupt", pa.binary())]))


def rows_of(raw: dict[str, str]) -> list[dict[str, Any]]:
    return read(raw, schema_of(raw))


def write(topic: Topic, raw: dict[str, str], type_: pa.DataType, values: list[Any]) -> None:
    """Write values as `df.write` with one task does."""
    named = {"kafka.bootstrap.servers": topic.address, "topic": topic.name, **raw}
    schema = pa.schema([("value", type_)])
    batch = pa.RecordBatch.from_arrays([pa.array(values, type_)], schema=schema)
    save(batch_writer(named, from_arrow_schema(schema), overwrite=False), iter([batch]))


def stored(topic: Topic) -> list[bytes | None]:
    raw = from_arrow_schema(pa.schema([("value", pa.binary())]))
    return [row["value"] for row in read(topic.options(), raw)]  # type: ignore[misc]


def avro_type() -> pa.StructType:
    return pa.struct(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("price", pa.decimal128(9, 2)),
            ("tags", pa.list_(pa.string())),
            ("counts", pa.map_(pa.string(), pa.int32())),
        ]
    )


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as Arrow returns it: maps are lists of pairs."""
    return {name: list(one.items()) if name == "counts" else one for name, one in row.items()}


# Avro


def test_avro_of_any_version_is_read_as_the_newest(
    topic: Topic, registry: SchemaRegistry, client: SchemaRegistryClient
) -> None:
    old, new = (
        AvroSerializer(client, json.dumps(schema))(row, context(topic))
        for schema, row in ((ORDER, ROW), (NEWER, ROW | {"shop": "prague", "sent": AT}))
    )
    assert isinstance(new, bytes)
    no_id = b"\x01" + new[1:]
    put(topic, [old, new, b"\0\0\0\x27\x0f", no_id, None])
    raw = options(topic, registry, "avro")
    assert ddl_of(resolve_columns(parse_columns(raw))).startswith(
        "key BINARY, value STRUCT<`id`: BIGINT, `at`: TIMESTAMP, `price`: DECIMAL(9, 2),"
        " `tags`: ARRAY<STRING>, `counts`: MAP<STRING, INT>, `shop`: STRING, `sent`: TIMESTAMP>"
    )
    found = rows_of(raw)
    assert [row["value"] for row in found] == [
        plain(ROW | {"shop": "none", "sent": None}),
        plain(ROW | {"shop": "prague", "sent": AT}),
        None,
        None,
        None,
    ]
    assert [row["_corrupt"] for row in found[2:]] == [b"\0\0\0\x27\x0f", no_id, None]
    with pytest.raises(BadRow, match="schema 9999 is not an Avro schema of the registry"):
        rows_of(options(topic, registry, "avro", badRows="fail"))


def test_a_schema_that_was_missing_is_found_once_it_is_there(
    registry: SchemaRegistry, client: SchemaRegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.spark.registry.MISSING_S", 0.0)
    found = registry_for(RegistryOptions((("url", registry.url),)))
    late = ORDER | {"name": "Late"}
    assert found.by_id(len(registry.schemas) + 1, AVRO) is None
    schema_id = client.register_schema("late-value", Schema(json.dumps(late), "AVRO"))
    assert schema_id == len(registry.schemas), "the one that was missing"
    made = found.by_id(schema_id, AVRO)
    assert made is not None
    assert json.loads(made.text) == late
    asked = len(registry.requests)
    assert found.by_id(schema_id, AVRO) is made
    assert len(registry.requests) == asked, "it never changes"


def test_a_schema_that_is_missing_is_not_asked_for_with_every_value(
    registry: SchemaRegistry,
) -> None:
    found = registry_for(RegistryOptions((("url", registry.url),)))
    assert [found.by_id(9999, AVRO) for _ in range(1000)] == [None] * 1000
    assert 0 < len(registry.requests) < 100


def test_avro_is_read_as_the_schema_that_is_given(
    topic: Topic, registry: SchemaRegistry, client: SchemaRegistryClient
) -> None:
    serialize = AvroSerializer(client, json.dumps(NEWER))
    put(topic, [serialize(ROW | {"shop": "prague"}, context(topic))])
    raw = options(topic, registry, "avro", valueSchema=json.dumps(ORDER))
    assert [row["value"] for row in rows_of(raw)] == [plain(ROW)]


@pytest.mark.usefixtures("batch_task")
def test_confluents_client_reads_avro_that_spark_wrote(
    topic: Topic, registry: SchemaRegistry, client: SchemaRegistryClient
) -> None:
    raw = {"valueFormat": "avro", "schema.registry.url": registry.url}
    write(topic, raw | {"valueSchema": json.dumps(ORDER)}, avro_type(), [plain(ROW), None])
    assert client.get_latest_version(f"{topic.name}-value").schema.schema_str == json.dumps(ORDER)
    write(topic, raw, avro_type(), [plain(ROW | {"id": 8})])  # with the newest, now registered
    first, empty, last = stored(topic)
    assert empty is None
    deserialize = AvroDeserializer(client)
    assert deserialize(first, context(topic)) == ROW
    assert deserialize(last, context(topic)) == ROW | {"id": 8}


# Protobuf


def field(name: str, number: int, kind: int, **more: Any) -> descriptor_pb2.FieldDescriptorProto:
    optional = PROTO.LABEL_OPTIONAL
    return PROTO(name=name, number=number, type=kind, **{"label": optional} | more)


def order_file() -> descriptor_pb2.FileDescriptorProto:
    """A .proto file: imports, an enum, a map, an optional field, a second message."""
    entry = descriptor_pb2.DescriptorProto(
        name="CountsEntry",
        field=[field("key", 1, PROTO.TYPE_STRING), field("value", 2, PROTO.TYPE_INT32)],
        options=descriptor_pb2.MessageOptions(map_entry=True),
    )
    many = {"label": PROTO.LABEL_REPEATED}
    order = descriptor_pb2.DescriptorProto(
        name="Order",
        nested_type=[entry],
        oneof_decl=[descriptor_pb2.OneofDescriptorProto(name="_note")],
        field=[
            field("id", 1, PROTO.TYPE_INT64),
            field("name", 2, PROTO.TYPE_STRING),
            field("at", 3, PROTO.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp"),
            field("big", 4, PROTO.TYPE_UINT64),
            field("kind", 5, PROTO.TYPE_ENUM, type_name=".shop.Kind"),
            field("tags", 6, PROTO.TYPE_STRING, **many),
            field("counts", 7, PROTO.TYPE_MESSAGE, type_name=".shop.Order.CountsEntry", **many),
            field("place", 8, PROTO.TYPE_MESSAGE, type_name=".places.Place"),
            field("note", 9, PROTO.TYPE_STRING, proto3_optional=True, oneof_index=0),
        ],
    )
    kinds = [
        descriptor_pb2.EnumValueDescriptorProto(name=name, number=number)
        for number, name in enumerate(["NEW", "PAID"])
    ]
    return descriptor_pb2.FileDescriptorProto(
        name="order.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "place.proto"],
        message_type=[order, descriptor_pb2.DescriptorProto(name="Other")],
        enum_type=[descriptor_pb2.EnumDescriptorProto(name="Kind", value=kinds)],
    )


def place_file() -> descriptor_pb2.FileDescriptorProto:
    city = field("city", 1, PROTO.TYPE_STRING)
    place = descriptor_pb2.DescriptorProto(name="Place", field=[city])
    return descriptor_pb2.FileDescriptorProto(
        name="place.proto", package="places", syntax="proto3", message_type=[place]
    )


def messages() -> dict[str, type[Message]]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(place_file())
    pool.Add(order_file())
    names = ("Order", "Other")
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))
        for name in names
    }


def proto_message(make: type[Message]) -> Message:
    row = PROTO_ROW | {"big": 2**64 - 1, "kind": 1}
    return make(**{name: value for name, value in row.items() if value is not None})


def register_proto(client: SchemaRegistryClient, topic: Topic) -> None:
    """As ProtobufSerializer does: imports under their names, then the file that imports them."""
    place = base64.b64encode(place_file().SerializeToString()).decode()
    client.register_schema("place.proto", Schema(place, "PROTOBUF"))
    order = base64.b64encode(order_file().SerializeToString()).decode()
    refers = [SchemaReference("place.proto", "place.proto", 1)]
    client.register_schema(f"{topic.name}-value", Schema(order, "PROTOBUF", refers))


def proto_serializer(client: SchemaRegistryClient, make: type[Message]) -> ProtobufSerializer:
    conf = {"auto.register.schemas": False, "use.latest.version": True}
    made: ProtobufSerializer = ProtobufSerializer(
        make, client, conf | {"use.deprecated.format": False}
    )
    return made


def test_protobuf_is_read_by_the_schema_of_its_subject(
    topic: Topic, registry: SchemaRegistry, client: SchemaRegistryClient
) -> None:
    register_proto(client, topic)
    classes = messages()
    order, other = classes["Order"], classes["Other"]
    values = [
        proto_serializer(client, order)(proto_message(order), context(topic)),
        proto_serializer(client, order)(order(), context(topic)),
        proto_serializer(client, other)(other(), context(topic)),
    ]
    put(topic, [*values, b"no id", b"\0\0\0\0\x01", b"\0\0\0\0\x01\0\xff"])
    raw = options(topic, registry, "protobuf")
    assert ddl_of(resolve_columns(parse_columns(raw))).startswith(
        "key BINARY, value STRUCT<`id`: BIGINT, `name`: STRING, `at`: TIMESTAMP,"
        " `big`: DECIMAL(20, 0), `kind`: STRING, `tags`: ARRAY<STRING>, `counts`: MAP<STRING, INT>,"
        " `place`: STRUCT<`city`: STRING>, `note`: STRING>"
    )
    full, empty, *bad = rows_of(raw)
    assert full["value"] == plain(PROTO_ROW)
    unset = dict.fromkeys(["at", "place", "note"])
    zero = {"id": 0, "name": "", "big": Decimal(0), "kind": "NEW", "tags": [], "counts": []}
    assert empty["value"] == unset | zero
    assert [row["value"] for row in bad] == [None] * 4
    assert [row["_corrupt"] is not None for row in bad] == [True] * 4
    with pytest.raises(BadRow, match=r"the value is message \[1\] of its schema, not the first"):
        rows_of(raw | {"badRows": "fail"})


@pytest.mark.parametrize(
    ("imported", "why"),
    [
        ("google/protobuf/nothing.proto", "which the installed protobuf does not have"),
        ("elsewhere.proto", "which it does not refer to"),
    ],
)
def test_an_import_that_is_not_there_is_named(
    topic: Topic,
    registry: SchemaRegistry,
    client: SchemaRegistryClient,
    imported: str,
    why: str,
) -> None:
    file = place_file()
    file.dependency.append(imported)
    text = base64.b64encode(file.SerializeToString()).decode()
    client.register_schema(f"{topic.name}-value", Schema(text, "PROTOBUF"))
    with pytest.raises(OptionRefused, match=f"imports {imported}, {why}"):
        ddl_of(resolve_columns(parse_columns(options(topic, registry, "protobuf"))))


@pytest.mark.usefixtures("batch_task")
def test_confluents_client_reads_protobuf_that_spark_wrote(
    topic: Topic, registry: SchemaRegistry, client: SchemaRegistryClient
) -> None:
    register_proto(client, topic)
    raw = {"valueFormat": "protobuf", "schema.registry.url": registry.url}
    type_ = to_arrow_schema(schema_of(raw | topic.options()), timezone="UTC").field("value").type
    write(topic, raw, type_, [plain(PROTO_ROW)])
    (found,) = stored(topic)
    order = messages()["Order"]
    deserialize = ProtobufDeserializer(order, {"use.deprecated.format": False}, client)
    assert deserialize(found, context(topic)) == proto_message(order)


# JSON


@pytest.mark.usefixtures("batch_task")
def test_json_is_the_text_behind_the_id(
    topic: Topic, registry: SchemaRegistry, client: SchemaRegistryClient
) -> None:
    schema = json.dumps({"type": "object"})
    raw = {"valueFormat": "json", "schema.registry.url": registry.url}
    write(topic, raw | {"valueSchema": schema}, pa.string(), ['{"id": 1}', None])
    schema_id = client.get_latest_version(f"{topic.name}-value").schema_id
    assert schema_id is not None
    assert stored(topic) == [b"\0" + schema_id.to_bytes(4) + b'{"id": 1}', None]
    put(topic, [b'{"id": 2}', b"\0\0"])
    text = from_arrow_schema(pa.schema([("value", pa.string()), ("_corrupt", pa.binary())]))
    found = read(options(topic, registry, "json"), text)
    assert [tuple(row.values()) for row in found] == [
        ('{"id": 1}', None),
        (None, None),
        (None, b'{"id": 2}'),
        (None, b"\0\0"),
    ]


# What is refused


def test_a_registry_that_cannot_help_is_named(
    topic: Topic, registry: SchemaRegistry, client: SchemaRegistryClient
) -> None:
    with pytest.raises(OptionRefused, match=f"subject {topic.name}-value is not in the schema"):
        resolve_columns(parse_columns(options(topic, registry, "avro")))
    client.register_schema(f"{topic.name}-value", Schema(json.dumps({}), "JSON"))
    with pytest.raises(OptionRefused, match="has a schema of JSON, not AVRO"):
        resolve_columns(parse_columns(options(topic, registry, "avro")))
    nowhere = {"schema.registry.url": "http://127.0.0.1:1", "schema.registry.max.retries": "0"}
    with pytest.raises(RegistryFailed, match=r"http://127\.0\.0\.1:1 cannot be reached"):
        resolve_columns(parse_columns(topic.options(valueFormat="avro") | nowhere))
    unknown = options(topic, registry, "avro", schema__registry__nonsense="1")
    with pytest.raises(OptionRefused, match="Unrecognized properties: nonsense"):
        resolve_columns(parse_columns(unknown))


def test_values_that_do_not_fit_the_schema_are_refused(
    topic: Topic, registry: SchemaRegistry
) -> None:
    raw = {
        "kafka.bootstrap.servers": topic.address,
        "topic": topic.name,
        "valueFormat": "avro",
        "schema.registry.url": registry.url,
        "valueSchema": json.dumps(ORDER),
    }

    def writer(type_: pa.DataType) -> BatchWriter:
        made = batch_writer(raw, from_arrow_schema(pa.schema([("value", type_)])), overwrite=False)
        assert isinstance(made, BatchWriter)
        return made

    with pytest.raises(OptionRefused, match="it is a STRUCT"):
        writer(pa.string())
    with pytest.raises(OptionRefused, match=r"value\.id is string, and int64 in the schema"):
        writer(pa.struct([("id", pa.string())]))
    few = pa.struct([("id", pa.int64())])
    batch = pa.RecordBatch.from_pydict({"value": pa.array([{"id": 1}], few)})
    encoding = writer(few).encoding
    assert encoding is not None
    with pytest.raises(RowRefused, match="a value does not fit its schema"):
        list(encoding.encode(iter([batch])))
