"""Simulated clusters under faults keep every promise; `make sim` runs more of them."""

import os
from collections.abc import Callable
from typing import Final

import pytest

from ottla.clock import SystemClock
from ottla.coordinator.runtime.coordinator import shard_index
from sim.nemesis import SHARE_PROFILE, WAIT_PROFILE, Fault
from sim.run import Plan, plan, simulate

_SEEDS: Final = int(os.environ.get("OTTLA_SIM_SEEDS", "30"))
_SECONDS: Final = float(os.environ.get("OTTLA_SIM_SECONDS", "10"))
_PARTS: Final = 3  # of the seeds, for tests that run at the same time
_DAY_MS: Final = 24 * 60 * 60 * 1000
_SHARE_SEEDS: Final = int(os.environ.get("OTTLA_SIM_SHARE_SEEDS", "1"))
_SHARE_SECONDS: Final = 6.0
_WAIT_SEEDS: Final = int(os.environ.get("OTTLA_SIM_WAIT_SEEDS", "3"))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
def test_no_seed_of_the_day_breaks_a_promise(part: int, report: Callable[[str], None]) -> None:
    """Each day has seeds of its own; `make sim SEED=k SECONDS=10` runs one of them again."""
    first = SystemClock().now_ms() // _DAY_MS * _SEEDS
    seeds = range(first + part, first + _SEEDS, _PARTS)
    verdicts = [simulate(plan(seed, duration_s=_SECONDS)) for seed in seeds]
    assert [one for one in verdicts if not one.is_good] == []
    acked_count = sum(one.acked_count for one in verdicts)
    assert acked_count > 50 * len(seeds), "clients made progress"
    report(
        f"{len(seeds)} simulations of {_SECONDS:g} s, seeds {seeds[0]} to {seeds[-1]}:"
        f" {acked_count} acknowledged records, 0 lost"
    )


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


@pytest.mark.slow
def test_share_groups_keep_their_promises(report: Callable[[str], None]) -> None:
    """None lost, none delivered after its end, one dead letter for each that was rejected."""
    seeds = range(1, _SHARE_SEEDS + 1)
    verdicts = [simulate(plan(seed, SHARE_PROFILE, _SHARE_SECONDS)) for seed in seeds]
    assert [one for one in verdicts if not one.is_good] == []
    acked_count = sum(one.acked_count for one in verdicts)
    assert acked_count > 20 * _SHARE_SEEDS, "clients made progress"
    report(f"{_SHARE_SEEDS} simulated share groups: {acked_count} records, each finished once")


@pytest.mark.slow
def test_an_acknowledgement_that_is_answered_too_early_is_found() -> None:
    """Its leader is replaced before the share coordinator has committed it."""

    def replaced(seed: int, plant: str) -> Plan:
        target = seed % 3
        faults = (
            Fault(2.0, "store_cut", 2.0, target),
            Fault(2.1, "lease_lost", 0.1, target),
            *(Fault(2.3 + 0.3 * turn, "reset", 0.1, 0) for turn in range(6)),
            Fault(4.2, "kill", 1.0, (target + 1) % 3),
        )
        return Plan(seed, SHARE_PROFILE, 3, _SHARE_SECONDS, faults, plant=plant)

    def is_found(seed: int) -> bool:
        problems = simulate(replaced(seed, "share_answered_too_early")).problems
        return any(problem.startswith("delivered after its end: ") for problem in problems)

    seed = next((seed for seed in range(1, 8) if is_found(seed)), None)
    assert seed is not None, "one of them finds it"
    assert simulate(replaced(seed, "")).is_good


@pytest.mark.slow
def test_records_that_wait_come_once_and_in_time(report: Callable[[str], None]) -> None:
    """None lost, doubled, early or out of order; none that was cancelled or aborted.

    Nor does a time of one that comes again pass without it while its partition is served.
    """
    seeds = range(1, _WAIT_SEEDS + 1)
    verdicts = [simulate(plan(seed, WAIT_PROFILE, _SECONDS)) for seed in seeds]
    assert [one for one in verdicts if not one.is_good] == []
    acked_count = sum(one.acked_count for one in verdicts)
    assert acked_count > 50 * _WAIT_SEEDS, "clients made progress"
    report(f"{_WAIT_SEEDS} simulations of records that wait: {acked_count} acknowledged, 0 lost")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "says"),
    [
        ("releases_forgotten", "delivered 2 times: "),
        ("waiting_unread", "never delivered: "),
        ("schedules_unread", "occurrence lost: "),
        ("schedules_not_cancelled", "came again, though cancelled: "),
    ],
)
def test_a_leader_that_does_not_know_what_waits_is_found(plant: str, says: str) -> None:
    faults = tuple(Fault(2.0 + 2.0 * target, "kill", 1.5, target) for target in range(3))
    problems = simulate(Plan(1, WAIT_PROFILE, 3, 9.0, faults, plant=plant)).problems
    assert any(problem.startswith(says) for problem in problems)
