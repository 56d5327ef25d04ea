"""A driver that copies a topic to another one exactly once, and may be told to come to harm.

    python -m spark.doomed_driver '{"address": ..., "source": ..., "target": ..., "home": ...}'

Reads what is there, in micro-batches of `rows`, and ends. `commit_is_fatal` names a micro-batch:
when its rows are written and before Spark has noted that, the driver is killed with SIGKILL. With
`tasks_fail`, first tries of tasks fail: some before they have committed, some after.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import ottla.spark
from ottla.spark.options import WriteOptions, parse_write_options
from ottla.spark.registration import OttlaDataSource
from ottla.spark.sink import StreamWriter

READY = "driver ready "
_DOOM = "doom"


class DoomedSource(OttlaDataSource):
    """The format, with a sink that does harm where it is told to."""

    @classmethod
    def name(cls) -> str:
        return "doomed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = dict(self.options.items())
        doom = json.loads(options.pop(_DOOM))
        return DoomedWriter(parse_write_options(options), schema, doom)


class DoomedWriter(StreamWriter):
    """Writes as the sink does."""

    def __init__(self, options: WriteOptions, schema: StructType, doom: dict[str, Any]) -> None:
        super().__init__(options, schema)
        self.doom = doom

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task is not None
        if not self.doom["tasks_fail"] or task.attemptNumber():
            return super().write(iterator)
        if task.partitionId() % 2:
            super().write(iterator)
            raise RuntimeError("a task that fails after its commit")
        return super().write(_break_off(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if batchId == self.doom["commit_is_fatal"]:
            for pid in self.doom["pids"]:
                os.kill(pid, signal.SIGKILL)


def _break_off(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise RuntimeError("a task that fails before its commit")


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
        "tasks_fail": told.get("tasks_fail", False),
        "pids": pids,
    }
    query = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", told["address"])
        .option("subscribe", told["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", told["rows"])
        .option("minPartitions", told.get("tasks", 2))
        .load()
        .select("key", "value")
        .writeStream.format("doomed")
        .option("kafka.bootstrap.servers", told["address"])
        .option("topic", told["target"])
        .option("checkpointLocation", str(home / "checkpoint"))
        .option("transactionTimeout", "60s")
        .option(_DOOM, json.dumps(doom))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _pid_of_jvm(spark: SparkSession) -> int:
    return int(spark.sparkContext._gateway.proc.pid)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
