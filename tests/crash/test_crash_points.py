"""A kill at exact points: before the n-th change of the disk, for n from the first to the last.

Creating, growing, changing and deleting a topic, rolling, retention, checkpoints and the clean
stop itself are each interrupted between any two of their steps.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import pytest

from crash import doomed
from crash.load import Letter, read_all
from crash.processes import PATIENCE_S, run_ottla
from crash.topics import (
    admin_of,
    create_topics,
    partition_counts,
    partition_directories,
    setting_of,
)
from ottla import testing

_POINTS: Final = int(os.environ.get("OTTLA_CRASH_POINTS", "10"))
_FOREVER: Final = "-1"


@dataclass(frozen=True, slots=True)
class Expected:
    """What there is after some of the steps."""

    partition_count: int = 0  # 0: the topic does not exist
    retention_bytes: str = _FOREVER
    numbers: list[int] = field(default_factory=list)

    @classmethod
    def after(cls, step_count: int) -> "Expected":
        partition_count, retention_bytes = 0, _FOREVER
        numbers: list[int] = []
        for number, name in enumerate(doomed.STEPS[:step_count]):
            match name:
                case "create":
                    partition_count, retention_bytes, numbers = 1, _FOREVER, []
                case "grow":
                    partition_count = 3
                case "configure":
                    retention_bytes = str(doomed.RETENTION_BYTES)
                case "delete":
                    partition_count = 0
                case "produce":
                    numbers.append(number)
                case _:
                    raise AssertionError(name)
        return cls(partition_count, retention_bytes, numbers)

    def is_so(self, found: "Expected", letters: list[Letter]) -> bool:
        """Whether this is what was found; retention may have taken the oldest records."""
        if self.partition_count != found.partition_count:
            return False
        if not self.partition_count:
            return True
        left = self.numbers[letters[0].offset :] if letters else self.numbers[len(self.numbers) :]
        has_lost = not letters and bool(self.numbers) and self.retention_bytes == _FOREVER
        return (
            found.retention_bytes == self.retention_bytes
            and found.numbers == left
            and not has_lost
            and (self.retention_bytes != _FOREVER or found.numbers == self.numbers)
        )


def _run_until(data: Path, point: int) -> list[str]:
    """Let a broker die at a point; what it had acknowledged by then."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", "crash.doomed", str(data), str(point)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment,
    )
    assert done.returncode in {0, -9}, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_whatever_step_is_interrupted_the_next_start_finds_a_whole(
    tmp_path: Path, rng: Random, report: Callable[[str], None]
) -> None:
    *steps, count = _run_until(tmp_path / "whole", 0)
    assert tuple(steps) == doomed.STEPS
    points = sorted(rng.sample(range(1, int(count)), min(_POINTS, int(count) - 1)))
    for point in points:
        data = tmp_path / f"died-at-{point}"
        acknowledged = [step for step in _run_until(data, point) if not step.isdigit()]
        _check(data, len(acknowledged))
    report(f"{len(points)} of {count} crash points between file operations: all consistent")


def _check(data: Path, step_count: int) -> None:
    with testing.broker({"auto.create.topics.enable": "false"}, data=data) as address:
        admin = admin_of(address)
        counts = partition_counts(admin)
        assert partition_directories(data) == counts
        found, letters = Expected(), list[Letter]()
        if counts:
            letters = read_all(address, [(doomed.TOPIC, 0)])[doomed.TOPIC, 0]
            found = Expected(
                counts[doomed.TOPIC],
                setting_of(admin, doomed.TOPIC, "retention.bytes") or "",
                [letter.number for letter in letters],
            )
        # The step that was interrupted may have happened or not.
        possible = [Expected.after(step_count), Expected.after(step_count + 1)]
        assert any(one.is_so(found, letters) for one in possible), (data.name, found, possible)
        create_topics(admin, {"afterwards": {}})
    if counts:
        verified = run_ottla("log", "verify", str(data))
        assert verified.returncode == 0, (data.name, verified.stderr)
