"""`ottla pipeline dedupe`: leaves out records whose key came before within some time."""

from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.spark.pipelines.declaration import Declaration
from ottla.spark.pipelines.topic_frames import TopicSource, readable, stream_of, to_topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedupe:
    """The first record of each `key` to another topic; the same key passes again after `within_ms`.

    `key` is an SQL expression over the record's columns.
    """

    source: TopicSource
    topic: str
    key: str
    within_ms: int
    name: str = ""

    @property
    def declaration(self) -> Declaration:
        return Declaration(
            command="dedupe",
            name=self.name or f"{self.source.topic}-{self.topic}",
            source=f"topic {self.source.topic}",
            sink=f"topic {self.topic}",
            steps={"key": self.key, "within": f"{self.within_ms} ms"},
        )

    def build(self, spark: SparkSession) -> DataStreamWriter:
        records = stream_of(spark, self.source, self.declaration.label)
        # Expressions see text; the bytes that were read are written.
        both = readable(records.withColumn("_record", sql.struct("key", "value", "headers")))
        first = (
            both.withColumn("_key", sql.expr(self.key))
            .withWatermark("timestamp", f"{self.within_ms} milliseconds")
            .dropDuplicatesWithinWatermark(["_key"])
        )
        return to_topic(first.select("_record.*"), self.source.bootstrap, self.topic)
