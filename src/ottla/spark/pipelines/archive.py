"""`ottla pipeline archive`: writes a topic to Parquet files or a Delta table."""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.spark.pipelines.declaration import Declaration
from ottla.spark.pipelines.option_values import ArchiveFormat, SplitBy
from ottla.spark.pipelines.topic_frames import TopicSource, stream_of

_CALCULATED: Final = {
    SplitBy.DATE: "CAST(timestamp AS DATE)",
    SplitBy.HOUR: "date_format(timestamp, \"yyyy-MM-dd'T'HH\")",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """Every record of a topic, with all columns, into a directory."""

    source: TopicSource
    path: str
    format: ArchiveFormat = ArchiveFormat.PARQUET
    split_by: tuple[SplitBy, ...] = ()
    name: str = ""

    @property
    def declaration(self) -> Declaration:
        return Declaration(
            command="archive",
            name=self.name or self.source.topic,
            source=f"topic {self.source.topic}",
            sink=f"{self.format} {self.path}",
            steps={"split by": ", ".join(self.split_by) or "nothing"},
        )

    def build(self, spark: SparkSession) -> DataStreamWriter:
        records = stream_of(spark, self.source, self.declaration.label)
        rows = records.withColumns(
            {by: sql.expr(_CALCULATED[by]) for by in self.split_by if by in _CALCULATED}
        )
        if self.format is ArchiveFormat.DELTA:
            writer = rows.writeStream.format("ottla-delta")
            if self.split_by:
                writer = writer.option("partitionColumns", ",".join(self.split_by))
        else:
            writer = rows.writeStream.format("parquet").option("compression", "zstd")
            if self.split_by:
                writer = writer.partitionBy(*self.split_by)
        return writer.option("path", self.path)
