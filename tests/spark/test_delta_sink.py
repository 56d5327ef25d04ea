"""Delta tables that Spark's tasks write and its driver commits, read with deltalake."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark import crashing_delta_driver
from spark.driver_process import environment
from spark.topics import Topic
from spark.worker_start import TOO_LATE, TRIES

NEW_TOPIC = Callable[..., Topic]
TIMEOUT_S = 400


def archive(spark: SparkSession, topic: Topic, table: Path, checkpoint: Path, **more: str) -> None:
    """Stream what is there into a table, split by parity."""
    options = topic.options(startingOffsets="earliest", maxOffsetsPerTrigger="4")
    rows = spark.readStream.format("ottla").options(**options).load()
    query = (
        rows.selectExpr("int(string(value)) AS number", "offset % 2 = 0 AS even", "timestamp")
        .writeStream.format("ottla-delta")
        .options(partitionColumns="even", checkpointLocation=str(checkpoint), **more)
        .trigger(availableNow=True)
        .start(str(table))
    )
    assert query.awaitTermination(TIMEOUT_S)


def numbers(table: Path) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table().column("number").to_pylist())


def unknown_files(table: Path) -> set[str]:
    """Files beside the table that it knows nothing of."""
    known = {Path(uri).name for uri in DeltaTable(table).file_uris()}
    return {file.name for file in table.glob("*.parquet")} - known


def test_a_stream_fills_a_table_batch_by_batch(
    spark: SparkSession, new_topic: NEW_TOPIC, tmp_path: Path
) -> None:
    topic, table = new_topic(2), tmp_path / "table"
    topic.fill(range(6), partition=0)
    topic.fill(range(6, 9), partition=1)
    archive(spark, topic, table, tmp_path / "checkpoint")
    topic.fill(range(9, 11))
    archive(spark, topic, table, tmp_path / "checkpoint")
    assert numbers(table) == list(range(11))
    rows = DeltaTable(table).to_pyarrow_table(filters=[("even", "=", True)]).to_pylist()
    assert sorted(row["number"] for row in rows) == [0, 2, 4, 6, 8, 9]
    assert rows[0].keys() == {"number", "even", "timestamp"}
    assert unknown_files(table) == set()


def test_a_batch_that_spark_has_forgotten_is_not_added_again(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    topic.fill(range(8))
    archive(spark, topic, table, checkpoint)
    version = DeltaTable(table).version()
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    archive(spark, topic, table, checkpoint)
    assert numbers(table) == list(range(8))
    assert DeltaTable(table).version() == version
    assert unknown_files(table) == set()


@pytest.mark.jvm
@pytest.mark.nightly
def test_a_driver_may_be_killed_around_its_commit(topic: Topic, tmp_path: Path) -> None:
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    topic.fill(range(35))

    def try_drive(when: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(sys.executable, crashing_delta_driver.__file__),
                *(topic.address, topic.name, str(table), str(checkpoint), when),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env=environment(),
        )

    def drive(when: str) -> int:
        done = try_drive(when)
        for _ in range(TRIES - 1):
            if TOO_LATE not in done.stderr:
                break
            done = try_drive(when)
        sys.stdout.write(done.stderr[-5000:])  # pytest shows it beside what failed
        return done.returncode

    # Batch 1 is written and not in the table; then in the table and unknown to Spark.
    assert drive("before") == -signal.SIGKILL
    assert numbers(table) == list(range(10))
    assert len(unknown_files(table)) > 0
    assert drive("after") == -signal.SIGKILL
    assert numbers(table) == list(range(20))
    assert not os.path.exists(checkpoint / "commits" / "1")
    assert drive("never") == 0
    assert numbers(table) == list(range(35))


def test_a_batch_with_a_number_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(5).withColumnRenamed("id", "number")
    writer = rows.write.format("ottla-delta").mode("append")
    for _ in range(2):
        writer.options(txnAppId="nightly", txnVersion="7").save(str(tmp_path))
    assert numbers(tmp_path) == [0, 1, 2, 3, 4]
    rows.write.format("ottla-delta").mode("append").save(str(tmp_path))
    assert numbers(tmp_path) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert unknown_files(tmp_path) == set()


def test_a_failing_task_leaves_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(0, 4, 1, 1).selectExpr("assert_true(id < 3) IS NULL AS fine", "id")
    with pytest.raises(PySparkException):
        rows.write.format("ottla-delta").mode("append").save(str(tmp_path))
    assert list(tmp_path.glob("*")) == []


def test_rows_of_another_shape_are_refused_in_words(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path)
    spark.range(2).write.format("ottla-delta").mode("append").save(table)
    other = spark.range(2).selectExpr("string(id) AS id", "id AS more")
    with pytest.raises(PySparkException, match=r"other columns than these rows \(id, more\)"):
        other.write.format("ottla-delta").mode("append").save(table)
    split = spark.range(2).write.format("ottla-delta").mode("append")
    with pytest.raises(PySparkException, match="names every column"):
        split.option("partitionColumns", "id").save(table)
    with pytest.raises(PySparkException, match="only adds rows"):
        spark.range(2).write.format("ottla-delta").mode("overwrite").save(table)
    assert DeltaTable(table).to_pyarrow_table().num_rows == 2
    assert unknown_files(tmp_path) == set()
