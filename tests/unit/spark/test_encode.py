"""Rows of Arrow batches become the records they say, packed for the partitions they belong to."""

from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ottla.client.partitioner import Partitioner, partition_of_key
from ottla.model import TimestampMs, TopicPartition
from ottla.records.batch import Record, records, seal

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
encode = pytest.importorskip("ottla.spark.encode")
HEADERS_TYPE = pytest.importorskip("ottla.spark.decode").HEADERS_TYPE

NOW_MS = TimestampMs(1_700_000_000_000)
TYPES = {
    "value": pa.binary(),
    "key": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "headers": HEADERS_TYPE,
}
contents = st.none() | st.binary(max_size=40)
rows_of_any_kind = st.fixed_dictionaries(
    {
        "value": contents,
        "key": contents,
        "topic": st.sampled_from(["a", "b"]),
        "partition": st.none() | st.integers(0, 2),
        "headers": st.none()
        | st.lists(
            st.fixed_dictionaries({"key": st.text(max_size=5), "value": contents}), max_size=2
        ),
    }
)


def batch_of(rows: list[dict[str, Any]], **types: Any) -> Any:
    known = {**TYPES, **types}
    schema = pa.schema([(name, known[name]) for name in rows[0]])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def encoded(batch: Any, topic: str | None = None) -> dict[TopicPartition, list[Record]]:
    """Every record of every partition, read back."""
    rows_of = encode.rows_by_topic(batch, topic)
    partitioners = {name: Partitioner(3, Random(1)) for name in rows_of}
    routes = encode.encode(batch, rows_of, partitioners, NOW_MS)
    return {
        tp: [record for packed in packs for record in records(seal(packed))]
        for tp, packs in routes.items()
    }


def expected_record(row: dict[str, Any]) -> tuple[object, ...]:
    headers = tuple((one["key"], one["value"]) for one in row["headers"] or ())
    return NOW_MS, row["key"], row["value"], headers


@given(st.lists(rows_of_any_kind, min_size=1, max_size=30), st.data())
def test_every_row_is_one_record_in_its_place_and_order(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))  # what Spark hands over may be a slice
    found = encoded(batch_of(rows).slice(start))
    unkeyed = Partitioner(3, Random(1)).choose(None)
    expected = dict[TopicPartition, list[tuple[object, ...]]]()
    for row in rows[start:]:
        partition = row["partition"]
        if partition is None:
            key = row["key"]
            partition = unkeyed if key is None else partition_of_key(key, 3)
        expected.setdefault(TopicPartition(row["topic"], partition), []).append(
            expected_record(row)
        )
    assert {
        tp: [(one.timestamp_ms, one.key, one.value, one.headers) for one in found[tp]]
        for tp in found
    } == expected
    for of_partition in found.values():
        assert of_partition[0].offset == 0


@pytest.mark.parametrize("wide", [pa.large_string(), pa.large_binary(), pa.string()])
def test_columns_may_be_text_and_have_wide_offsets(wide: Any) -> None:
    text = "ä" if pa.types.is_string(wide) or pa.types.is_large_string(wide) else "ä".encode()
    batch = batch_of(
        [{"value": text, "key": None}, {"value": None, "key": text}], value=wide, key=wide
    )
    found = [record for some in encoded(batch, "t").values() for record in some]
    assert {(record.key, record.value) for record in found} == {
        (None, "ä".encode()),
        ("ä".encode(), None),
    }


@pytest.mark.slow
def test_batches_have_a_limit_and_a_larger_record_one_to_itself() -> None:
    sizes = [encode.BATCH_BYTES_MAX // 2] * 3 + [2 * encode.BATCH_BYTES_MAX] + [10] * 5
    batch = batch_of([{"value": bytes(size)} for size in sizes])
    routes = encode.encode(
        batch, encode.rows_by_topic(batch, "t"), {"t": Partitioner(1, Random(1))}, NOW_MS
    )
    (packs,) = routes.values()
    assert [packed.record_count for packed in packs] == [1, 1, 1, 1, 5]
    assert all(len(packed.payload) <= encode.BATCH_BYTES_MAX for packed in packs[:3] + packs[4:])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"value": b"", "topic": None}, "`topic` is null"),
        ({"value": b"", "topic": "t", "partition": 3}, "topic t has no partition 3"),
        ({"value": b"", "topic": "t", "partition": -1}, "topic t has no partition -1"),
        ({"value": b"", "topic": "t", "headers": [{"key": None, "value": b""}]}, "has no key"),
        ({"value": b"", "topic": "t", "headers": [None]}, "has no key"),
    ],
)
def test_a_row_that_cannot_be_a_record_is_refused(row: dict[str, Any], words: str) -> None:
    with pytest.raises(encode.RowRefused, match=words):
        encoded(batch_of([row]))
