"""Simulated clusters under faults keep every promise; `make sim` runs more of them."""

import os
from collections.abc import Callable
from typing import Final

import pytest

from ottla.coordinator.runtime.coordinator import shard_index
from sim.nemesis import Fault
from sim.run import Plan, plan, simulate

_SEEDS: Final = int(os.environ.get("OTTLA_SIM_SEEDS", "5"))
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
    """Its registration ends while it is cut off from the store: others lead, it does not know.

    Not with every seed: a commit that reaches it in between keeps it from responding at all.
    """
    target = shard_index("ledger", 3)  # the broker that leads the partition of the group first

    def replaced(seed: int, plant: str) -> Plan:
        faults = (Fault(2.0, "store_cut", 4.0, target), Fault(2.1, "lease_lost", 0.1, target))
        return Plan(seed, "store", 3, 7.0, faults, plant=plant)

    def is_found(seed: int) -> bool:
        problems = simulate(replaced(seed, "unconfirmed_reads")).problems
        return any(problem.startswith("outdated: ") for problem in problems)

    seed = next((seed for seed in range(3, 15) if is_found(seed)), None)
    assert seed is not None, "one of them finds it"
    assert simulate(replaced(seed, "")).is_good
