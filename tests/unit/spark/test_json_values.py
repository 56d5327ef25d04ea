"""JSON in bulk: good values typed, bad ones told apart."""

from typing import TypedDict

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

import pyarrow as pa

from ottla.spark.json_values import parse_json

TYPE = pa.struct([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])


class Row(TypedDict):
    id: int | None
    name: str | None
    tags: list[str] | None


def row_of(id: int | None = None, name: str | None = None) -> Row:  # noqa: A002
    return Row(id=id, name=name, tags=None)


def parsed(*values: bytes | None) -> tuple[list[Row | None], list[bool]]:
    found = parse_json(pa.array(values, pa.binary()), TYPE)
    assert found.typed.type == TYPE
    assert found.has_problems == any(found.problems.is_valid().to_pylist())
    return found.typed.to_pylist(), found.problems.is_valid().to_pylist()


def test_fields_are_typed_and_missing_ones_are_null() -> None:
    rows, is_bad = parsed(b'{"id":1,"name":"a","tags":["x"]}', b'{"other":{"deep":[1]}}')
    assert rows == [
        {"id": 1, "name": "a", "tags": ["x"]},
        {"id": None, "name": None, "tags": None},
    ]
    assert is_bad == [False, False]


def test_a_null_value_is_null_and_not_bad() -> None:
    assert parsed(b'{"id":1}', None) == (
        [{"id": 1, "name": None, "tags": None}, None],
        [False, False],
    )


def test_values_may_have_lines_inside() -> None:
    rows, is_bad = parsed(b'{\n "id": 1\n}', b'{"name":"a\\nb"}')
    assert rows == [row_of(id=1), row_of(name="a\nb")]
    assert is_bad == [False, False]


@pytest.mark.parametrize(
    "bad",
    [b"", b"{", b"no", b"5", b'{"id":"x"}', b'{"id":1.5}', b"{} {}", b"{}}", b"{}\n{}", b"\xff"],
)
def test_a_bad_value_is_alone_in_being_bad(bad: bytes) -> None:
    rows, is_bad = parsed(b'{"id":1}', bad, b'{"id":3}')
    assert is_bad == [False, True, False]
    assert rows == [row_of(id=1), None, row_of(id=3)]


def test_no_values_are_no_rows() -> None:
    assert parsed() == ([], [])
