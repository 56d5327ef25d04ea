"""JSON values have the rows that Spark's `from_json` makes of them, for every type and value."""

import json
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import hypothesis.strategies as st
import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from ottla.spark import with_json_values
from ottla.spark.option_reader import OptionRefused
from sizes import examples
from spark.direct_readers import HEADERS, PLAIN, read
from spark.topics import TIMEOUT_S, Topic

TYPES = (
    "BOOLEAN",
    "TINYINT",
    "INT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(10, 2)",
    "STRING",
    "BINARY",
    "DATE",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "ARRAY<INT>",
    "MAP<STRING, INT>",
    "STRUCT<x: INT, y: STRING>",
)
FIELDS = ", ".join(f"f{number} {kind}" for number, kind in enumerate(TYPES))
# Literals that parsers of JSON, dates and numbers disagree about.
ODD = (
    *("1", "-1", "300", "1.0", "1e3", "1e400", "0.1", "123456789.125", "9223372036854775808"),
    *("true", "null", "NaN", "Infinity", '"NaN"', '"1"', '""', '" "', '"AQID"', "'single'"),
    *('"2026-11-15"', '"2026-11-15T10:00:00Z"', '"2026-11-15 10:00:00.123456"', '"2026"'),
    *('"2026-11-15T10:00:00+02:00"', '"2026-02-30"', '"not a date"', "01", '"\\ud800"'),
    *("[1, 2]", "[]", '[1, "a"]', "{}", '{"x": 1, "y": 2}', '{"x": "a"}', '{"a": 1.5}'),
)
literals = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
).map(json.dumps)
objects = st.lists(st.tuples(st.integers(0, len(TYPES)), literals), min_size=1, max_size=4).map(
    lambda fields: "{" + ", ".join(f'"f{at}": {text}' for at, text in fields) + "}"
)
texts = (
    st.sampled_from(["", " ", "null", "5", "[]", "{", "{}}", "{} {}", '{"f2": 1} x', "[{}]"])
    | objects
    | st.tuples(objects, st.integers(0, 40)).map(lambda cut: cut[0][: cut[1]])
)
values = st.none() | texts.map(str.encode) | st.binary(max_size=8)
_numbers = count(1)


