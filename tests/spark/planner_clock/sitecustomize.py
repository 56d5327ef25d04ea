"""A clock in Python processes of a Spark driver: how long a process took until it connected.

Python imports a module of this name before any other. Where OTTLA_PLANNER_CLOCK names a directory,
every process that plans a stream writes a file there when it connects to its JVM, which waits ten
seconds for that: the CPU and the time, in seconds, from the start of the process.
"""

import json
import os
import sys
import time
from pathlib import Path

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
DIRECTORY = os.environ.get("OTTLA_PLANNER_CLOCK")


def age_s() -> float:
    """Seconds since the kernel started this process."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def note_connection(event: str, _: tuple[object, ...]) -> None:
    """Write the file at the first connection."""
    if event == "socket.connect":
        file = Path(str(DIRECTORY), f"planner-{os.getpid()}.json")
        if not file.exists():
            file.write_text(json.dumps({"cpu_s": time.process_time(), "wall_s": age_s()}))


if DIRECTORY and RUNNER in sys.orig_argv:
    sys.addaudithook(note_connection)
