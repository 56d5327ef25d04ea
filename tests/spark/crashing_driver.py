"""A driver that copies a topic exactly once, and kills itself or fails tasks on request.

    python -m spark.crashing_driver '{"address": ..., "source": ..., "target": ..., "home": ...}'

Reads the records that are there, in micro-batches of `rows`, and ends. Rows go to the topic
`target`, or to the Delta table `table` if given. `commit_is_fatal` is the number of a micro-batch:
in its commit, at the point `fatal_point` of `spark.crashing_sinks`, the driver kills itself with
SIGKILL. With `tasks_fail`, the first attempt of every task fails: half of them while they write,
half after they have written. `tasks` is the number of tasks. At the end a batch of `batch_rows`
numbers is written to `batch_target`, if given.
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
from ottla.spark.registration import OttlaDataSource
from ottla.spark.sink import BatchWriter, StreamWriter
from ottla.spark.write_options import WriteOptions, parse_write_options
from spark.crashing_sinks import commit_until

READY = "driver ready "
_CRASH = "crash"


class CrashingSource(OttlaDataSource):
    """`format("ottla")` with sinks that fail or kill their driver."""

    @classmethod
    def name(cls) -> str:
        return "killed"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options, crash = self._parse()
        return CrashingBatchWriter(options, schema, crash)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        options, crash = self._parse()
        return CrashingStreamWriter(options, schema, crash)

    def _parse(self) -> tuple[WriteOptions, dict[str, Any]]:
        options = dict(self.options.items())
        crash = json.loads(options.pop(_CRASH))
        return parse_write_options(options), crash


class CrashingBatchWriter(BatchWriter):
    """Writes as the sink of batches does."""

    def __init__(self, options: WriteOptions, schema: StructType, crash: dict[str, Any]) -> None:
        super().__init__(options, schema)
        self.crash = crash

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(super().write, iterator, self.crash)


class CrashingStreamWriter(StreamWriter):
    """Writes as the sink of streams does."""

    def __init__(self, options: WriteOptions, schema: StructType, crash: dict[str, Any]) -> None:
        super().__init__(options, schema)
        self.crash = crash

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(super().write, iterator, self.crash)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if batchId != self.crash["commit_is_fatal"]:
            super().commit(messages, batchId)
            return
        commit_until(self, messages, batchId, self.crash["fatal_point"])
        for pid in self.crash["pids"]:
            os.kill(pid, signal.SIGKILL)


def _write(
    write: Callable[[Iterator[pa.RecordBatch]], WriterCommitMessage],
    batches: Iterator[pa.RecordBatch],
    crash: dict[str, Any],
) -> WriterCommitMessage:
    task = TaskContext.get()
    assert task is not None
    if not crash["tasks_fail"] or task.attemptNumber():
        return write(batches)
    if task.partitionId() % 2:
        write(batches)
        raise RuntimeError("a task that fails when it has written")
    return write(_break_off(batches))


def _break_off(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise RuntimeError("a task that fails while it writes")


def main(given: dict[str, Any]) -> None:
    home = Path(given["home"])
    spark = ottla.spark.session(
        "killed",
        master=given.get("master", "local[2]"),
        conf={"spark.driver.memory": "512m", "spark.sql.warehouse.dir": str(home / "warehouse")},
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(CrashingSource)
    pids = [_pid_of_jvm(spark), os.getpid()]
    sys.stdout.write(f"{READY}{pids[0]}\n")
    sys.stdout.flush()
    crash = {
        "commit_is_fatal": given.get("commit_is_fatal"),
        "fatal_point": given.get("fatal_point"),
        "tasks_fail": given.get("tasks_fail", False),
        "pids": pids,
    }
    stream(spark, given, crash)
    if "batch_target" in given:
        batch(spark, given, crash)


def stream(spark: SparkSession, given: dict[str, Any], crash: dict[str, Any]) -> None:
    rows = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", given["address"])
        .option("subscribe", given["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", given["rows"])
        .option("minPartitions", given.get("tasks", 2))
        .load()
    )
    if "table" in given:
        numbers = rows.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS number")
        writer = numbers.writeStream.format("ottla-delta").option("path", given["table"])
    else:
        writer = (
            rows.select("key", "value")
            .writeStream.format("killed")
            .option("kafka.bootstrap.servers", given["address"])
            .option("topic", given["target"])
            .option(_CRASH, json.dumps(crash))
        )
    writer = writer.option("checkpointLocation", str(Path(given["home"], "checkpoint")))
    writer.trigger(availableNow=True).start().awaitTermination()


def batch(spark: SparkSession, given: dict[str, Any], crash: dict[str, Any]) -> None:
    (
        spark.range(given["batch_rows"], numPartitions=2)
        .selectExpr("CAST(id AS STRING) AS value")
        .write.format("killed")
        .mode("append")
        .option("kafka.bootstrap.servers", given["address"])
        .option("topic", given["batch_target"])
        .option(_CRASH, json.dumps(crash))
        .save()
    )


def _pid_of_jvm(spark: SparkSession) -> int:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    return int(gateway.proc.pid)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
