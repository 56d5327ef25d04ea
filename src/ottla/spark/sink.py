"""`format("ottla")` for writing: rows of batches and streams become records, each once.

Python's data sources are not asked before a task's rows count, so every task ends a transaction of
its own; `writing` says how that makes one copy of every row.
"""

from collections.abc import Iterator, Mapping
from random import SystemRandom
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ottla.spark.decode import HEADERS_TYPE
from ottla.spark.options import Delivery, OptionRefused, WriteOptions, parse_write_options
from ottla.spark.writing import Work, wait_readable, write_at_least_once, write_exactly_once

# What Spark tells a task of its query.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_BYTES: Final = (pa.binary(), pa.string())
_TYPES: Final[Mapping[str, tuple[pa.DataType, ...]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": (pa.string(),),
    "partition": (pa.int32(),),
    "headers": (HEADERS_TYPE,),
}


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
        # Made once for a job, and handed to all tries of its tasks together with the options.
        self.job_id = f"{SystemRandom().getrandbits(64):016x}"
        check_columns(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self.options.delivery is Delivery.AT_LEAST_ONCE:
            return write_at_least_once(iterator, self.options)
        work = Work(owner=self.job_id, partition=_task().partitionId(), number=0)
        written = write_exactly_once(iterator, self.options, work)
        if written.rows:
            wait_readable(self.options, work)  # who writes a batch may want to read it next
        return written


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes every row of a micro-batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        check_columns(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self.options.delivery is Delivery.AT_LEAST_ONCE:
            return write_at_least_once(iterator, self.options)
        return write_exactly_once(iterator, self.options, _work_of_stream())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is left to do: what tasks have written is there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is left to do: tasks that failed have aborted, the others count."""


def _work_of_stream() -> Work:
    """Which part of which query's micro-batch this task is.

    The id of a query is kept in its checkpoint, so it is the same after a restart.
    """
    task = _task()
    query_id, batch_id = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
    if query_id is None or batch_id is None:
        raise OptionRefused(
            "Spark does not say to which query a task belongs, so it cannot be written exactly"
            " once: set delivery=at-least-once"
        )
    return Work(owner=query_id, partition=task.partitionId(), number=int(batch_id))


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "Spark calls write inside of a task"
    return task


def check_columns(given: StructType, options: WriteOptions) -> None:
    """Refuse what Spark's Kafka sink refuses, before anything is written."""
    schema = to_arrow_schema(given.toNullable(), timezone="UTC")  # as headers of literals are not
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
