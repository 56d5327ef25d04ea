"""`ottla pipeline aggregate`: aggregates over time windows, from one topic to another."""

from dataclasses import dataclass
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.spark.pipelines.declaration import Declaration
from ottla.spark.pipelines.option_values import OutputMode
from ottla.spark.pipelines.topic_frames import (
    TopicSource,
    append_to_topic,
    as_records,
    quoted,
    readable,
    stream_of,
    to_topic,
)

VIEW: Final = "records"


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of a fixed length, their grouping, and the aggregates of each."""

    length_ms: int
    group_by: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ("count(*) AS count",)

    def description(self) -> dict[str, str]:
        return {
            "window": f"{self.length_ms} ms",
            "by": ", ".join(self.group_by) or "nothing",
            # The key under which checkpoints of every version have it.
            "figures": ", ".join(self.aggregates),
        }

    def rows(self, records: DataFrame) -> DataFrame:
        window = sql.window("timestamp", f"{self.length_ms} milliseconds")
        groups = records.groupBy(window, *map(sql.expr, self.group_by))
        found = groups.agg(*map(sql.expr, self.aggregates))
        others = [quoted(name) for name in found.columns if name != "window"]
        start, end = sql.col("window.start"), sql.col("window.end")
        return found.select(start.alias("window_start"), end.alias("window_end"), *others)


@dataclass(frozen=True, slots=True)
class Query:
    """An SQL query over the view `records`."""

    text: str

    def description(self) -> dict[str, str]:
        return {"query": self.text}

    def rows(self, records: DataFrame) -> DataFrame:
        records.createOrReplaceTempView(VIEW)
        return records.sparkSession.sql(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """Aggregates of a topic's records; those later than `watermark_ms` are left out."""

    source: TopicSource
    topic: str
    computed: Windows | Query
    watermark_ms: int
    mode: OutputMode = OutputMode.APPEND
    name: str = ""

    @property
    def declaration(self) -> Declaration:
        return Declaration(
            command="aggregate",
            name=self.name or f"{self.source.topic}-{self.topic}",
            source=f"topic {self.source.topic}",
            sink=f"topic {self.topic}",
            steps=self.source.description()
            | self.computed.description()
            | {"watermark": f"{self.watermark_ms} ms", "mode": self.mode},
        )

    def build(self, spark: SparkSession) -> DataStreamWriter:
        records = readable(stream_of(spark, self.source, self.declaration.label))
        in_time = records.withWatermark("timestamp", f"{self.watermark_ms} milliseconds")
        rows = as_records(self.computed.rows(in_time))
        if self.mode is OutputMode.APPEND:
            return to_topic(rows, self.source.bootstrap, self.topic)
        # Spark refuses output mode update for Python sinks, although every record is a new one:
        # each micro-batch is written as a batch job instead.
        write = partial(append_to_topic, bootstrap=self.source.bootstrap, topic=self.topic)
        return rows.writeStream.outputMode(self.mode).foreachBatch(lambda batch, _: write(batch))
