"""Spark's own Kafka connector against Ottla, and its checkpoints taken over by `format("ottla")`.

Both formats are in one Spark, so what one reads or writes is compared with the other.
"""

import json
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from compat.ottla_broker import OttlaBroker
from compat.peers import CACHE
from ottla.spark import session
from spark.worker_start import retry_worker_start

CONNECTOR = CACHE / "spark-connector"
PATIENCE_S = 240
PARTITIONS = 2
FORMATS = ("kafka", "ottla")

pytestmark = [pytest.mark.compat, pytest.mark.needs("spark-connector"), pytest.mark.timeout(900)]
_numbers = count(1)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    jars = sorted(map(str, CONNECTOR.glob("*.jar")))
    if not jars:
        pytest.fail(
            "Spark's Kafka connector is missing: run `python -m compat.peers spark-connector`",
            pytrace=False,
        )
    conf = {
        "spark.jars": ",".join(jars),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark") / "warehouse"),
        "spark.driver.memory": "512m",
    }
    spark = session("compat", master="local[2]", conf=conf)
    yield spark
    spark.stop()


@pytest.fixture
def topic(ottla: OttlaBroker) -> str:
    return new_topic(ottla.address)


def new_topic(address: str) -> str:
    name = f"spark-connector-{next(_numbers)}"
    # Records here are from 1970: no retention may find them too old.
    new = NewTopic(name, num_partitions=PARTITIONS, config={"retention.ms": "-1"})
    admin = AdminClient({"bootstrap.servers": address})  # it must live as long as its answer
    admin.create_topics([new])[name].result(60)
    return name


def fill(address: str, topic: str, numbers: range, codec: str = "none") -> None:
    """A record for each number, by turns in both partitions; some without key, value, headers."""
    producer = Producer({"bootstrap.servers": address, "compression.type": codec})
    for number in numbers:
        producer.produce(
            topic,
            key=None if number % 5 == 0 else b"key-%d" % number,
            value=None if number % 7 == 0 else b"%d" % number,
            headers=[("h", b"%d" % number), ("h", None)] if number % 3 else None,
            partition=number % PARTITIONS,
            timestamp=1000 + number,
        )
    assert producer.flush(60) == 0


def read(spark: SparkSession, kind: str, address: str, topic: str, **more: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": address, "subscribe": topic} | more
    return spark.read.format(kind).options(**options).load()


def rows(frame: DataFrame) -> list[Row]:
    return frame.orderBy("partition", "offset").collect()


def write(frame: DataFrame, kind: str, address: str, **more: str) -> None:
    options = {"kafka.bootstrap.servers": address} | more
    frame.write.format(kind).options(**options).mode("append").save()


def stream(spark: SparkSession, kind: str, address: str, topic: str, **more: str) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": address,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "4",
    }
    return spark.readStream.format(kind).options(**options | more).load()


