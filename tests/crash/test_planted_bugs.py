"""Simulations find the bugs of `sim.planted`: their faults and checks are strong enough."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from sim.planted import PLANTS
from sim.run import DIED, plan, simulate

_SEEDS_MAX: Final = int(os.environ.get("OTTLA_PLANT_SEEDS", "3"))
_OWN_PLANS: Final = (  # in test_simulation.py
    *("unconfirmed_reads", "share_answered_too_early", "releases_forgotten", "waiting_unread"),
    *("schedules_unread", "schedules_not_cancelled"),
)
_SECONDS: Final = float(os.environ.get("OTTLA_PLANT_SECONDS", "10"))
_FOUND_AT_ONCE: Final = ("isr_without_store", "sequences_unchecked")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in _FOUND_AT_ONCE else pytest.mark.nightly)
        for name in PLANTS
        if name not in _OWN_PLANS
    ],
)
def test_a_planted_bug_is_found(name: str, report: Callable[[str], None]) -> None:
    for seed in range(1, _SEEDS_MAX + 1):
        verdict = simulate(replace(plan(seed, "all", _SECONDS), plant=name))
        if not verdict.is_good:
            assert verdict.problems != (DIED,), f"seed {seed} shows nothing: it did not end"
            report(f"{name}: found by seed {seed}: {verdict.problems[0]}")
            return
    pytest.fail(f"{_SEEDS_MAX} seeds do not find {name}: {PLANTS[name].__doc__}")
