"""Simulated clusters under faults keep every promise; `make sim` runs more of them."""

import os
from collections.abc import Callable
from typing import Final

import pytest

from sim.run import plan, simulate

_SEEDS: Final = int(os.environ.get("OTTLA_SIM_SEEDS", "12"))
_SECONDS: Final = 12.0


@pytest.mark.slow
def test_no_seed_breaks_a_promise(report: Callable[[str], None]) -> None:
    verdicts = [simulate(plan(seed, duration_s=_SECONDS)) for seed in range(1, _SEEDS + 1)]
    assert [one for one in verdicts if not one.is_good] == []
    acked_count = sum(one.acked_count for one in verdicts)
    assert acked_count > 100 * _SEEDS, "clients made progress"
    report(f"{_SEEDS} simulations of {_SECONDS:g} s: {acked_count} acknowledged records, 0 lost")
