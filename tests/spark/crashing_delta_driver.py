"""A driver that streams a topic into a Delta table and is killed where it is told to be.

    python crashing_delta_driver.py ADDRESS TOPIC TABLE CHECKPOINT before|after|never

Everything it does is real; only its sink ends the JVM, the driver and itself, by SIGKILL, right
before or right after a commit to the table.
"""

import os
import signal
import sys

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ottla.spark.delta_sink import DeltaStreamWriter, stream_writer
from ottla.spark.registration import DeltaDataSource

BATCH_RECORDS = 10
DOOMED_BATCH = 1
TIMEOUT_S = 400


class DoomedDeltaDataSource(DeltaDataSource):
    @classmethod
    def name(cls) -> str:
        return "killed-delta"

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        options = dict(self.options.items())
        when, *pids = options.pop("crash").split(",")
        writer = stream_writer(options, schema, overwrite=overwrite)
        return DoomedWriter(writer, when, list(map(int, pids)))


class DoomedWriter(DeltaStreamWriter):
    def __init__(self, writer: DeltaStreamWriter, when: str, pids: list[int]) -> None:
        self.options, self.schema = writer.options, writer.schema
        self.when, self.pids = when, pids

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self.when == "before" and batchId == DOOMED_BATCH:
            self.die()
        super().commit(messages, batchId)
        if self.when == "after" and batchId == DOOMED_BATCH:
            self.die()

    def die(self) -> None:
        for pid in (*self.pids, os.getpid()):
            os.kill(pid, signal.SIGKILL)


def main(address: str, topic: str, table: str, checkpoint: str, when: str) -> None:
    import ottla.spark

    spark = ottla.spark.session(master="local[2]", conf={"spark.driver.memory": "512m"})
    spark.dataSource.register(DoomedDeltaDataSource)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm_pid = gateway.proc.pid
    rows = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH_RECORDS)
        .option("minPartitions", 2)
        .load()
    )
    query = (
        rows.selectExpr("int(string(value)) AS number", "offset")
        .writeStream.format("killed-delta")
        .option("checkpointLocation", checkpoint)
        # The driver first: one that is told of the end of its JVM ends by itself.
        .option("crash", f"{when},{os.getpid()},{jvm_pid}")
        .trigger(availableNow=True)
        .start(table)
    )
    assert query.awaitTermination(TIMEOUT_S)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from spark import (
        crashing_delta_driver,  # by its name: workers cannot import what is in __main__
    )

    crashing_delta_driver.main(*sys.argv[1:])
