"""Avro in bulk: types found in a schema, values typed, bad ones told apart with a reason."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
fastavro = pytest.importorskip("fastavro", reason="the extra `avro` is not installed")

from ottla.spark.avro_values import parse_avro, plain_reader, read_schema  # noqa: E402
from ottla.spark.option_reader import OptionRefused  # noqa: E402

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {
            "name": "sender",
            "type": {
                "type": "record",
                "name": "Place",
                "fields": [{"name": "city", "type": "string"}],
            },
        },
        {"name": "receiver", "type": ["Place", "null"]},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
    ],
}
TEXT = json.dumps(ORDER)
FULL = {
    "id": 1,
    "note": "n",
    "at": datetime(2026, 11, 15, tzinfo=UTC),
    "day": date(2026, 11, 15),
    "price": Decimal("12.50"),
    "tags": ["a", "b"],
    "counts": {"x": 1},
    "kind": "B",
    "uid": "0b9f8c6e",
    "sender": {"city": "Prague"},
    "receiver": None,
    "mark": b"ok",
}


def written(row: dict[str, object], schema: dict[str, Any] = ORDER) -> bytes:
    stream = BytesIO()
    plain = json.loads(json.dumps(schema).replace(', "logicalType": "uuid"', ""))
    fastavro.schemaless_writer(stream, fastavro.parse_schema(plain), row)
    return stream.getvalue()


def parsed(*values: bytes | None) -> tuple[list[Any], list[str | None]]:
    found = parse_avro(pa.array(values, pa.binary()), read_schema(TEXT).arrow, plain_reader(TEXT))
    return found.typed.to_pylist(), found.problems.to_pylist()


def record(*fields: object) -> str:
    return json.dumps(
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": f"f{n}", "type": one} for n, one in enumerate(fields)],
        }
    )


def test_a_schema_becomes_columns() -> None:
    assert read_schema(TEXT).ddl == (
        "STRUCT<`id`: BIGINT, `note`: STRING, `at`: TIMESTAMP, `day`: DATE,"
        " `price`: DECIMAL(5, 2), `tags`: ARRAY<STRING>, `counts`: MAP<STRING, INT>,"
        " `kind`: STRING, `uid`: STRING, `sender`: STRUCT<`city`: STRING>,"
        " `receiver`: STRUCT<`city`: STRING>, `mark`: BINARY>"
    )


def test_every_kind_of_field_is_read() -> None:
    (row,), problems = parsed(written(FULL))
    assert problems == [None]
    assert row == FULL | {"counts": [("x", 1)]}


def test_a_null_value_is_null_and_not_bad() -> None:
    rows, problems = parsed(written(FULL), None)
    assert rows[1] is None
    assert problems == [None, None]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "the value ends too early"),
        (written(FULL)[:-1], "Expected 2 bytes, read 1"),
        (written(FULL) + b"more", "4 unread bytes after the record"),
        (b"\x02\x7f", "out of range"),
    ],
)
def test_a_bad_value_is_alone_in_being_bad_and_says_why(bad: bytes, reason: str) -> None:
    rows, problems = parsed(written(FULL), bad, written(FULL | {"id": 3}))
    assert [row and row["id"] for row in rows] == [1, None, 3]
    assert [problem is not None for problem in problems] == [False, True, False]
    assert reason in str(problems[1])


def test_what_spark_cannot_hold_is_bad() -> None:
    wide = json.loads(TEXT.replace('"precision": 5', '"precision": 9'))
    rows, problems = parsed(written(FULL | {"price": Decimal("1234567.00")}, wide), written(FULL))
    assert [row is None for row in rows] == [True, False]
    assert "precision" in str(problems[0])


def test_some_of_the_fields_may_be_asked_for() -> None:
    few = pa.struct([("uid", pa.string()), ("id", pa.int64())])
    found = parse_avro(pa.array([written(FULL)], pa.binary()), few, plain_reader(TEXT))
    assert found.typed.to_pylist() == [{"uid": "0b9f8c6e", "id": 1}]


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_no_bytes_do_harm(values: list[bytes]) -> None:
    rows, problems = parsed(*values)
    for row, problem in zip(rows, problems, strict=True):
        assert (row is None) == (problem is not None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id BIGINT", "which is JSON"),
        ('"string"', "must be an Avro record"),
        ('{"type":"record","name":"R","fields":[]}', "record R has no fields"),
        (record(["int", "string"]), "R.f0 may be one of several types"),
        (record("null"), 'R.f0 is "null"'),
        (record({"type": "array", "items": "R"}), "R.f0 contains itself"),
        (record("Unknown"), 'R.f0 is "Unknown", which is not a supported type'),
        (record({"type": "fixed", "name": "F", "size": 0}), "has no size"),
        (record({"type": "bytes", "logicalType": "decimal", "precision": 50}), "at most 38"),
        (record({"type": "enum", "symbols": ["A"]}), "an? enum has no name"),
        (record({"type": "enum", "name": "E", "symbols": ["a b"]}), "Every symbol must match"),
        (TEXT.replace("note", "no`te"), "shop.Order has a field no`te, which is not a name"),
    ],
)
def test_a_schema_without_columns_is_refused(text: str, words: str) -> None:
    with pytest.raises(OptionRefused, match=words):
        read_schema(text)
