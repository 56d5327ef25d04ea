"""JSON in bulk: good values typed, bad ones told apart."""

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from ottla.spark.json_values import parse_json  # noqa: E402

TYPE = pa.struct([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])


def parsed(*values: bytes | None) -> tuple[list[object], list[object]]:
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
    assert [row["id"] for row in rows] == [1, None]  # type: ignore[index]
    assert is_bad == [False, False]


@pytest.mark.parametrize(
    "bad",
    [b"", b"{", b"no", b"5", b'{"id":"x"}', b'{"id":1.5}', b"{} {}", b"{}}", b"{}\n{}", b"\xff"],
)
def test_a_bad_value_is_alone_in_being_bad(bad: bytes) -> None:
    rows, is_bad = parsed(b'{"id":1}', bad, b'{"id":3}')
    assert is_bad == [False, True, False]
    assert rows[0]["id"] == 1  # type: ignore[index]
    assert rows[1] is None
    assert rows[2]["id"] == 3  # type: ignore[index]


def test_no_values_are_no_rows() -> None:
    assert parsed() == ([], [])