def drain(
    spark: SparkSession, kind: str, address: str, topic: str, home: Path, **more: str
) -> None:
    """Write what is there to files, from the checkpoint on if there is one."""

    def attempt() -> None:
        query = (
            stream(spark, kind, address, topic, **more)
            .select("partition", "offset")
            .writeStream.format("parquet")
            .option("path", str(home / "out"))
            .option("checkpointLocation", str(home / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)

    retry_worker_start(attempt)


def places(spark: SparkSession, home: Path) -> list[tuple[int, int]]:
    found = spark.read.parquet(str(home / "out")).collect()
    return sorted((row["partition"], row["offset"]) for row in found)


def all_places(start: int, end: int) -> list[tuple[int, int]]:
    return [(partition, at) for partition in range(PARTITIONS) for at in range(start, end)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_both_formats_read_the_same_rows(
    spark: SparkSession, ottla: OttlaBroker, topic: str, codec: str
) -> None:
    fill(ottla.address, topic, range(60), codec)
    theirs, ours = (
        read(spark, kind, ottla.address, topic, includeHeaders="true") for kind in FORMATS
    )
    assert theirs.schema == ours.schema
    assert len(rows(theirs)) == 60
    assert rows(theirs) == rows(ours)


@pytest.mark.parametrize(
    "more",
    [
        {
            "startingOffsets": '{"TOPIC":{"0":5,"1":-2}}',
            "endingOffsets": '{"TOPIC":{"0":9,"1":-1}}',
        },
        {"startingTimestamp": "1030", "endingTimestamp": "1040"},
        {"startingOffsetsByTimestamp": '{"TOPIC":{"0":1010,"1":1050}}'},
        {"minPartitions": "5"},
    ],
    ids=lambda more: next(iter(more)),
)
def test_options_mean_the_same(
    spark: SparkSession, ottla: OttlaBroker, topic: str, more: dict[str, str]
) -> None:
    fill(ottla.address, topic, range(60))
    named = {name: value.replace("TOPIC", topic) for name, value in more.items()}
    theirs, ours = (rows(read(spark, kind, ottla.address, topic, **named)) for kind in FORMATS)
    assert theirs
    assert theirs == ours


@pytest.mark.parametrize("writer", FORMATS)
def test_rows_that_one_writes_the_other_reads(
    spark: SparkSession, ottla: OttlaBroker, topic: str, writer: str
) -> None:
    other = new_topic(ottla.address)
    frame = spark.range(40).selectExpr(
        f"CASE WHEN id % 4 = 0 THEN '{other}' ELSE '{topic}' END AS topic",
        "CAST(id AS STRING) AS value",
        "CASE WHEN id % 3 = 0 THEN NULL ELSE CONCAT('key-', id) END AS key",
        "CASE WHEN id % 5 = 0 THEN 1 END AS partition",
        "CAST(ARRAY(STRUCT('h', 'x')) AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
    )
    write(frame, writer, ottla.address, includeHeaders="true")
    reader = "ottla" if writer == "kafka" else "kafka"
    found = read(spark, reader, ottla.address, f"{topic},{other}", includeHeaders="true").collect()
    assert sorted(int(row["value"]) for row in found) == list(range(40))
    for row in found:
        number = int(row["value"])
        assert row["topic"] == (topic if number % 4 else other)
        assert row["key"] == (f"key-{number}".encode() if number % 3 else None)
        assert number % 5 or row["partition"] == 1
        assert [tuple(header) for header in row["headers"]] == [("h", b"x")]


def test_both_sinks_put_a_key_into_the_same_partition(
    spark: SparkSession, ottla: OttlaBroker
) -> None:
    frame = spark.range(50).selectExpr("CONCAT('key-', id) AS key", "'v' AS value")
    placed = list[dict[bytes, int]]()
    for kind in FORMATS:
        into = new_topic(ottla.address)
        write(frame, kind, ottla.address, topic=into)
        found = read(spark, "kafka", ottla.address, into).collect()
        placed.append({row["key"]: row["partition"] for row in found})
    assert len(placed[0]) == 50
    assert placed[0] == placed[1]


@pytest.mark.parametrize(
    ("source", "sink"), [("kafka", "kafka"), ("kafka", "ottla"), ("ottla", "kafka")]
)
def test_a_stream_copies_a_topic(
    spark: SparkSession,
    ottla: OttlaBroker,
    topic: str,
    tmp_path: Path,
    source: str,
    sink: str,
) -> None:
    fill(ottla.address, topic, range(20))
    into = new_topic(ottla.address)

    def copy() -> None:
        query = (
            stream(spark, source, ottla.address, topic, includeHeaders="true")
            .select("key", "value", "partition", "headers")
            .writeStream.format(sink)
            .option("kafka.bootstrap.servers", ottla.address)
            .option("topic", into)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)

    retry_worker_start(copy)
    columns = ("key", "value", "partition", "headers")
    theirs, ours = (
        sorted(
            map(
                str,
                read(spark, "kafka", ottla.address, one, includeHeaders="true")
                .select(*columns)
                .collect(),
            )
        )
        for one in (topic, into)
    )
    assert len(ours) == 20
    assert theirs == ours


# Checkpoints: `offsets/N` is where batch N ends, `commits/N` that it is done, and `sources/0/0`,
# which only Spark's connector writes, where the first batch began.


def offsets_in(file: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(file.read_text().splitlines()[-1])
    return found


def test_a_query_moves_over_and_back_with_its_checkpoint(
    spark: SparkSession, ottla: OttlaBroker, topic: str, tmp_path: Path
) -> None:
    for end, kind in ((10, "kafka"), (20, "ottla"), (30, "kafka")):
        fill(ottla.address, topic, range(end - 10, end))
        drain(spark, kind, ottla.address, topic, tmp_path)
    assert places(spark, tmp_path) == all_places(0, 15)
    assert offsets_in(tmp_path / "checkpoint/sources/0/0") == {topic: {"0": 0, "1": 0}}


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "not-written"])
def test_a_batch_that_was_not_finished_is_finished(
    spark: SparkSession, ottla: OttlaBroker, topic: str, tmp_path: Path, *, is_written: bool
) -> None:
    """The connector was killed after its sink wrote batch 1, or before."""
    fill(ottla.address, topic, range(8))
    drain(spark, "kafka", ottla.address, topic, tmp_path)
    forget(tmp_path, 1, is_written=is_written)
    fill(ottla.address, topic, range(8, 12))
    drain(spark, "ottla", ottla.address, topic, tmp_path)
    assert places(spark, tmp_path) == all_places(0, 6)


def test_a_first_batch_that_was_not_finished_needs_its_beginning(
    spark: SparkSession, ottla: OttlaBroker, topic: str, tmp_path: Path
) -> None:
    fill(ottla.address, topic, range(8))
    somewhere = json.dumps({topic: {"0": 3, "1": 3}})
    drain(spark, "kafka", ottla.address, topic, tmp_path, startingOffsets=somewhere)
    forget(tmp_path, 0, is_written=False)
    with pytest.raises(StreamingQueryException, match="its start offsets are not known"):
        drain(spark, "ottla", ottla.address, topic, tmp_path, startingOffsets="latest")
    begun = json.dumps(offsets_in(tmp_path / "checkpoint/sources/0/0"))
    drain(spark, "ottla", ottla.address, topic, tmp_path, startingOffsets=begun)
    assert places(spark, tmp_path) == all_places(3, 4)


def forget(home: Path, batch: int, *, is_written: bool) -> None:
    """As if the query had been killed in its last batch."""
    assert not (home / f"checkpoint/offsets/{batch + 1}").exists()
    (home / f"checkpoint/commits/{batch}").unlink()
    (home / f"checkpoint/commits/.{batch}.crc").unlink(missing_ok=True)
    if not is_written:
        if batch == 0:
            shutil.rmtree(home / "out")
            return
        (home / f"out/_spark_metadata/{batch}").unlink()
        (home / f"out/_spark_metadata/.{batch}.crc").unlink(missing_ok=True)
