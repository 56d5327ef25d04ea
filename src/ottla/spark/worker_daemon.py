"""Spark's daemon of Python workers, without the tracebacks of workers whose session has ended.

A worker that waits for its next task when a session stops cannot write to the session any more, and
`pyspark.daemon` prints a traceback for each of them. All other errors are printed as before.
"""

import sys
import traceback
from types import SimpleNamespace

from pyspark import daemon

_SESSION_ENDED = (BrokenPipeError, ConnectionResetError)


def print_exc() -> None:
    """Print the current exception, unless it says that the session has ended."""
    if not isinstance(sys.exc_info()[1], _SESSION_ENDED):
        traceback.print_exc()


if __name__ == "__main__":
    daemon.traceback = SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc)
    daemon.manager()
