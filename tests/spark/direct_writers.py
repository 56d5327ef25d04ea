"""Writers called as Spark calls them, without a JVM."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from ottla.spark.decode import HEADERS_TYPE
from ottla.spark.sink import batch_writer
from ottla.spark.source import BatchReader, batch_reader
from ottla.spark.write_task import WrittenAtLeastOnce, WrittenInTransaction
from spark.topics import Topic

NEW_TOPIC = Callable[..., Topic]
TEXT = StructType([StructField("value", StringType())])
HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
READ = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("headers", HEADERS),
    ]
)


def write(topic: Topic, rows: Sequence[dict[str, Any]], schema: StructType, **more: str) -> int:
    """Write as `df.write` with one task does."""
    options = {"kafka.bootstrap.servers": topic.address, "topic": topic.name}
    named = {name.replace("__", "."): value for name, value in more.items()}
    writer = batch_writer(options | named, schema, overwrite=False)
    return save(writer, iter([batch_of(rows)]))


def save(writer: DataSourceWriter, rows: Iterator[pa.RecordBatch]) -> int:
    """Run a batch writer as Spark does with one task."""
    assert isinstance(writer, DataSourceArrowWriter)
    done = writer.write(rows)
    writer.commit([done])
    if isinstance(done, WrittenAtLeastOnce):
        return done.rows
    assert isinstance(done, WrittenInTransaction)
    return done.part.content.rows


def batch_of(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    types = {
        "value": pa.string(),
        "key": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "headers": HEADERS_TYPE,
    }
    schema = pa.schema([(name, types[name]) for name in rows[0]])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def read(topic: Topic) -> list[dict[str, object]]:
    reader = batch_reader(topic.options(includeHeaders="true"), READ)
    assert isinstance(reader, BatchReader)
    rows = [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))
