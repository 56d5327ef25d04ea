"""Streams on a real Spark survive outages, aborted transactions and bad values."""

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from crash.processes import BrokerProcess
from spark.queries_together import Place, QueriesTogether, fill_sources, numbers_of
from spark.topics import TIMEOUT_S, Topic
from spark.worker_start import retry_worker_start

NEW_TOPIC = Callable[..., Topic]
QUERY_TIMEOUT_S = 400
# How long the broker is away at least. Every reader meets the outage, however short it is.
OUTAGE_S = float(os.environ.get("OTTLA_OUTAGE_S", "0"))
KNOCKS = 5  # of clients that are turned away before the broker comes back


def start(spark: SparkSession, topic: Topic, home: Path, **more: str) -> StreamingQuery:
    """A query that does not end by itself and writes values to files, with all read."""

    def attempt() -> StreamingQuery:
        options = topic.options(**{"startingOffsets": "earliest", **more})
        rows = spark.readStream.format("ottla").options(**options).load()
        query = (
            rows.selectExpr("CAST(value AS STRING) AS text", "offset")
            .writeStream.format("parquet")
            .option("path", str(home / "out"))
            .option("checkpointLocation", str(home / "checkpoint"))
            .start()
        )
        query.processAllAvailable()
        return query

    return retry_worker_start(attempt)


def test_rows_are_the_same_whether_tasks_read_them_or_the_planner(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.fill(range(6))
    rows = run(spark, topic, tmp_path, maxOffsetsPerTrigger="1")  # the first is read by a task
    assert [count for count in rows if count] == [1] * 6
    topic.fill(range(6, 9))
    rows = run(spark, topic, tmp_path, maxOffsetsPerTrigger="1")  # in another process
    assert [count for count in rows if count] == [1] * 3
    written = spark.read.parquet(str(tmp_path / "out")).collect()
    found = sorted((row.offset, bytes(row.value)) for row in written)
    assert found == [(number, b"%d" % number) for number in range(9)]


def run(spark: SparkSession, topic: Topic, home: Path, **more: str) -> list[int]:
    """Write what is there to files, and end; the rows of each batch."""

    def attempt() -> list[int]:
        options = topic.options(**{"startingOffsets": "earliest", **more})
        rows = spark.readStream.format("ottla").options(**options).load()
        query = (
            rows.select("value", "offset")
            .writeStream.format("parquet")
            .option("path", str(home / "out"))
            .option("checkpointLocation", str(home / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        return [progress["numInputRows"] for progress in query.recentProgress]

    return retry_worker_start(attempt)


def texts(spark: SparkSession, home: Path) -> list[str]:
    rows = spark.read.parquet(str(home / "out")).orderBy("offset").collect()
    return [row["text"] for row in rows]


def committed(topic: Topic, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": topic.address, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic.name, 0)], timeout=TIMEOUT_S)
        return int(found.offset)
    finally:
        consumer.close()


def turn_away(address: str) -> None:
    """Stand in for a broker that is away, until clients have asked for it often enough."""
    host, _, port = address.partition(":")
    back_s = time.monotonic() + OUTAGE_S
    with socket.create_server((host, int(port))) as door:
        door.settimeout(TIMEOUT_S)
        knocks = 0
        while knocks < KNOCKS or time.monotonic() < back_s:
            door.accept()[0].close()
            knocks += 1


def test_a_query_outlives_an_outage_of_its_broker(spark: SparkSession, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", log_file=tmp_path / "log")
    broker.start()
    try:
        topic = Topic(broker.address, "outage")
        topic.create()
        topic.fill(range(3))
        query = start(spark, topic, tmp_path, commitGroup="outage")
        broker.kill()
        turn_away(broker.address)  # it looks for news all the time, and finds nobody
        broker.start()
        topic.fill(range(3, 6))
        query.processAllAvailable()
        query.stop()
        assert texts(spark, tmp_path) == [str(number) for number in range(6)]
    finally:
        broker.end()


def test_queries_that_are_started_together_write_every_row_once(
    spark: SparkSession, address: str, tmp_path: Path
) -> None:
    """The small form of test_many_queries.py."""
    place, sinks = Place(address, tmp_path), ("topic", "foreachBatch")
    fill_sources(place, len(sinks))
    queries = QueriesTogether(spark, place, sinks)
    assert queries.wait() == {}
    assert queries.written() == {number: [*numbers_of(number)] for number in range(len(sinks))}


def test_a_partition_that_is_new_is_read_while_the_query_runs(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.fill(["old"])
    query = start(spark, topic, tmp_path)
    topic.grow(2)
    topic.fill(["new", "newer"], partition=1)
    deadline_s = time.monotonic() + QUERY_TIMEOUT_S
    while sorted(texts(spark, tmp_path)) != ["new", "newer", "old"]:
        assert time.monotonic() < deadline_s, texts(spark, tmp_path)
        query.processAllAvailable()
    query.stop()


def test_a_run_that_ends_by_itself_ends_while_others_write(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.fill(range(10))
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            topic.fill(["late"] * 10)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        batches = run(spark, topic, tmp_path, maxOffsetsPerTrigger="1000")
    finally:
        over.set()
        writing.join(TIMEOUT_S)
    assert sum(batches) >= 10


def test_lag_is_zero_after_the_last_batch(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.fill(range(10))
    group = f"lag-of-{topic.name}"
    batches = run(spark, topic, tmp_path, maxOffsetsPerTrigger="6", commitGroup=group)
    assert [rows for rows in batches if rows] == [6, 4]
    assert committed(topic, group) == 10


def test_offsets_that_hold_no_record_are_passed_over(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """Aborted records and the marks of transactions take offsets, also at the end."""
    producer = Producer(
        {"bootstrap.servers": topic.address, "transactional.id": f"txn-{topic.name}"}
    )
    producer.init_transactions(TIMEOUT_S)
    for number in range(8):
        producer.begin_transaction()
        producer.produce(topic.name, str(number), partition=0)
        if number % 4 == 3:
            producer.flush(TIMEOUT_S)  # else an aborted record might never be sent
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
    batches = run(spark, topic, tmp_path, maxOffsetsPerTrigger="5")
    assert sum(batches) == 6
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    assert [bytes(row["value"]) for row in rows] == [b"0", b"1", b"2", b"4", b"5", b"6"]


def test_bad_values_of_a_stream_become_dead_letters(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    pytest.importorskip("fastavro", reason="the extra `avro` is not installed")
    topic.fill(["\x02", "not avro", "\x04"])
    dead = Topic(topic.address, f"dead-{topic.name}")
    batches = run(
        spark,
        topic,
        tmp_path,
        valueFormat="avro",
        valueSchema='{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}',
        badRows="deadLetter",
        deadLetterTopic=dead.name,
    )
    assert sum(batches) == 2
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    assert [row["value"]["id"] for row in rows] == [1, 2]
    letters = spark.read.format("ottla").options(**dead.options(includeHeaders="true")).load()
    (letter,) = letters.collect()
    assert bytes(letter["value"]) == b"not avro"
    assert ("ottla.dead-letter.offset", b"1") in map(tuple, letter["headers"])
