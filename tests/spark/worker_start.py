"""Retries of queries whose Python worker did not start within Spark's fixed ten seconds.

No setting changes that limit, and an overloaded machine needs longer. Such a query has read and
written nothing, so it is started again. Any other failure is raised at once.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from pyspark.errors import PySparkException

TRIES: Final = 8
TOO_LATE: Final = "Python worker failed to connect back"

Result = TypeVar("Result")


def retry_worker_start(query: Callable[[], Result]) -> Result:
    """The result of `query`, retried while its Python workers start too late."""
    for _ in range(TRIES - 1):
        try:
            return query()
        except PySparkException as problem:
            if TOO_LATE not in str(problem):
                raise
    return query()
