"""Spark's TaskContext for readers and writers that run without a JVM."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import TaskContext


@contextmanager
def task(
    partition: int = 0,
    *,
    attempt: int = 0,
    query_id: str | None = None,
    batch_id: int | None = None,
) -> Iterator[None]:
    """Make this process a task of a stream, or of a batch job without `query_id`.

    Restores the context at the end: Spark starts no session inside a task.
    """
    before = TaskContext._taskContext
    TaskContext._taskContext = None
    context = TaskContext._getOrCreate()
    context._partitionId = partition
    context._attemptNumber = attempt
    context._localProperties = {}
    if query_id is not None:
        context._localProperties["sql.streaming.queryId"] = query_id
        context._localProperties["streaming.sql.batchId"] = str(batch_id)
    try:
        yield
    finally:
        TaskContext._taskContext = before
