"""A Spark driver process, which tests kill together with its JVM."""

import json
import os
import selectors
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from spark.crashing_driver import READY

START_TIMEOUT_S = 300  # until the session is ready, on a busy machine
TESTS = Path(__file__).parents[1]


def environment() -> dict[str, str]:
    """The environment of a driver whose Python processes import test modules."""
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class DriverProcess:
    """A run of `spark.crashing_driver`."""

    def __init__(self, log_file: Path, **told: Any) -> None:
        with log_file.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "spark.crashing_driver", json.dumps(told)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
            )
        self._log_file = log_file
        self._jvm: int | None = None

    def wait_ready(self) -> None:
        """Return when the driver has a session."""
        output = self._process.stdout
        assert output is not None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            assert selector.select(START_TIMEOUT_S), f"no session in time: {self.said()}"
        line = output.readline()
        assert line.startswith(READY), self.said()
        self._jvm = int(line.removeprefix(READY))

    def wait(self, timeout_s: float) -> int | None:
        """The exit status; None if the driver still runs after `timeout_s`."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def workers(self) -> list[int]:
        """The Python processes that its JVM has started, directly or not."""
        found = list[int]()
        parents = {self._jvm} - {None}
        for pid, parent in sorted(_parents().items()):
            if parent in parents:
                parents.add(pid)
                found.append(pid)
        return [pid for pid in found if b"pyspark" in _command(pid)]

    def kill(self) -> None:
        """SIGKILL for the JVM and the Python process beside it."""
        for pid in filter(None, (self._jvm, self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(START_TIMEOUT_S)

    def end(self) -> None:
        """Kill the driver if it runs, and close its pipes."""
        if self._process.poll() is None:
            self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def said(self) -> str:
        return self._log_file.read_text()[-5000:]


def _parents() -> dict[int, int]:
    """Every process with its parent; a parent has the lower number, near enough."""
    found = dict[int, int]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                found[int(entry.name)] = int(fields[1])
    return found


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
