"""Two streams on `logs.lines`: a table of parsed lines to search in, and counts by window.

    logs.lines ──index──> a Delta table, one directory for each day: the index and the archive
               ──count──> logs.counts, by window, service and level

A line in a format that is not known is kept as it is, with the level UNKNOWN: nothing is dropped.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the common alias
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from examples.logs.search import table_of
from examples.logs.ship import COUNTS, LINES

WINDOW: Final = "1 minute"
LATE_BY_AT_MOST: Final = "1 hour"  # older lines change no window any more; the table has them
_PLAIN: Final = r"^(\S+)\s+\[?(TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\]?:?\s+(.*)$"


@dataclass(frozen=True, slots=True)
class IndexContext:
    """The session, the broker, and the directory for checkpoints and the table."""

    spark: SparkSession
    address: str
    home: Path
    is_once: bool  # streams end when they have read the existing lines


def parse(records: DataFrame) -> DataFrame:
    """Time, service, level and message of each line: plain text, or JSON with these fields."""
    line = F.col("value")
    level = F.upper(_field(line, "level", 2))
    time = F.try_to_timestamp(_field(line, "time", 1))
    return records.select(
        F.coalesce(time, F.col("timestamp")).alias("time"),
        F.col("key").cast("string").alias("service"),
        F.coalesce(level, F.lit("UNKNOWN")).alias("level"),
        F.coalesce(_field(line, "message", 3), line).alias("message"),
        F.col("offset"),
    )


def _field(line: Column, name: str, group: int) -> Column:
    """A field of a line of JSON, or a part of one in plain text; null if it has none."""
    plain = F.nullif(F.regexp_extract(line, _PLAIN, group), F.lit(""))
    return F.coalesce(F.get_json_object(line, f"$.{name}"), plain)


def count(lines: DataFrame) -> DataFrame:
    """The number of lines of each service and level, in windows of their time."""
    return (
        lines.withWatermark("time", LATE_BY_AT_MOST)
        .groupBy(F.window("time", WINDOW), "service", "level")
        .agg(F.count("*").alias("lines"))
        .select(
            F.date_format("window.start", "yyyy-MM-dd'T'HH:mm").alias("start"),
            "service",
            "level",
            "lines",
        )
    )


def start_index(context: IndexContext) -> StreamingQuery:
    lines = parse(_stream(context, "index")).withColumn("date", F.to_date("time"))
    writer = lines.writeStream.format("ottla-delta").partitionBy("date")
    return _start(context, "index", writer.option("path", str(table_of(context.home))))


def start_count(context: IndexContext) -> StreamingQuery:
    counts = count(parse(_stream(context, "count")))
    records = counts.select(
        F.concat_ws(" ", "start", "service", "level").alias("key"),
        F.to_json(F.struct("*")).alias("value"),
    )

    def write(batch: DataFrame, number: int) -> None:
        """A batch that a crash makes Spark repeat has the same keys, and the last count holds."""
        (
            batch.write.format("ottla")
            .mode("append")
            .option("kafka.bootstrap.servers", context.address)
            .option("topic", COUNTS)
            .save()
        )

    return _start(context, "count", records.writeStream.outputMode("update").foreachBatch(write))


def _stream(context: IndexContext, stage: str) -> DataFrame:
    return (
        context.spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", context.address)
        .option("subscribe", LINES)
        .option("startingOffsets", "earliest")
        .option("valueFormat", "string")
        .option("commitGroup", f"logs-{stage}")
        .load()
    )


def _start(context: IndexContext, stage: str, writer: DataStreamWriter) -> StreamingQuery:
    named = writer.queryName(f"logs-{stage}").option(
        "checkpointLocation", str(context.home / "checkpoints" / stage)
    )
    if context.is_once:
        return named.trigger(availableNow=True).start()
    return named.trigger(processingTime="1 second").start()
