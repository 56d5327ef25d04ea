"""Simulations: the same seed is the same run, planted bugs are found, failures are shortened."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from sim.nemesis import Fault
from sim.run import Plan, Verdict, plan, shrink, simulate

SECONDS = 8.0


@pytest.fixture(scope="module")
def here() -> Verdict:
    """A simulation that a child of this process has run."""
    return simulate(plan(7, "all", SECONDS))


@pytest.mark.slow
@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_a_seed_has_the_same_trace_in_another_process(here: Verdict, hash_seed: str) -> None:
    command = [sys.executable, "-m", "sim", "--seeds", "1", "--first", "7", "--profile", "all"]
    there = subprocess.run(
        [*command, "--secs", str(SECONDS)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert here.trace_hash
    assert f"trace {here.trace_hash} " in there


@pytest.mark.slow
def test_seeds_differ() -> None:
    first, second = (simulate(plan(seed, "calm", SECONDS)) for seed in (1, 2))
    assert first.is_good
    assert first.acked_count > 100
    assert first.trace_hash != second.trace_hash


@pytest.mark.slow
def test_records_that_are_acknowledged_before_they_are_synced_are_found_to_be_lost() -> None:
    chosen = replace(plan(1, "power", 20.0), settings=(("log.durability", "replicated"),))
    assert any(problem.startswith("lost: ") for problem in simulate(chosen).problems)


def test_a_simulation_that_dies_is_not_good() -> None:
    impossible = replace(plan(1, "calm", SECONDS), settings=(("log.durability", "none"),))
    verdict = simulate(impossible)
    assert verdict.problems == ("the simulation died",)


def test_a_failing_plan_is_shortened_to_what_it_needs() -> None:
    faults = tuple(Fault(float(at), "kill", 1.0, at % 3) for at in range(20))
    needed = {faults[3], faults[17]}
    tried = list[Plan]()

    def fails(candidate: Plan) -> bool:
        tried.append(candidate)
        return needed <= set(candidate.faults) and candidate.duration_s >= 5

    shortest = shrink(Plan(1, "kill", 3, 30.0, faults), fails)
    assert set(shortest.faults) == needed
    assert shortest.duration_s == 7.5
    assert len(tried) < 100
