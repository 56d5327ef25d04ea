"""`ottla pipeline enrich`: joins records with the rows of a file."""

from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.errors import UsageRefused
from ottla.spark.pipelines.declaration import Declaration
from ottla.spark.pipelines.topic_frames import TopicSource, quoted, stream_of, to_topic

_READERS: Final = {".parquet": "parquet", ".json": "json", ".csv": "csv"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrich:
    """JSON values get the columns of a file's row with the same `on`; without such a row they stay
    as they are. Values that cannot be parsed pass unchanged."""

    source: TopicSource
    topic: str
    file: str
    on: str
    name: str = ""

    @property
    def declaration(self) -> Declaration:
        return Declaration(
            command="enrich",
            name=self.name or f"{self.source.topic}-{self.topic}",
            source=f"topic {self.source.topic}",
            sink=f"topic {self.topic}",
            steps=self.source.description() | {"join": self.file, "on": self.on},
        )

    def build(self, spark: SparkSession) -> DataStreamWriter:
        records = stream_of(spark, self.source, self.declaration.label)
        known = read_table(spark, self.file)
        added = columns_to_add(records, known, self.on)
        # The columns of the file under a name that no record has.
        facts = known.select(
            sql.col(quoted(self.on)).alias("_on"),
            sql.struct(*map(quoted, added)).alias("_facts"),
        )
        joined = records.join(
            sql.broadcast(facts), sql.col(f"value.{quoted(self.on)}") == sql.col("_on"), "left"
        )
        merged = sql.to_json(sql.struct("value.*", "_facts.*"))
        corrupt = sql.col("_corrupt")
        is_as_it_was = sql.col("value").isNull() | corrupt.isNotNull()
        value = sql.when(is_as_it_was, corrupt.cast("string"))
        return to_topic(
            joined.select("key", value.otherwise(merged).alias("value"), "headers"),
            self.source.bootstrap,
            self.topic,
        )


def read_table(spark: SparkSession, file: str) -> DataFrame:
    """The table in a file, by the suffix of its name."""
    form = _READERS.get(PurePath(file).suffix)
    if form is None:
        raise UsageRefused(f"--join {file}: its name ends in none of {', '.join(_READERS)}")
    return spark.read.options(header=True, inferSchema=True).format(form).load(file)


def columns_to_add(records: DataFrame, known: DataFrame, on: str) -> list[str]:
    """Columns of the file that values do not have; `UsageRefused` where both have one."""
    fields = records.select("value.*").columns
    for what, names in (("--schema", fields), ("the file of --join", known.columns)):
        if on not in names:
            raise UsageRefused(f"--on {on}: {what} has no such column, only {', '.join(names)}")
    added = [name for name in known.columns if name != on]
    if both := [name for name in added if name in fields]:
        raise UsageRefused(
            f"{', '.join(both)}: in values and in the file of --join; rename it in the file"
        )
    if not added:
        raise UsageRefused(f"the file of --join has no column but {on}: there is nothing to add")
    return added
