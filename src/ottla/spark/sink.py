"""`format("ottla")` for writing: rows of batches and streams become records, at least once.

A task writes with an idempotent producer, so what is sent again on its way is not written again.
A task or a query that fails and is run again writes its rows again.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ottla.client.client import Client
from ottla.client.partitioner import Partitioner
from ottla.client.producer import IdempotentProducer
from ottla.clock import SystemClock
from ottla.model import TimestampMs, TopicPartition
from ottla.records.batch import Record
from ottla.spark.decode import HEADERS_TYPE
from ottla.spark.link import link_to
from ottla.spark.options import OptionRefused, WriteOptions, parse_write_options

BATCH_BYTES_MAX: Final = 512 << 10  # before compression; below every broker's default limit
_RECORD_OVERHEAD_BYTES: Final = 24
_BYTES: Final = (pa.binary(), pa.string())
_TYPES: Final[Mapping[str, tuple[pa.DataType, ...]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": (pa.string(),),
    "partition": (pa.int32(),),
    "headers": (HEADERS_TYPE,),
}


class RowRefused(ValueError):
    """A row that cannot become a record."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task has written."""

    rows: int


def batch_writer(
    raw: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceWriter:
    """The writer behind `df.write`."""
    if overwrite:
        raise OptionRefused("a topic cannot be overwritten: write with mode append")
    return BatchWriter(parse_write_options(raw), schema)


def stream_writer(raw: Mapping[str, str], schema: StructType) -> DataSourceStreamWriter:
    """The writer behind `df.writeStream`."""
    return StreamWriter(parse_write_options(raw), schema)


class BatchWriter(DataSourceArrowWriter):
    """Writes every row of a data frame."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        check_columns(to_arrow_schema(schema, timezone="UTC"), options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_all(iterator, self.options)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes every row of a micro-batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        check_columns(to_arrow_schema(schema, timezone="UTC"), options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_all(iterator, self.options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is left to do: what tasks have written is there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing can be taken back."""


def check_columns(schema: pa.Schema, options: WriteOptions) -> None:
    """Refuse what Spark's Kafka sink refuses, before anything is written."""
    if "value" not in schema.names:
        raise OptionRefused("a column `value` of STRING or BINARY is needed")
    if options.topic is None and "topic" not in schema.names:
        raise OptionRefused("where to? give the option `topic` or a column `topic`")
    for field in schema:
        if field.name not in _TYPES:
            raise OptionRefused(
                f"column {field.name} has no place in a record; there are {', '.join(_TYPES)}"
            )
        if field.type not in _TYPES[field.name]:
            expected = " or ".join(map(str, _TYPES[field.name]))
            raise OptionRefused(f"column {field.name} is {field.type}, not {expected}")


def write_all(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> Written:
    """What a task does: every row, in the order of its batches."""
    link = link_to(options.brokers)
    rows = 0
    writing: _Writing | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if writing is None:
            producer = link.start(IdempotentProducer.open(link.client, options.codec)).result()
            writing = _Writing(link.client, producer, options.topic)
        link.start(writing.write(batch)).result()
        rows += batch.num_rows
    return Written(rows)


class _Writing:
    """Owns what a task knows of the topics that it writes to."""

    def __init__(self, client: Client, producer: IdempotentProducer, topic: str | None) -> None:
        self._client = client
        self._producer = producer
        self._topic = topic
        self._partitioners: dict[str, Partitioner] = {}

    async def write(self, batch: pa.RecordBatch) -> None:
        """Every row to its partition; partitions at the same time, each in its order."""
        by_partition = dict[TopicPartition, list[Record]]()
        now_ms = SystemClock().now_ms()
        for row in batch.to_pylist():
            topic = self._topic or row.get("topic")
            if topic is None:
                raise RowRefused("a row has no topic: its column `topic` is null")
            partitioner = self._partitioners.get(topic) or await self._learn(topic)
            record = _record(row, now_ms)
            partition = row.get("partition")
            if partition is None:
                partition = partitioner.choose(record.key)
            elif not 0 <= partition < partitioner.partition_count:
                raise RowRefused(f"topic {topic} has no partition {partition}")
            by_partition.setdefault(TopicPartition(topic, partition), []).append(record)
        for partitioner in self._partitioners.values():
            partitioner.next_batch()
        await asyncio.gather(
            *(self._write_in_order(tp, records) for tp, records in by_partition.items())
        )

    async def _learn(self, topic: str) -> Partitioner:
        view = await self._client.describe_or_create(topic)
        chance = Random()  # noqa: S311  # which partition records without a key go to
        partitioner = Partitioner(len(view.topics[topic].partitions), chance)
        self._partitioners[topic] = partitioner
        return partitioner

    async def _write_in_order(self, tp: TopicPartition, records: Sequence[Record]) -> None:
        for batch in _batches(records):
            await self._producer.write(tp, batch)


def _record(row: dict[str, Any], now_ms: TimestampMs) -> Record:
    return Record(
        timestamp_ms=now_ms,
        key=_as_bytes(row.get("key")),
        value=_as_bytes(row["value"]),
        headers=tuple((one["key"], one["value"]) for one in row.get("headers") or ()),
    )


def _as_bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _batches(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Batches of at most `BATCH_BYTES_MAX`; a larger record has one to itself."""
    start = size_bytes = 0
    for at, record in enumerate(records):
        record_bytes = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        record_bytes += sum(2 * len(name) + len(part or b"") + 4 for name, part in record.headers)
        if at > start and size_bytes + record_bytes > BATCH_BYTES_MAX:
            yield records[start:at]
            start, size_bytes = at, 0
        size_bytes += record_bytes
    yield records[start:]
