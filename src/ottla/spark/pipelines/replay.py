"""`ottla pipeline replay`: writes an archive or a part of a topic to a topic again."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import to_arrow_schema

from ottla.client.positions import format_time
from ottla.model import TimestampMs
from ottla.spark.pipelines.declaration import Declaration
from ottla.spark.pipelines.topic_frames import TopicSource, append_to_topic, batch_of
from ottla.spark.sink import batch_writer

# Headers with a record's origin, after its own headers.
ORIGINS: Final = {
    "ottla.original-topic": "topic",
    "ottla.original-partition": "string(partition)",
    "ottla.original-offset": "string(offset)",
    "ottla.original-timestamp": "string(unix_millis(timestamp))",
}
_ORDER: Final = ("timestamp", "topic", "partition", "offset")
_STEPS_PER_S: Final = 5  # how evenly a rate is kept
_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")


@dataclass(frozen=True, slots=True)
class ArchivePath:
    """A directory that `archive` has written, of either format."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Records from `start_ms` until before `end_ms`, ordered by timestamp within a key; with a
    rate, all of them ordered."""

    origin: TopicSource | ArchivePath
    bootstrap: str
    topic: str
    start_ms: TimestampMs | None = None
    end_ms: TimestampMs | None = None
    rate_per_s: int | None = None

    @property
    def declaration(self) -> Declaration:
        origin = self.origin
        source = (
            f"archive {origin.path}" if isinstance(origin, ArchivePath) else f"topic {origin.topic}"
        )
        steps = {
            "from": "the beginning" if self.start_ms is None else format_time(self.start_ms),
            "to": "the end" if self.end_ms is None else format_time(self.end_ms),
            "rate": "as fast as it goes" if self.rate_per_s is None else f"{self.rate_per_s}/s",
        }
        return Declaration(
            command="replay",
            name=self.topic,
            source=source,
            sink=f"topic {self.topic}",
            steps=steps,
        )

    def rows(self, spark: SparkSession) -> DataFrame:
        """The rows to write."""
        chosen = _read(spark, self)
        origins = [
            sql.struct(sql.lit(name).alias("key"), sql.expr(where).cast("binary").alias("value"))
            for name, where in ORIGINS.items()
        ]
        own = sql.coalesce(
            "headers", sql.expr("CAST(array() AS ARRAY<STRUCT<key:STRING,value:BINARY>>)")
        )
        if self.rate_per_s is None:
            in_order = chosen.repartition("key").sortWithinPartitions(*_ORDER)
        else:
            in_order = chosen.orderBy(*_ORDER)
        return in_order.select(
            "key", "value", sql.concat(own, sql.array(*origins)).alias("headers")
        )

    def write(self, spark: SparkSession) -> None:
        rows = self.rows(spark)
        if self.rate_per_s is None:
            append_to_topic(rows, self.bootstrap, self.topic)
            return
        # Through the driver: concurrent tasks could keep neither one rate nor the order. Not in
        # a transaction: a replay with a rate may outlive the transaction timeout.
        options = {
            "kafka.bootstrap.servers": self.bootstrap,
            "topic": self.topic,
            "delivery": "at-least-once",
        }
        writer = batch_writer(options, rows.schema, overwrite=False)
        steps = _arrow_steps(rows, max(1, self.rate_per_s // _STEPS_PER_S))
        writer.commit([writer.write(pace(steps, self.rate_per_s))])


def pace(
    batches: Iterator[pa.RecordBatch],
    rate_per_s: int,
    now_s: Callable[[], float] = time.monotonic,
    sleep_s: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """The same rows, delayed so that `rate_per_s` of them pass in a second."""
    start_s = now_s()
    rows = 0
    for batch in batches:
        sleep_s(max(0.0, start_s + rows / rate_per_s - now_s()))
        rows += batch.num_rows
        yield batch


def _arrow_steps(rows: DataFrame, step_rows: int) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(rows.schema, timezone="UTC")
    remaining = rows.toLocalIterator()
    while step := [row.asDict(recursive=True) for row in islice(remaining, step_rows)]:
        yield pa.RecordBatch.from_pylist(step, schema)


def _read(spark: SparkSession, replay: Replay) -> DataFrame:
    rows = _all_rows(spark, replay)
    if replay.start_ms is not None:
        rows = rows.where(sql.expr(f"unix_millis(timestamp) >= {replay.start_ms}"))
    if replay.end_ms is not None:
        rows = rows.where(sql.expr(f"unix_millis(timestamp) < {replay.end_ms}"))
    return rows.select(*_COLUMNS)


def _all_rows(spark: SparkSession, replay: Replay) -> DataFrame:
    if isinstance(replay.origin, TopicSource):
        # Timestamps need not rise with offsets: the broker can apply only the start.
        start = {} if replay.start_ms is None else {"startingTimestamp": str(replay.start_ms)}
        return batch_of(spark, replay.origin, **start)
    path = Path(replay.origin.path)
    if (path / "_delta_log").is_dir():
        from deltalake import DeltaTable  # noqa: PLC0415  # the extra `lake`

        return spark.read.parquet(*DeltaTable(path).file_uris())
    return spark.read.parquet(str(path))
