"""Simulated clusters under faults keep every promise; `make sim` runs more of them."""

import os
from collections.abc import Callable
from typing import Final

import pytest

from sim.nemesis import Fault
from sim.run import Plan, plan, simulate

_SEEDS: Final = int(os.environ.get("OTTLA_SIM_SEEDS", "12"))
_SECONDS: Final = 12.0


@pytest.mark.slow
def test_no_seed_breaks_a_promise(report: Callable[[str], None]) -> None:
    verdicts = [simulate(plan(seed, duration_s=_SECONDS)) for seed in range(1, _SEEDS + 1)]
    assert [one for one in verdicts if not one.is_good] == []
    acked_count = sum(one.acked_count for one in verdicts)
    assert acked_count > 100 * _SEEDS, "clients made progress"
    report(f"{_SEEDS} simulations of {_SECONDS:g} s: {acked_count} acknowledged records, 0 lost")


@pytest.mark.slow
def test_a_coordinator_that_was_replaced_unawares_is_found_to_say_what_it_knew() -> None:
    """Its registration ends while its watch is held: others lead, and it does not know."""

    def replaced(target: int, plant: str) -> Plan:
        faults = (Fault(2.0, "watch_held", 4.0, target), Fault(2.1, "lease_lost", 0.1, target))
        return Plan(1, "store", 3, 7.0, faults, plant=plant)

    def is_found(target: int) -> bool:
        problems = simulate(replaced(target, "unconfirmed_reads")).problems
        return any(problem.startswith("outdated: ") for problem in problems)

    coordinator = next((target for target in range(3) if is_found(target)), None)
    assert coordinator is not None, "one of them coordinates"
    assert simulate(replaced(coordinator, "")).is_good
