"""Readers called as Spark calls them, without a JVM."""

from collections.abc import Callable
from itertools import count

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.spark.plan import OffsetsJson
from ottla.spark.source import BatchReader, StreamReader, batch_reader, stream_reader
from spark.topics import Topic

PLAIN = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
HEADERS = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)
VALUE = StructType([StructField("value", StringType())])
NEW_TOPIC = Callable[..., Topic]
_numbers = count(1)


def read(options: dict[str, str], schema: StructType = VALUE) -> list[dict[str, object]]:
    """The rows of `spark.read`."""
    reader = batch_reader(options, schema)
    assert isinstance(reader, BatchReader)
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def values(options: dict[str, str]) -> list[object]:
    return [row["value"] for row in read(options)]


def texts(numbers: range) -> list[str]:
    return [str(number) for number in numbers]


def planned(reader: StreamReader, start: OffsetsJson, end: OffsetsJson) -> list[str]:
    """The values of one micro-batch."""
    return [
        row["value"]
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def latest(reader: StreamReader, start: OffsetsJson) -> OffsetsJson:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def stream(topic: Topic, **more: str) -> StreamReader:
    options = topic.options(**{"startingOffsets": "earliest", **more})
    reader = stream_reader(options, VALUE)
    assert isinstance(reader, StreamReader)
    return reader
