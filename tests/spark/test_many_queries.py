"""Streaming queries of one application that are started together: each reads all rows once.

Spark gives the Python process that plans a stream ten seconds to start, and all of them start at
the same time. No query is started again here.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from crash.processes import broker_process
from spark.driver_process import environment
from spark.programs.many_queries import SINKS
from spark.queries_together import Place, fill_sources, numbers_of

ROUNDS = int(os.environ.get("OTTLA_SPARK_STARTS", "1"))
TIMEOUT_S = 900  # a machine with far more to do than cores takes minutes
PROGRAM = Path(__file__).parent / "programs" / "many_queries.py"
CLOCK = Path(__file__).parent / "planner_clock"
BUSY = [sys.executable, "-c", "while True: pass"]


@pytest.mark.jvm
@pytest.mark.nightly
@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize("busy", [0, 2], ids=["alone", "beside two busy processes"])
@pytest.mark.parametrize("number", range(ROUNDS))
def test_eight_queries_that_are_started_together_write_every_row_once(
    tmp_path: Path, number: int, busy: int, report: Callable[[str], None]
) -> None:
    with broker_process(tmp_path / "data") as broker, busy_processes(busy):
        fill_sources(Place(broker.address, tmp_path), len(SINKS))
        found = run(broker.address, tmp_path)
    report(f"round {number}, {busy} busy processes: {describe(found, tmp_path)}")
    assert found["failed"] == {}
    for query in range(len(SINKS)):
        assert found["written"][str(query)] == list(numbers_of(query)), SINKS[query]


def run(address: str, home: Path) -> dict[str, Any]:
    """The program in a process of its own; the line that it ends with."""
    paths = [str(CLOCK), environment()["PYTHONPATH"]]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "OTTLA_PLANNER_CLOCK": str(home)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), address, str(home)],
        capture_output=True,
        text=True,
        cwd=home,
        env={**environment(), **variables},
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that use a core each."""
    processes = [subprocess.Popen(BUSY) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def describe(found: Mapping[str, Any], home: Path) -> str:
    """The times of a round: planners until they have connected, first batches, CPU by process."""
    connected = [json.loads(file.read_text()) for file in home.glob("planner-*.json")]
    wall, cpu = (spread(one[name] for one in connected) for name in ("wall_s", "cpu_s"))
    parts = [
        f"planners connected after {wall} s and {cpu} s of CPU",
        f"first batches after {spread(found.get('first_batches_s', ()))} s",
    ]
    parts += [f"CPU of {kind} {spent:.1f} s" for kind, spent in found["cpu_s"].items()]
    return ", ".join(parts)


def spread(values: Iterable[float]) -> str:
    """The smallest, the middle and the largest value."""
    found = sorted(values)
    if not found:
        return "no"
    return " / ".join(f"{one:.1f}" for one in (found[0], found[len(found) // 2], found[-1]))
