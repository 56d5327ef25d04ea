"""The writers by themselves, as Spark calls them, against a real broker; no JVM takes part."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from crash.processes import BrokerProcess
from ottla.client.partitioner import partition_of_key
from ottla.spark.decode import HEADERS_TYPE
from ottla.spark.options import OptionRefused
from ottla.spark.sink import BATCH_BYTES_MAX, RowRefused, Written, batch_writer, stream_writer
from ottla.spark.source import batch_reader
from spark.topics import PATIENCE_S, Topic

NEW_TOPIC = Callable[..., Topic]
TEXT = StructType([StructField("value", StringType())])
HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
READ = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("headers", HEADERS),
    ]
)


def write(topic: Topic, rows: Sequence[dict[str, Any]], schema: StructType, **more: str) -> int:
    """What `df.write` does with one task."""
    options = {"kafka.bootstrap.servers": topic.address, "topic": topic.name}
    named = {name.replace("__", "."): value for name, value in more.items()}
    writer = batch_writer(options | named, schema, overwrite=False)
    done = writer.write(iter([batch_of(rows)]))
    assert isinstance(done, Written)
    return done.rows


def batch_of(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    types = {
        "value": pa.string(),
        "key": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "headers": HEADERS_TYPE,
    }
    schema = pa.schema([(name, types[name]) for name in rows[0]])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def read(topic: Topic) -> list[dict[str, object]]:
    reader = batch_reader(topic.options(includeHeaders="true"), READ)
    rows = [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def test_rows_become_records_with_all_their_columns(new_topic: NEW_TOPIC) -> None:
    topic = new_topic(3)
    schema = StructType(
        [
            StructField("value", StringType()),
            StructField("key", BinaryType()),
            StructField("partition", IntegerType()),
            StructField("headers", HEADERS),
        ]
    )
    headers = [{"key": "h", "value": b"1"}]
    rows: list[dict[str, Any]] = [
        {"value": "a", "key": b"k", "partition": 2, "headers": headers},
        {"value": None, "key": None, "partition": 0, "headers": None},
    ]
    assert write(topic, rows, schema) == 2
    assert read(topic) == [
        {"key": None, "value": None, "partition": 0, "offset": 0, "headers": None},
        {"key": b"k", "value": b"a", "partition": 2, "offset": 0, "headers": headers},
    ]


def test_keys_go_where_every_client_puts_them(new_topic: NEW_TOPIC) -> None:
    topic = new_topic(5)
    schema = StructType([StructField("value", StringType()), StructField("key", BinaryType())])
    keys = [b"key-%d" % number for number in range(40)]
    write(topic, [{"value": "v", "key": key} for key in keys], schema)
    found = {row["key"]: row["partition"] for row in read(topic)}
    assert found == {key: partition_of_key(key, 5) for key in keys}


def test_the_option_wins_over_the_column(new_topic: NEW_TOPIC) -> None:
    topic, other = new_topic(), new_topic()
    schema = StructType([StructField("value", StringType()), StructField("topic", StringType())])
    write(topic, [{"value": "v", "topic": other.name}], schema)
    assert [row["value"] for row in read(topic)] == [b"v"]
    by_column = batch_writer({"kafka.bootstrap.servers": topic.address}, schema, overwrite=False)
    by_column.write(iter([batch_of([{"value": "w", "topic": other.name}])]))
    assert [row["value"] for row in read(other)] == [b"w"]
    with pytest.raises(RowRefused, match="`topic` is null"):
        by_column.write(iter([batch_of([{"value": "w", "topic": None}])]))


def test_a_partition_that_is_not_there_is_refused(topic: Topic) -> None:
    schema = StructType(
        [StructField("value", StringType()), StructField("partition", IntegerType())]
    )
    with pytest.raises(RowRefused, match="has no partition 7"):
        write(topic, [{"value": "v", "partition": 7}], schema)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_many_rows_keep_their_order_over_several_batches(topic: Topic, codec: str) -> None:
    values = [f"{number}-{'x' * 1000}" for number in range(3 * BATCH_BYTES_MAX // 1000)]
    write(topic, [{"value": value} for value in values], TEXT, kafka__compression__type=codec)
    assert [row["value"] for row in read(topic)] == [value.encode() for value in values]


def test_a_task_without_rows_says_so_without_a_broker() -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    writer = stream_writer(options | {"checkpointLocation": "/somewhere"}, TEXT)
    done = writer.write(iter(()))
    assert done == Written(0)
    writer.commit([done], batchId=0)
    writer.abort([None], batchId=0)


@pytest.mark.parametrize(
    ("more", "schema", "words"),
    [
        ({"delivery": "exactly-once"}, TEXT, "not supported yet"),
        ({"delivery": "perhaps"}, TEXT, "none of at-least-once, exactly-once"),
        ({"subscribe": "t"}, TEXT, "unknown option subscribe"),
        ({"topic": "a b"}, TEXT, "a topic name consists of"),
        ({"kafka.acks": "1"}, TEXT, "none of all, -1"),
        ({}, StructType([StructField("key", StringType())]), "`value` of STRING or BINARY"),
        ({}, StructType([StructField("value", LongType())]), "value is int64"),
        (
            {},
            StructType([*TEXT.fields, StructField("price", LongType())]),
            "column price has no place",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(
    more: dict[str, str], schema: StructType, words: str
) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"} | more
    with pytest.raises(OptionRefused, match=words):
        stream_writer(options, schema)


def test_a_place_to_write_to_is_needed_and_nothing_is_overwritten() -> None:
    with pytest.raises(OptionRefused, match="where to"):
        stream_writer({"kafka.bootstrap.servers": "127.0.0.1:1"}, TEXT)
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    with pytest.raises(OptionRefused, match="cannot be overwritten"):
        batch_writer(options, TEXT, overwrite=True)


@pytest.mark.slow
def test_a_broker_killed_under_way_gets_every_row_once(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", log_file=tmp_path / "log")
    broker.start()
    try:
        topic = Topic(broker.address, "killed")
        topic.create()
        sent = threading.Event()

        def batches() -> Iterator[pa.RecordBatch]:
            for number in range(20):
                if number == 5:
                    sent.set()
                yield batch_of([{"value": f"{number}-{row}"} for row in range(50)])

        options = {"kafka.bootstrap.servers": topic.address, "topic": topic.name}
        done = list[object]()
        writing = threading.Thread(
            target=lambda: done.append(stream_writer(options, TEXT).write(batches()))
        )
        writing.start()
        assert sent.wait(PATIENCE_S)
        broker.kill()
        broker.start()
        writing.join(PATIENCE_S)
        assert done == [Written(1000)]
        expected = [f"{number}-{row}".encode() for number in range(20) for row in range(50)]
        assert [row["value"] for row in read(topic)] == expected
    finally:
        broker.end()
