"""Python processes of Spark import this package without going through what they have loaded before.

An import makes so many objects that the garbage collector runs again and again, each time through
all of PySpark, Arrow and numpy, which stay as long as the process does.
"""

import gc
import sys
from typing import Final

DAEMON: Final = "pyspark.daemon"  # in the processes that it forks
PLANNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"


def program_name() -> str | None:
    """The module that this process runs, as in `python -m`; None if it runs a file."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    return name if isinstance(name, str) else None


def freeze_loaded_modules() -> None:
    """In a Python process of Spark: leave every object that exists out of garbage collections."""
    if program_name() in (DAEMON, PLANNER):
        gc.freeze()
