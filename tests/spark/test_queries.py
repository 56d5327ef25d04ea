"""Queries of users on a real local Spark, which finds the format by itself."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ottla.spark import register, source_metrics, with_json_values
from spark.schema_registry import schema_registry
from spark.topics import Topic

QUERY_TIMEOUT_S = 400
NEW_TOPIC = Callable[..., Topic]


def batch(spark: SparkSession, topic: Topic, **more: str) -> DataFrame:
    return spark.read.format("ottla").options(**topic.options(**more)).load()


def run(spark: SparkSession, topic: Topic, home: Path, **more: str) -> StreamingQuery:
    """Stream what is there into files, from the checkpoint on if there is one."""
    options = topic.options(**{"startingOffsets": "earliest", **more})
    rows = spark.readStream.format("ottla").options(**options).load()
    query = (
        rows.selectExpr("CAST(value AS STRING) AS text", "offset")
        .writeStream.format("parquet")
        .option("path", str(home / "out"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    return query


def written(spark: SparkSession, home: Path) -> list[str]:
    rows = spark.read.parquet(str(home / "out")).orderBy("offset").collect()
    return [row["text"] for row in rows]


def test_a_batch_is_read_without_a_jar_or_a_call(spark: SparkSession, topic: Topic) -> None:
    topic.fill(range(20), key=b"k")
    rows = batch(spark, topic, includeHeaders="true", minPartitions="3")
    assert rows.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    found = rows.selectExpr("int(string(value)) AS number", "hex(key) AS key", "offset").collect()
    assert sorted((row.number, row.key, row.offset) for row in found) == [
        (number, "6B", number) for number in range(20)
    ]


def test_sql_reads_a_topic_through_a_view(spark: SparkSession, topic: Topic) -> None:
    topic.fill(range(5))
    register(spark)  # a second time, by hand: for sessions that do not find it
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING ottla"
        f" OPTIONS (`kafka.bootstrap.servers` '{topic.address}', subscribe '{topic.name}')"
    )
    (row,) = spark.sql("SELECT count(*) AS rows, max(offset) AS last FROM v").collect()
    assert (row.rows, row.last) == (5, 4)


def test_an_empty_topic_has_no_rows(spark: SparkSession, topic: Topic) -> None:
    assert batch(spark, topic).count() == 0


def test_columns_are_typed_by_option_or_by_schema(spark: SparkSession, topic: Topic) -> None:
    topic.fill(['{"id": 1, "tags": ["a"]}', "broken"])
    typed = with_json_values(batch(spark, topic), "id BIGINT, tags ARRAY<STRING>")
    rows = typed.select("value.id", "value.tags", "_corrupt").orderBy("offset").collect()
    assert [tuple(row) for row in rows] == [(1, ["a"], None), (None, None, b"broken")]
    few = (
        spark.read.format("ottla")
        .options(**topic.options())
        .schema("offset BIGINT, value STRING")
        .load()
    )
    assert [tuple(row) for row in few.orderBy("offset").collect()][1] == (1, "broken")


def test_filters_decide_what_is_fetched(spark: SparkSession, new_topic: NEW_TOPIC) -> None:
    topic = new_topic(2)
    topic.fill(range(10), partition=0)
    topic.fill(range(10, 20), partition=1)
    rows = batch(spark, topic, filterPushdown="true", maxRecordsPerPartition="1")
    some = rows.where("partition = 1 AND offset >= 4 AND offset < 7")
    assert some.rdd.getNumPartitions() == 3
    assert sorted(row.offset for row in some.collect()) == [4, 5, 6]
    since = rows.where("timestamp >= timestamp'1970-01-01T00:00:01.008Z'")
    assert since.rdd.getNumPartitions() == 4
    assert since.count() == 4


def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.fill(range(10))
    query = run(spark, topic, tmp_path, maxOffsetsPerTrigger="4")
    assert [
        progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]
    ] == [4, 4, 2]
    behind = [source_metrics(progress["sources"][0]) for progress in query.recentProgress]
    assert [one["maxOffsetsBehindLatest"] for one in behind][:3] == ["6", "2", "0"]
    topic.fill(range(10, 13))
    run(spark, topic, tmp_path)
    assert written(spark, tmp_path) == [str(number) for number in range(13)]


def test_a_checkpoint_of_sparks_own_connector_is_taken_over(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.fill(range(3))
    run(spark, topic, tmp_path)
    # Its offsets have the same shape, written without spaces.
    log = tmp_path / "checkpoint" / "offsets" / "0"
    *head, offsets = log.read_text().split("\n")
    assert json.loads(offsets) == {topic.name: {"0": 3}}
    log.write_text("\n".join([*head, json.dumps(json.loads(offsets), separators=(",", ":"))]))
    (log.parent / ".0.crc").unlink(missing_ok=True)
    topic.fill(range(3, 5))
    run(spark, topic, tmp_path)
    assert written(spark, tmp_path) == ["0", "1", "2", "3", "4"]


def test_a_user_is_told_which_records_are_missing(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.fill(range(3))
    run(spark, topic, tmp_path)
    topic.fill(range(3, 9))
    topic.cut(6)
    with pytest.raises(StreamingQueryException, match="offsets 3 to 5 are missing"):
        run(spark, topic, tmp_path)
    run(spark, topic, tmp_path, onDataLoss="skip")
    assert written(spark, tmp_path) == ["0", "1", "2", "6", "7", "8"]


def test_a_wrong_option_is_explained(spark: SparkSession, topic: Topic) -> None:
    with pytest.raises(PySparkException, match="unknown option startingoffset"):
        batch(spark, topic, startingOffset="earliest").count()


def test_values_of_a_schema_registry_go_through_spark(spark: SparkSession, topic: Topic) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "counts", "type": {"type": "map", "values": "int"}},
        ],
    }
    with schema_registry() as registry:
        found = {"kafka.bootstrap.servers": topic.address, "schema.registry.url": registry.url}
        rows = spark.range(3).selectExpr("struct(id, map('x', int(id)) AS counts) AS value")
        (
            rows.write.format("ottla")
            .mode("append")
            .options(**found, topic=topic.name, valueFormat="avro", valueSchema=json.dumps(schema))
            .save()
        )
        # Neither a schema nor a type is said here: the registry has them.
        read = batch(spark, topic, valueFormat="avro", schema__registry__url=registry.url)
        again = read.select("value.id", "value.counts", "_corrupt").orderBy("id").collect()
        assert [tuple(row) for row in again] == [(at, {"x": at}, None) for at in range(3)]

        texts = rows.selectExpr("to_json(value) AS value")
        subject = {"valueSubject": "json", "valueSchema": '{"type":"object"}'}
        json_topic = Topic(topic.address, f"{topic.name}-json")
        (
            texts.write.format("ottla")
            .mode("append")
            .options(**found, topic=json_topic.name, valueFormat="json", **subject)
            .save()
        )
        json_topic.fill(["no id"])
        read = batch(spark, json_topic, valueFormat="json", schema__registry__url=registry.url)
        typed = with_json_values(read, "id INT").orderBy("offset").collect()
        assert sorted(row.value.id for row in typed if row["_corrupt"] is None) == [0, 1, 2]
        assert [row["_corrupt"] for row in typed if row["_corrupt"] is not None] == [b"no id"]


def test_a_topic_is_appended_to_without_a_mode(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    register(spark)
    rows = spark.range(2).selectExpr("string(id) AS value")
    options = {"kafka.bootstrap.servers": topic.address, "topic": topic.name}
    for _ in range(2):
        rows.write.format("ottla").options(**options).save()
    rows.write.save(format="ottla", **options)
    assert sorted(topic.committed()) == ["0", "0", "0", "1", "1", "1"]
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        rows.write.mode("overwrite").format("ottla").options(**options).save()
    with pytest.raises(PySparkException, match=r"(?i)errorifexists"):
        rows.write.format("ottla").mode("error").options(**options).save()
    # Other formats keep Spark's default.
    rows.write.format("ottla").format("parquet").save(str(tmp_path / "files"))
    with pytest.raises(PySparkException, match=r"(?i)already exists"):
        rows.write.format("ottla").format("parquet").save(str(tmp_path / "files"))
    assert len(topic.committed()) == 6
