"""Writers of `format("ottla")`: rows of batches and streams become records, exactly once.

Tasks write in transactions and leave them open (`write_task`); the driver decides about all tasks
of a batch together and ends their transactions (`batch_commit`).
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

from ottla.spark.batch_commit import StreamBatchCommit, abort_batch, commit_job
from ottla.spark.blocking_client import client_for
from ottla.spark.decode import HEADERS_TYPE
from ottla.spark.kernel import warn_if_missing
from ottla.spark.option_reader import OptionRefused
from ottla.spark.read_task import BATCH_ID, QUERY_ID
from ottla.spark.value_encoding import ValueEncoding, resolve_encoding
from ottla.spark.write_options import Delivery, WriteOptions, parse_write_options
from ottla.spark.write_task import (
    TaskAttempt,
    WrittenInTransaction,
    write_at_least_once,
    write_in_transaction,
)

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
    warn_if_missing()
    if overwrite:
        raise OptionRefused("a topic cannot be overwritten: write with mode append")
    return BatchWriter(parse_write_options(raw), schema)


def stream_writer(raw: Mapping[str, str], schema: StructType) -> DataSourceStreamWriter:
    """The writer behind `df.writeStream`."""
    warn_if_missing()
    return StreamWriter(parse_write_options(raw), schema)


class BatchWriter(DataSourceArrowWriter):
    """Writes every row of a data frame, or none."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        # Made once for a job, and pickled to all attempts of its tasks with the options.
        self.job_id = f"{SystemRandom().getrandbits(64):016x}"
        self.encoding = check_columns(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        iterator = _encoded(iterator, self.encoding)
        if self.options.delivery is Delivery.AT_LEAST_ONCE:
            return write_at_least_once(iterator, self.options)
        return write_in_transaction(iterator, self.options, _attempt_of_job(self.job_id))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if written := _written(messages):
            commit_job(client_for(self.options.brokers), written)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if (written := _written(messages)) and _has_failed(messages):
            abort_batch(client_for(self.options.brokers), written)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes every row of a micro-batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        self.encoding = check_columns(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        iterator = _encoded(iterator, self.encoding)
        if self.options.delivery is Delivery.AT_LEAST_ONCE:
            return write_at_least_once(iterator, self.options)
        return write_in_transaction(iterator, self.options, _attempt_of_stream())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if written := _written(messages):
            blocking = client_for(self.options.brokers)
            batch = StreamBatchCommit(blocking, batchId, written, self.options.accepted_batch)
            blocking.submit(batch.run()).result()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if (written := _written(messages)) and _has_failed(messages):
            abort_batch(client_for(self.options.brokers), written)


def _written(messages: list[WriterCommitMessage | None]) -> list[WrittenInTransaction]:
    """The messages of tasks that wrote in transactions."""
    return [one for one in messages if isinstance(one, WrittenInTransaction)]


def _has_failed(messages: list[WriterCommitMessage | None]) -> bool:
    """True if a task is missing. Spark aborts after a failed commit, too: its decided transactions
    must not be aborted, and the undecided ones it has aborted itself."""
    return None in messages


def _attempt_of_stream() -> TaskAttempt:
    """The attempt of this task, of a query's micro-batch.

    The id of a query is kept in its checkpoint, so it is the same after a restart.
    """
    task = _task()
    query_id, batch_id = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
    if query_id is None or batch_id is None:
        raise OptionRefused(
            "Spark does not name the query of a task, so rows cannot be written exactly"
            " once: set delivery=at-least-once"
        )
    return TaskAttempt(
        owner=query_id,
        task=task.partitionId(),
        number=task.attemptNumber(),
        batch=int(batch_id),
    )


def _attempt_of_job(job_id: str) -> TaskAttempt:
    """The attempt of this task, of a batch job.

    A write in `foreachBatch` belongs to its query: a broker keeps transactional ids for a week,
    and new ones for every micro-batch would pile up.
    """
    task = _task()
    owner = task.getLocalProperty(QUERY_ID) or job_id
    return TaskAttempt(
        owner=owner, task=task.partitionId(), number=task.attemptNumber(), batch=None
    )


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "Spark calls write inside of a task"
    return task


def _encoded(
    batches: Iterator[pa.RecordBatch], encoding: ValueEncoding | None
) -> Iterator[pa.RecordBatch]:
    return batches if encoding is None else encoding.encode(batches)


def check_columns(given: StructType, options: WriteOptions) -> ValueEncoding | None:
    """Refuse columns that Spark's Kafka sink refuses, before anything is written.

    Returns the encoding of values for a schema registry, if there is one.
    """
    schema = to_arrow_schema(given.toNullable(), timezone="UTC")  # as headers of literals are not
    if "value" not in schema.names:
        raise OptionRefused("a column `value` of STRING or BINARY is needed")
    if options.topic is None and "topic" not in schema.names:
        raise OptionRefused("no topic: give the option `topic` or a column `topic`")
    encoding = None if options.encoding is None else resolve_encoding(options.encoding)
    for field in schema:
        if field.name == "value" and encoding is not None:
            encoding.check(field.type)
            continue
        if field.name not in _TYPES:
            raise OptionRefused(
                f"column {field.name} is not part of a record; the columns are {', '.join(_TYPES)}"
            )
        if field.type not in _TYPES[field.name]:
            expected = " or ".join(map(str, _TYPES[field.name]))
            raise OptionRefused(f"column {field.name} is {field.type}, not {expected}")
    return encoding
