"""Data frames of topics, and writers to topics, for pipelines."""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import BinaryType, StringType

from ottla.spark.json_values import with_json_values

_RECORD_COLUMNS: Final = ("key", "value", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """A topic, or several with commas between; `value_schema` is that of JSON values."""

    bootstrap: str
    topic: str
    value_schema: str | None = None

    def options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.topic,
            "includeHeaders": "true",
        }

    def typed(self, records: DataFrame) -> DataFrame:
        """The records with the fields of JSON values, if there is a schema of them."""
        if self.value_schema is None:
            return records
        return with_json_values(records, self.value_schema)

    def description(self) -> dict[str, str]:
        """The part of a declaration about the source."""
        return {} if self.value_schema is None else {"schema": self.value_schema}


def stream_of(spark: SparkSession, source: TopicSource, group: str) -> DataFrame:
    """A stream of all records from the earliest; `group` gets its committed offsets."""
    options = source.options() | {"startingOffsets": "earliest", "commitGroup": group}
    return source.typed(spark.readStream.format("ottla").options(**options).load())


def batch_of(spark: SparkSession, source: TopicSource, **more: str) -> DataFrame:
    """The existing records as a batch; `more` are options of the source."""
    return source.typed(spark.read.format("ottla").options(**source.options(), **more).load())


def readable(records: DataFrame) -> DataFrame:
    """The same with keys and values as text, for users' expressions."""
    columns = {
        name: sql.col(name).cast("string")
        for name in ("key", "value")
        if isinstance(records.schema[name].dataType, BinaryType)
    }
    return records.withColumns(columns)


def as_records(rows: DataFrame) -> DataFrame:
    """Rows as records: `key` and `headers` stay, all other columns become JSON in `value`.

    A value that is the only other column, and text or bytes, is written as it is.
    """
    others = [name for name in rows.columns if name not in _RECORD_COLUMNS[::2]]
    columns = []
    if "key" in rows.columns:
        key = sql.col("key")
        is_plain = isinstance(rows.schema["key"].dataType, (BinaryType, StringType))
        columns.append(key if is_plain else key.cast("string").alias("key"))
    if "headers" in rows.columns:
        columns.append(sql.col("headers"))
    if others == ["value"] and isinstance(rows.schema["value"].dataType, (BinaryType, StringType)):
        columns.append(sql.col("value"))
    else:
        columns.append(sql.to_json(sql.struct(*map(quoted, others))).alias("value"))
    return rows.select(*columns)


def quoted(name: str) -> str:
    """A column's name quoted for SQL."""
    return f"`{name.replace('`', '``')}`"


def to_topic(records: DataFrame, bootstrap: str, topic: str) -> DataStreamWriter:
    """A stream writer to a topic."""
    return (
        records.writeStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
    )


def append_to_topic(records: DataFrame, bootstrap: str, topic: str) -> None:
    """Write a batch to a topic, at least once."""
    (
        records.write.format("ottla")
        .mode("append")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .save()
    )
