"""Streaming queries that are started together, with sinks of several kinds.

Query N reads the topic `in-N`, which has the numbers from N * 1000 on.
"""

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark.topics import Topic

RECORDS: Final = 250  # of each topic: three micro-batches
ROWS_IN_BATCH: Final = 100
PARTITIONS: Final = 2
_STEP: Final = 1000
_MAKE: Final = "CAST(STRING(value) AS BIGINT) AS number"


class Place(NamedTuple):
    """A broker, and a directory for everything that is not a topic."""

    address: str
    home: Path

    def source(self, number: int) -> Topic:
        return Topic(self.address, f"in-{number}")

    def target(self, number: int) -> Topic:
        return Topic(self.address, f"out-{number}")

    def path(self, kind: str, number: int) -> Path:
        return self.home / f"{kind}-{number}"


def fill_sources(place: Place, count: int) -> None:
    """Create and fill the topics of so many queries, and create those that they write to."""
    for number in range(count):
        place.target(number).create()
        place.source(number).create(PARTITIONS)
        for partition in range(PARTITIONS):
            place.source(number).fill(
                numbers_of(number)[partition::PARTITIONS], partition=partition
            )


def numbers_of(number: int) -> range:
    """The records of a query's topic."""
    return range(number * _STEP, number * _STEP + RECORDS)


class QueriesTogether:
    """Streaming queries, started without a wait between them; one for each sink."""

    def __init__(self, spark: SparkSession, place: Place, sinks: Sequence[str]) -> None:
        self._spark = spark
        self._place = place
        self._sinks = sinks
        self._collected: dict[int, list[int]] = {number: [] for number in range(len(sinks))}
        writers = [self._writer(number, sink) for number, sink in enumerate(sinks)]
        self._began_s = time.time()  # noqa: TID251  # Spark's progress reports have this clock
        self._queries = [writer.start() for writer in writers]

    def wait(self) -> dict[str, str]:
        """Return when every query has processed its topic or failed; the errors by query."""
        failed = dict[str, str]()
        for number, query in enumerate(self._queries):
            try:
                query.processAllAvailable()
            except PySparkException as problem:
                failed[f"{self._sinks[number]} {number}"] = str(problem)
        return failed

    def written(self) -> dict[int, list[int]]:
        """The numbers that each query has written, sorted."""
        return {
            number: sorted(self._written(number, sink)) for number, sink in enumerate(self._sinks)
        }

    def first_batches_s(self) -> list[float]:
        """Seconds from the first `start()` to the end of the first micro-batch of each query."""
        return [round(_first_end_s(query) - self._began_s, 2) for query in self._queries]

    def stop(self) -> None:
        for query in self._queries:
            query.stop()

    def _writer(self, number: int, sink: str) -> DataStreamWriter:
        source = self._place.source(number)
        options = source.options(
            startingOffsets="earliest", maxOffsetsPerTrigger=f"{ROWS_IN_BATCH}"
        )
        rows = self._spark.readStream.format("ottla").options(**options).load()
        checkpoint = str(self._place.path("checkpoint", number))
        if sink == "topic":
            writer = rows.select("value").writeStream.format("ottla")
            writer = writer.option("kafka.bootstrap.servers", self._place.address)
            writer = writer.option("topic", self._place.target(number).name)
        elif sink == "memory":
            writer = rows.selectExpr(_MAKE).writeStream.format(sink).queryName(_table(number))
        elif sink == "foreachBatch":
            collect = _collect_into(self._collected[number])
            writer = rows.selectExpr(_MAKE).writeStream.foreachBatch(collect)
        else:
            writer = rows.selectExpr(_MAKE).writeStream.format(sink)
            writer = writer.option("path", str(self._place.path("table", number)))
        return writer.option("checkpointLocation", checkpoint)

    def _written(self, number: int, sink: str) -> list[int]:
        if sink == "topic":
            return [int(value) for value in self._place.target(number).committed()]
        if sink == "memory":
            return [row["number"] for row in self._spark.table(_table(number)).collect()]
        if sink == "foreachBatch":
            return self._collected[number]
        path = self._place.path("table", number)
        table = (
            DeltaTable(path).to_pyarrow_table()
            if sink == "ottla-delta"
            else pq.read_table(path, columns=["number"])
        )
        return [*table.column("number").to_pylist()]


def _table(number: int) -> str:
    return f"memory_{number}"


def _collect_into(numbers: list[int]) -> Callable[[DataFrame, int], None]:
    def collect(frame: DataFrame, _: int) -> None:
        numbers.extend(row["number"] for row in frame.collect())

    return collect


def _first_end_s(query: StreamingQuery) -> float:
    first = next(batch for batch in query.recentProgress if batch["numInputRows"])
    began_s = datetime.fromisoformat(first["timestamp"]).timestamp()
    return float(began_s + first["durationMs"]["triggerExecution"] / 1000)
