"""What Spark tells a task of itself, for writers that run without a JVM."""

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
    """Inside, this process runs this task; without a query, one of a batch.

    Outside it must be no task again: Spark starts no session in one.
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
