"""Python workers of Spark end without a traceback when their session ends.

A worker that waits for its next task when a session stops cannot write to the session any more, and
`pyspark.daemon` prints a traceback for each of them. All other errors are printed as before.
"""

import sys
import traceback
from types import SimpleNamespace
from typing import Final

from ottla.spark.worker_imports import DAEMON, program_name

_SESSION_ENDED: Final = (BrokenPipeError, ConnectionResetError)


def quiet_session_end() -> None:
    """In a process that Spark's daemon has forked: print no traceback for an ended session."""
    if program_name() == DAEMON:
        shim = SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc)
        vars(sys.modules["__main__"])["traceback"] = shim


def print_exc() -> None:
    """Print the current exception, unless it says that the session has ended."""
    if not isinstance(sys.exc_info()[1], _SESSION_ENDED):
        traceback.print_exc()
