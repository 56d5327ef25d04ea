"""`ottla pipeline sql`: one SQL query over the existing records of a topic."""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from ottla.spark.pipelines.aggregate import Query
from ottla.spark.pipelines.declaration import Declaration
from ottla.spark.pipelines.topic_frames import TopicSource, batch_of, readable


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQuery:
    """An SQL query over all records of a topic."""

    source: TopicSource
    query: Query

    @property
    def declaration(self) -> Declaration:
        return Declaration(
            command="sql",
            name=self.source.topic,
            source=f"topic {self.source.topic}",
            sink="the terminal",
            steps=self.source.description() | self.query.description(),
        )

    def rows(self, spark: SparkSession) -> DataFrame:
        return self.query.rows(readable(batch_of(spark, self.source)))
