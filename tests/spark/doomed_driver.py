"""A driver that copies a topic exactly once, and may be told to come to harm.

    python -m spark.doomed_driver '{"address": ..., "source": ..., "target": ..., "home": ...}'

Reads what is there, in micro-batches of `rows`, and ends. Rows go to the topic `target`, or to the
Delta table `table` if there is one. `commit_is_fatal` names a micro-batch: in its commit, at the
point `fatal_point` of `spark.crashing`, the driver is killed with SIGKILL. With `tasks_fail`, first
tries of tasks fail: some while they write, some when they have written. `tasks` is how many tasks
are asked for. At the end a batch of `batch_rows` numbers is written to `batch_target`, if there is
one.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import ottla.spark
from ottla.spark.options import WriteOptions, parse_write_options
from ottla.spark.registration import OttlaDataSource
from ottla.spark.sink import BatchWriter, StreamWriter
from spark.crashing import commit_until

READY = "driver ready "
_DOOM = "doom"


class DoomedSource(OttlaDataSource):
    """The format, with sinks that do harm where they are told to."""

    @classmethod
    def name(cls) -> str:
        return "doomed"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options, doom = self._told()
        return DoomedBatchWriter(options, schema, doom)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        options, doom = self._told()
        return DoomedStreamWriter(options, schema, doom)

    def _told(self) -> tuple[WriteOptions, dict[str, Any]]:
        options = dict(self.options.items())
        doom = json.loads(options.pop(_DOOM))
        return parse_write_options(options), doom


class DoomedBatchWriter(BatchWriter):
    """Writes as the sink of batches does."""

    def __init__(self, options: WriteOptions, schema: StructType, doom: dict[str, Any]) -> None:
        super().__init__(options, schema)
        self.doom = doom

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(super().write, iterator, self.doom)


class DoomedStreamWriter(StreamWriter):
    """Writes as the sink of streams does."""

    def __init__(self, options: WriteOptions, schema: StructType, doom: dict[str, Any]) -> None:
        super().__init__(options, schema)
        self.doom = doom

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(super().write, iterator, self.doom)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if batchId != self.doom["commit_is_fatal"]:
            super().commit(messages, batchId)
            return
        commit_until(self, messages, batchId, self.doom["fatal_point"])
        for pid in self.doom["pids"]:
            os.kill(pid, signal.SIGKILL)


def _write(
    write: Callable[[Iterator[pa.RecordBatch]], WriterCommitMessage],
    batches: Iterator[pa.RecordBatch],
    doom: dict[str, Any],
) -> WriterCommitMessage:
    task = TaskContext.get()
    assert task is not None
    if not doom["tasks_fail"] or task.attemptNumber():
        return write(batches)
    if task.partitionId() % 2:
        write(batches)
        raise RuntimeError("a task that fails when it has written")
    return write(_break_off(batches))


def _break_off(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise RuntimeError("a task that fails while it writes")


def main(told: dict[str, Any]) -> None:
    home = Path(told["home"])
    spark = ottla.spark.session(
        "doomed",
        master=told.get("master", "local[2]"),
        conf={"spark.driver.memory": "512m", "spark.sql.warehouse.dir": str(home / "warehouse")},
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(DoomedSource)
    pids = [_pid_of_jvm(spark), os.getpid()]
    sys.stdout.write(f"{READY}{pids[0]}\n")
    sys.stdout.flush()
    doom = {
        "commit_is_fatal": told.get("commit_is_fatal"),
        "fatal_point": told.get("fatal_point"),
        "tasks_fail": told.get("tasks_fail", False),
        "pids": pids,
    }
    stream(spark, told, doom)
    if "batch_target" in told:
        batch(spark, told, doom)


def stream(spark: SparkSession, told: dict[str, Any], doom: dict[str, Any]) -> None:
    rows = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", told["address"])
        .option("subscribe", told["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", told["rows"])
        .option("minPartitions", told.get("tasks", 2))
        .load()
    )
    if "table" in told:
        numbers = rows.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS number")
        writer = numbers.writeStream.format("ottla-delta").option("path", told["table"])
    else:
        writer = (
            rows.select("key", "value")
            .writeStream.format("doomed")
            .option("kafka.bootstrap.servers", told["address"])
            .option("topic", told["target"])
            .option(_DOOM, json.dumps(doom))
        )
    writer = writer.option("checkpointLocation", str(Path(told["home"], "checkpoint")))
    writer.trigger(availableNow=True).start().awaitTermination()


def batch(spark: SparkSession, told: dict[str, Any], doom: dict[str, Any]) -> None:
    (
        spark.range(told["batch_rows"], numPartitions=2)
        .selectExpr("CAST(id AS STRING) AS value")
        .write.format("doomed")
        .mode("append")
        .option("kafka.bootstrap.servers", told["address"])
        .option("topic", told["batch_target"])
        .option(_DOOM, json.dumps(doom))
        .save()
    )


def _pid_of_jvm(spark: SparkSession) -> int:
    return int(spark.sparkContext._gateway.proc.pid)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
