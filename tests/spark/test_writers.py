"""Writers called as Spark calls them, against a real broker; no JVM takes part."""

from typing import Any

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

from ottla.client.partitioner import partition_of_key
from ottla.spark.batch_decisions import TaskResult
from ottla.spark.content_digest import Content
from ottla.spark.encode import BATCH_BYTES_MAX, RowRefused
from ottla.spark.option_reader import OptionRefused
from ottla.spark.sink import batch_writer, stream_writer
from ottla.spark.write_task import WrittenInTransaction
from spark.direct_writers import HEADERS, NEW_TOPIC, TEXT, batch_of, read, save, write
from spark.task_context import task
from spark.topics import Topic

pytestmark = pytest.mark.usefixtures("batch_task")


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
    save(by_column, iter([batch_of([{"value": "w", "topic": other.name}])]))
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
    assert done == WrittenInTransaction("query", "query-t", TaskResult(Content()))
    writer.abort([None], batchId=0)


@pytest.mark.parametrize(
    ("more", "schema", "words"),
    [
        ({"kafka.transactional.id": "mine"}, TEXT, "every task attempt has its own"),
        ({"transactionTimeout": "soon"}, TEXT, "is not a duration"),
        ({"transactionTimeout": "0"}, TEXT, "not between 1 ms"),
        ({"delivery": "perhaps"}, TEXT, "none of at-least-once, exactly-once"),
        ({"acceptBatch": "-1"}, TEXT, "not the number of a micro-batch"),
        ({"subscribe": "t"}, TEXT, "unknown option subscribe"),
        ({"topic": "a b"}, TEXT, "a topic name consists of"),
        ({"kafka.acks": "1"}, TEXT, "none of all, -1"),
        ({}, StructType([StructField("key", StringType())]), "`value` of STRING or BINARY"),
        ({}, StructType([StructField("value", LongType())]), "value is int64"),
        (
            {},
            StructType([*TEXT.fields, StructField("price", LongType())]),
            "column price is not part of a record",
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


def test_a_topic_is_needed_and_nothing_is_overwritten() -> None:
    with pytest.raises(OptionRefused, match="no topic: give the option"):
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
    writer = batch_writer(options, schema, overwrite=False)
    assert save(writer, iter([batch_of(rows)])) == 100
    for number, topic in enumerate(topics):
        assert sorted(map(int, topic.committed())) == list(range(number, 100, 2))
