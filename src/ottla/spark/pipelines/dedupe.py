"""`ottla pipeline dedupe`: what comes again within some time is left out."""

from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.spark.pipelines.declaration import Declaration
from ottla.spark.pipelines.topic_frames import TopicSource, readable, stream_of, to_topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedupe:
    """The first record of each `key` to another topic; the same key counts anew after `within_ms`.

    `key` is an expression of SQL over the record's columns.
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
        # Expressions see text; what is written are the bytes that were read.
        both = readable(records.withColumn("_record", sql.struct("key", "value", "headers")))
        first = (
            both.withColumn("_key", sql.expr(self.key))
            .withWatermark("timestamp", f"{self.within_ms} milliseconds")
            .dropDuplicatesWithinWatermark(["_key"])
        )
        return to_topic(first.select("_record.*"), self.source.bootstrap, self.topic)