def put(topic: Topic, values: Iterable[bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": topic.address, "linger.ms": 5})
    for value in values:
        producer.produce(topic.name, value=value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def records(spark: SparkSession, topic: Topic, **more: str) -> DataFrame:
    return spark.read.format("ottla").options(**topic.options(**more)).load()


def ids(rows: list[Row]) -> list[int | None]:
    return [None if row.value is None else row.value.id for row in rows]


def drawn(count: int) -> list[bytes | None]:
    """What hypothesis draws, for one job of Spark."""
    found = list[bytes | None]()

    @settings(max_examples=count, database=None)
    @given(values)
    def draw(value: bytes | None) -> None:
        found.append(value)

    draw()
    return found


def test_every_type_and_value_is_that_of_from_json(spark: SparkSession, topic: Topic) -> None:
    # Each literal in a field of each type, and what hypothesis finds.
    pairs = [f'{{"f{at}": {text}}}'.encode() for at in range(len(TYPES)) for text in ODD]
    batch = drawn(examples(500))
    put(topic, [*pairs, *batch])
    found = with_json_values(records(spark, topic), FIELDS)
    text = sql.col("value").cast("string")
    told = f"{FIELDS}, _corrupt_record STRING"
    expected = records(spark, topic).select(
        sql.from_json(text, FIELDS).cast("string").alias("value"),
        sql.when(
            text.isNotNull()
            & (
                sql.from_json(text, FIELDS).isNull()
                | sql.from_json(text, told)["_corrupt_record"].isNotNull()
            ),
            sql.col("value"),
        ).alias("_corrupt"),
        "offset",
    )
    # As strings: Python has no equal NaN, nor all of Spark's dates.
    ours = found.withColumn("value", sql.col("value").cast("string")).select(*expected.columns)
    rows = ours.orderBy("offset").collect()
    assert rows == expected.orderBy("offset").collect()
    assert len(rows) == len(pairs) + len(batch)
    assert 0 < sum(row["_corrupt"] is not None for row in rows) < len(rows)


def test_the_fields_that_can_be_parsed_are_beside_the_bad_value(
    spark: SparkSession, topic: Topic
) -> None:
    put(topic, [b'{"id": 1, "on": "2026-11-15"}', b'{"id": 2, "on": "soon"}', b"", None])
    rows = with_json_values(records(spark, topic), "id INT, on DATE").orderBy("offset").collect()
    assert ids(rows) == [1, 2, None, None]
    assert [row["_corrupt"] for row in rows] == [None, b'{"id": 2, "on": "soon"}', b"", None]
    assert rows[1].value.on is None


def test_a_query_can_end_at_the_first_bad_value(spark: SparkSession, topic: Topic) -> None:
    put(topic, [b'{"id": 1}', b"broken"])
    found = with_json_values(records(spark, topic), "id BIGINT", bad_rows="fail")
    assert "_corrupt" not in found.columns
    assert ids(found.where("offset = 0").collect()) == [1]
    with pytest.raises(PySparkException, match=f"{topic.name}-0 offset 1: the value is bad"):
        found.collect()


def test_dead_letters_of_a_stream_are_the_records_that_it_left_out(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.fill(['{"id": 1}', "broken", '{"id": 3}'], key=b"k", headers=[("h", b"1")])
    dead = Topic(topic.address, f"json-dead-{next(_numbers)}")
    options = topic.options(startingOffsets="earliest", includeHeaders="true")
    stream = with_json_values(
        spark.readStream.format("ottla").options(**options).load(),
        "id BIGINT",
        bad_rows="deadLetter",
        dead_letter_topic=dead.name,
        brokers={"kafka.bootstrap.servers": topic.address},
    )
    query = (
        stream.writeStream.format("memory")
        .queryName("left")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(400)
    assert ids(spark.table("left").orderBy("offset").collect()) == [1, 3]
    (letter,) = read(dead.options(includeHeaders="true"), StructType([*PLAIN.fields, HEADERS]))
    assert (letter["key"], letter["value"]) == (b"k", b"broken")
    headers = letter["headers"]
    assert isinstance(headers, list)
    assert {one["key"]: one["value"] for one in headers} == {
        "h": b"1",
        "ottla.dead-letter.topic": topic.name.encode(),
        "ottla.dead-letter.partition": b"0",
        "ottla.dead-letter.offset": b"1",
        "ottla.dead-letter.timestamp": b"1001",
        "ottla.dead-letter.reason": b"from_json cannot make all fields of it",
    }


def test_what_cannot_be_parsed_is_refused_before_the_query_runs(
    spark: SparkSession, topic: Topic
) -> None:
    found = records(spark, topic)
    with pytest.raises(PySparkException, match=r"(?i)map|interval|key"):
        with_json_values(found, "m MAP<INT, INT>")
    with pytest.raises(PySparkException, match=r"(?i)syntax"):
        with_json_values(found, "id of something else")
    with pytest.raises(OptionRefused, match="no column topic, partition, offset"):
        with_json_values(found.select("value"), "id INT", bad_rows="fail")
    with pytest.raises(OptionRefused, match="belong together"):
        with_json_values(found, "id INT", bad_rows="deadLetter")
    with pytest.raises(OptionRefused, match="rename the column _parsed"):
        with_json_values(found.withColumn("_parsed", sql.lit(1)), "id INT")
    to_itself = with_json_values(
        found,
        "id INT",
        bad_rows="deadLetter",
        dead_letter_topic=topic.name,
        brokers={"kafka.bootstrap.servers": topic.address},
    )
    put(topic, [b"broken"])
    with pytest.raises(PySparkException, match="is one of the topics that are read"):
        to_itself.collect()
