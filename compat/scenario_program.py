"""A program in another language that plays one scenario per run and says why it failed."""

import subprocess
from collections.abc import Sequence
from typing import Final

_SCENARIO_S: Final = 150


def list_scenarios(program: Sequence[str]) -> list[str]:
    done = subprocess.run([*program, "--list"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def play(program: Sequence[str], address: str, scenario: str) -> None:
    """Run the scenario against the broker at this address; its failure is the test's."""
    done = subprocess.run(
        [*program, address, scenario],
        capture_output=True,
        text=True,
        timeout=_SCENARIO_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
