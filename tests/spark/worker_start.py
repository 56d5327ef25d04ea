"""Spark gives a Python process ten seconds to start, and no setting changes that.

A machine with far more to do than cores needs longer. A query that met this has done nothing yet,
so it can be started again.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from pyspark.errors import PySparkException

TRIES: Final = 8
TOO_LATE: Final = "Python worker failed to connect back"

Result = TypeVar("Result")


def retry_worker_start(query: Callable[[], Result]) -> Result:
    """What a query gives, once its Python processes were in time."""
    for _ in range(TRIES - 1):
        try:
            return query()
        except PySparkException as problem:
            if TOO_LATE not in str(problem):
                raise
    return query()
