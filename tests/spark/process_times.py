"""CPU of a Spark application by kind of process, from /proc."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PLANNER: Final = "python_streaming_source_runner"


class Process(NamedTuple):
    """A process of /proc."""

    parent: int
    cpu_s: float
    command: str


class ProcessTimes:
    """CPU of a driver, its JVM and the Python processes of the JVM, since this was made."""

    def __init__(self, *, driver: int, jvm: int) -> None:
        self._driver = driver
        self._jvm = jvm
        self._before = _processes()

    def spent_s(self) -> dict[str, float]:
        """CPU seconds by kind of process. Processes that have ended are left out."""
        found = dict[str, float]()
        processes = _processes()
        for pid, process in processes.items():
            kind = self._kind(pid, processes)
            if kind is not None:
                before_s = self._before[pid].cpu_s if pid in self._before else 0.0
                found[kind] = round(found.get(kind, 0.0) + process.cpu_s - before_s, 2)
        return found

    def _kind(self, pid: int, processes: dict[int, Process]) -> str | None:
        if pid in (self._driver, self._jvm):
            return "driver" if pid == self._driver else "JVM"
        parent = processes[pid].parent
        forked_by_daemon = parent in processes and processes[parent].parent == self._jvm
        if parent != self._jvm and not forked_by_daemon:
            return None
        return "planners" if _PLANNER in processes[pid].command else "other Python processes"


def _processes() -> dict[int, Process]:
    found = dict[int, Process]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                found[int(entry.name)] = Process(int(fields[1]), cpu_s, command)
    return found
