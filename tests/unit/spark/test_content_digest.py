"""The content of a batch: the same in every layout, another one for other rows."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.content_digest import (
    Content,
    compiled_hash_bytes,
    content_of,
    hash_bytes,
    hash_of_bytes,
    python_hash_bytes,
    sum_contents,
)
from ottla.spark.kernel import IS_COMPILED

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.string()),
        ("number", pa.int64()),
        ("headers", pa.list_(HEADER)),
    ]
)
rows = st.fixed_dictionaries(
    {
        "value": st.none() | st.binary(max_size=20),
        "key": st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
        "number": st.none() | st.integers(-(2**63), 2**63 - 1),
        "headers": st.none()
        | st.lists(
            st.none()
            | st.fixed_dictionaries(
                {"key": st.sampled_from("ab"), "value": st.none() | st.binary(max_size=3)}
            ),
            max_size=3,
        ),
    }
)


def batch_of(some: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(some), schema=SCHEMA)


@given(st.lists(rows, max_size=12), st.data())
def test_the_content_does_not_depend_on_tasks_or_order(
    some: list[dict[str, Any]], data: st.DataObject
) -> None:
    whole = content_of(batch_of(some))
    assert whole.rows == len(some)
    mixed = data.draw(st.permutations(some))
    cut = data.draw(st.integers(0, len(some)))
    assert (
        sum_contents([content_of(batch_of(mixed[:cut])), content_of(batch_of(mixed[cut:]))])
        == whole
    )
    sliced = batch_of(some)
    assert content_of(sliced.slice(0, cut)) + content_of(sliced.slice(cut)) == whole


@given(st.lists(rows, min_size=1, max_size=8), rows, st.data())
def test_another_row_is_another_content(
    some: list[dict[str, Any]], other: dict[str, Any], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(some) - 1))
    changed = [*some[:at], other, *some[at + 1 :]]
    assert (content_of(batch_of(changed)) == content_of(batch_of(some))) is (other == some[at])


def test_columns_and_elements_do_not_stand_for_each_other() -> None:
    def one(**row: object) -> Content:
        return content_of(batch_of([row]))

    different = [
        one(value=b"a"),
        one(key="a"),
        one(value=b"a", key=""),
        one(headers=[]),
        one(headers=[None]),
        one(headers=[{"key": None, "value": None}]),
        one(headers=[{"key": "", "value": None}]),
        one(headers=[{"key": "a", "value": b"b"}, {"key": "b", "value": b"a"}]),
        one(headers=[{"key": "b", "value": b"a"}, {"key": "a", "value": b"b"}]),
        one(),
    ]
    assert len(set(different)) == len(different)


def test_every_type_that_spark_writes_to_tables_counts() -> None:
    moment = datetime(2026, 11, 16, tzinfo=UTC)
    columns = {
        "bool": pa.array([True, False, None]),
        "byte": pa.array([1, 2, None], pa.int8()),
        "short": pa.array([1, 2, None], pa.int16()),
        "float": pa.array([1.5, 2.5, None], pa.float32()),
        "double": pa.array([1.5, 2.5, None]),
        "date": pa.array([date(2026, 1, 1), date(2026, 1, 2), None]),
        "time": pa.array([moment, moment.replace(day=1), None], pa.timestamp("us", "UTC")),
        "decimal": pa.array([Decimal("1.10"), Decimal("2.20"), None], pa.decimal128(38, 2)),
        "map": pa.array([[("a", 1)], [("a", 2)], None], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"a": {"b": 1}}, {"a": None}, None]),
        "words": pa.array(["a", "b", None]).dictionary_encode(),
        "large": pa.array(["a", "b", None], pa.large_string()),
    }
    for name, column in columns.items():
        first, second, null = (
            content_of(pa.record_batch({name: column.slice(row, 1)})) for row in range(3)
        )
        assert len({first, second, null}) == 3, name
        assert first + second + null == content_of(pa.record_batch({name: column}))
    nothing = content_of(pa.record_batch({"nothing": pa.nulls(2)}))
    assert nothing == Content(2, 0)


@pytest.mark.skipif(not IS_COMPILED, reason="no kernel was compiled")
@given(st.lists(st.none() | st.binary(max_size=40), max_size=10))
def test_the_kernel_and_its_fallback_agree(values: list[bytes | None]) -> None:
    source = b"".join(value or b"" for value in values)
    sizes = np.array([-1 if value is None else len(value) for value in values], np.int64)
    ats = np.cumsum(np.maximum(sizes, 0)) - np.maximum(sizes, 0)
    compiled = compiled_hash_bytes(source, ats, sizes)
    assert compiled.tolist() == python_hash_bytes(source, ats, sizes).tolist()


@pytest.mark.skipif(not IS_COMPILED, reason="no kernel was compiled")
def test_the_kernel_reads_nothing_outside_of_its_source() -> None:
    for at, size in ((0, 4), (3, 1), (-1, 1), (2**62, 2**62)):
        with pytest.raises(IndexError, match="are not inside"):
            compiled_hash_bytes(b"abc", np.array([at]), np.array([size]))


def test_the_hash_is_written_down() -> None:
    """Decisions outlive versions: the same rows must have the same digest in all of them."""
    assert hash_of_bytes(b"") == 0xE220A8397B1DCDAF
    assert hash_of_bytes(b"ottla") == 0xDDF7180948C66550
    assert int(hash_bytes(b"0123456789", np.array([0]), np.array([10]))[0]) == 0x2860C425FE07DA87
    assert content_of(batch_of([{"value": b"a", "key": "b", "number": 1}])) == Content(
        1, 0xC6F8482CBFB0FF0E
    )


def test_a_null_list_may_lie_over_elements_that_do_not_count() -> None:
    lists = pa.ListArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), pa.array([1, 2, 3]), mask=pa.array([True, False])
    )
    assert lists.to_pylist() == [None, [3]]
    plain = pa.array([None, [3]], pa.list_(pa.int64()))
    assert content_of(pa.record_batch([lists], ["n"])) == content_of(
        pa.record_batch([plain], ["n"])
    )
