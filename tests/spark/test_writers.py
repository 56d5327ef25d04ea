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
from ottla.client.errors import Fenced, Refused
from ottla.client.partitioner import partition_of_key
from ottla.spark.decode import HEADERS_TYPE
from ottla.spark.encode import BATCH_BYTES_MAX, RowRefused
from ottla.spark.options import OptionRefused, parse_write_options
from ottla.spark.sink import batch_writer, stream_writer
from ottla.spark.source import batch_reader
from ottla.spark.writing import Work, Written, write_exactly_once
from spark.tasks import task
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


@pytest.fixture(autouse=True)
def batch_task() -> Iterator[None]:
    """What runs here is the first task of a batch."""
    with task():
        yield


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
    options = {"kafka.bootstrap.servers": topic.address}
    by_column = batch_writer(options, schema, overwrite=False)
    by_column.write(iter([batch_of([{"value": "w", "topic": other.name}])]))
    assert [row["value"] for row in read(other)] == [b"w"]
    without = batch_writer(options, schema, overwrite=False)
    with pytest.raises(RowRefused, match="`topic` is null"):
        without.write(iter([batch_of([{"value": "w", "topic": None}])]))


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
    with task(query_id="query", batch_id=0):
        done = writer.write(iter(()))
    assert done == Written(0)
    writer.commit([done], batchId=0)
    writer.abort([None], batchId=0)


@pytest.mark.parametrize(
    ("more", "schema", "words"),
    [
        ({"kafka.transactional.id": "mine"}, TEXT, "every task has one of its own"),
        ({"transactionTimeout": "soon"}, TEXT, "is not a duration"),
        ({"transactionTimeout": "0"}, TEXT, "not between 1 ms"),
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


def test_headers_that_cannot_be_null_are_taken_too() -> None:
    """Spark knows that of literals."""
    header = StructType(
        [
            StructField("key", StringType(), nullable=False),
            StructField("value", BinaryType(), False),
        ]
    )
    headers = StructField("headers", ArrayType(header, containsNull=False), nullable=False)
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    stream_writer(options, StructType([*TEXT.fields, headers]))


def test_a_place_to_write_to_is_needed_and_nothing_is_overwritten() -> None:
    with pytest.raises(OptionRefused, match="where to"):
        stream_writer({"kafka.bootstrap.servers": "127.0.0.1:1"}, TEXT)
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    with pytest.raises(OptionRefused, match="cannot be overwritten"):
        batch_writer(options, TEXT, overwrite=True)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_every_delivery_writes_to_many_topics_and_partitions(
    new_topic: NEW_TOPIC, delivery: str
) -> None:
    topics = [new_topic(3), new_topic(2)]
    schema = StructType(
        [StructField(name, StringType()) for name in ("value", "topic")]
        + [StructField("partition", IntegerType())]
    )
    rows = [
        {"value": str(number), "topic": topics[number % 2].name, "partition": number % 3 % 2}
        for number in range(100)
    ]
    options = {"kafka.bootstrap.servers": topics[0].address, "delivery": delivery}
    done = batch_writer(options, schema, overwrite=False).write(iter([batch_of(rows)]))
    assert done == Written(100)
    for number, topic in enumerate(topics):
        assert sorted(map(int, topic.committed())) == list(range(number, 100, 2))


# Exactly once


def sink_of(topic: Topic, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": topic.address, "topic": topic.name, **more}


def texts(*values: str) -> Iterator[pa.RecordBatch]:
    """One Arrow batch for each value."""
    return iter([batch_of([{"value": value}]) for value in values])


def stream(topic: Topic, batch_id: int, *values: str, query_id: str = "query") -> Written:
    """What a stream does with one micro-batch of one task."""
    with task(query_id=f"{query_id}-{topic.name}", batch_id=batch_id):
        done = stream_writer(sink_of(topic), TEXT).write(texts(*values))
    assert isinstance(done, Written)
    return done


def test_a_micro_batch_that_comes_again_is_left_out(topic: Topic) -> None:
    assert stream(topic, 0, "a", "b") == Written(2)
    assert stream(topic, 1, "c") == Written(1)
    assert stream(topic, 1, "c") == Written(1, is_repetition=True)
    assert stream(topic, 0, "a", "b") == Written(2, is_repetition=True)
    assert stream(topic, 2, "d") == Written(1)
    assert stream(topic, 2, "d", query_id="another") == Written(1)
    assert topic.committed() == ["a", "b", "c", "d", "d"]


def test_tasks_of_one_micro_batch_do_not_stand_for_each_other(topic: Topic) -> None:
    options = parse_write_options(sink_of(topic))
    for partition in range(3):
        work = Work(owner=topic.name, partition=partition, number=5)
        assert write_exactly_once(texts(str(partition)), options, work) == Written(1)
    assert sorted(topic.committed()) == ["0", "1", "2"]


def test_a_batch_job_writes_again_and_its_tasks_do_not(topic: Topic) -> None:
    job = batch_writer(sink_of(topic), TEXT, overwrite=False)
    assert job.write(texts("a")) == Written(1)
    assert job.write(texts("a")) == Written(1, is_repetition=True)
    assert batch_writer(sink_of(topic), TEXT, overwrite=False).write(texts("a")) == Written(1)
    assert topic.committed() == ["a", "a"]


def test_a_zombie_is_fenced_by_the_task_that_took_its_work(topic: Topic) -> None:
    options = parse_write_options(sink_of(topic))
    work = Work(owner=topic.name, partition=0, number=0)

    def rows_of_zombie() -> Iterator[pa.RecordBatch]:
        yield from texts("a", "b")  # the first of them is on its way when the second is taken
        assert write_exactly_once(texts("a", "b", "c"), options, work) == Written(3)
        yield from texts("c")

    with pytest.raises(Fenced, match="another producer has taken its place"):
        write_exactly_once(rows_of_zombie(), options, work)
    assert topic.committed() == ["a", "b", "c"]


def test_rows_of_a_task_that_fails_count_for_nothing_and_hold_up_nobody(topic: Topic) -> None:
    class Spilled(Exception):
        pass

    def rows() -> Iterator[pa.RecordBatch]:
        yield from texts("a", "b", "c")
        raise Spilled

    options = parse_write_options(sink_of(topic))
    work = Work(owner=topic.name, partition=0, number=0)
    with pytest.raises(Spilled):
        write_exactly_once(rows(), options, work)
    assert topic.ends() != {0: 0}
    assert topic.committed() == []
    assert write_exactly_once(texts("a", "b", "c"), options, work) == Written(3)
    assert topic.committed() == ["a", "b", "c"]


def test_a_task_of_no_query_is_told_what_to_do(topic: Topic) -> None:
    with pytest.raises(OptionRefused, match="set delivery=at-least-once"):
        stream_writer(sink_of(topic), TEXT).write(texts("a"))


def test_a_timeout_beyond_what_the_broker_allows_is_explained(topic: Topic) -> None:
    with pytest.raises(Refused, match=r"transaction\.max\.timeout\.ms"):
        batch_writer(sink_of(topic, transactionTimeout="10d"), TEXT, overwrite=False).write(
            texts("a")
        )


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_broker_killed_under_way_gets_every_row_once(tmp_path: Path, delivery: str) -> None:
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

        writer = batch_writer(sink_of(topic, delivery=delivery), TEXT, overwrite=False)
        done = list[object]()
        writing = threading.Thread(target=lambda: done.append(writer.write(batches())))
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
