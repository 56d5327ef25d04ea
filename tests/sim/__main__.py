"""`python -m sim`: simulate seeds, print a verdict for each, and what failed."""

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from sim.nemesis import PROFILES
from sim.planted import PLANTS
from sim.run import DURATION_S, Plan, Verdict, plan, shrink, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many (default 10)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--seed", type=int, help="only this one, with its trace")
    parser.add_argument("--profile", choices=sorted(PROFILES), help="faults of this kind only")
    parser.add_argument("--secs", type=float, default=DURATION_S, help="simulated seconds")
    parser.add_argument("--plant", choices=sorted(PLANTS), default="", help="with this bug")
    parser.add_argument("--shrink", action="store_true", help="shorten the seed while it fails")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    arguments = parser.parse_args()

    def plan_of(seed: int) -> Plan:
        chosen = plan(seed, arguments.profile, arguments.secs)
        return replace(chosen, plant=arguments.plant)

    if arguments.seed is not None and arguments.shrink:
        return _shrink(plan_of(arguments.seed))
    if arguments.seed is not None:
        verdict = simulate(plan_of(arguments.seed), is_shown=True)
        _show(verdict)
        return 0 if verdict.is_good else 1
    failed = []
    plans = [plan_of(seed) for seed in range(arguments.first, arguments.first + arguments.seeds)]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for verdict in pool.map(simulate, plans):
            _show(verdict)
            if not verdict.is_good:
                failed.append(verdict)
    sys.stdout.write(f"{arguments.seeds} seeds, {len(failed)} failed\n")
    return 1 if failed else 0


def _shrink(failing: Plan) -> int:
    """Leave out faults and time as long as the simulation still fails, and show the rest."""
    verdict = simulate(failing)
    if verdict.is_good:
        sys.stdout.write(f"seed {failing.seed} does not fail\n")
        return 0
    shortest = shrink(failing, lambda plan: not simulate(plan).is_good)
    for fault in shortest.faults:
        sys.stdout.write(
            f"at {fault.at_s:.3f} s: {fault.kind} of {fault.target} for {fault.lasts_s:.3f} s\n"
        )
    sys.stdout.write(f"{shortest.duration_s:g} simulated seconds\n")
    _show(simulate(shortest, is_shown=True))
    return 1


def _show(verdict: Verdict) -> None:
    sys.stdout.write(
        f"seed {verdict.seed} {verdict.profile} trace {verdict.trace_hash}"
        f" {verdict.acked_count} acknowledged {verdict.event_count} events"
        f" {'ok' if verdict.is_good else 'FAILED'}\n"
    )
    for problem in verdict.problems[:20]:
        sys.stdout.write(f"  {problem}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
