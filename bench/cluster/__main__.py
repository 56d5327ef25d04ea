"""`python -m bench.cluster`: three nodes of Ottla and of Kafka in turn; a table, and the docs."""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from bench import report
from bench.__main__ import CACHE, PAGE, end_in_order
from bench.cluster.nodes import ClusterServer, contestants
from bench.cluster.rows import FULL, METRICS, QUICK, ClusterEffort, measure
from bench.load import Generators, LoadFailed, build_generators
from bench.results import Contestant, Results, conditions
from bench.run import with_noise


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds to alternate (default 5)")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work")
    parser.add_argument("--servers", default="ottla,ottla-fsync,kafka", metavar="LIST")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    options = parser.parse_args()
    effort = QUICK if options.quick else FULL
    if options.rounds is not None:
        effort = effort._replace(rounds=options.rounds)
    CACHE.mkdir(parents=True, exist_ok=True)
    generators = build_generators(CACHE / "bin")
    known = contestants()
    chosen = [known[name] for name in options.servers.split(",")]
    present = [server for server in chosen if not server.missing]
    results = Results(
        conditions=conditions(native=generators.native),
        contestants=[Contestant(s.name, s.title, s.version, s.durability) for s in present],
        rounds=effort.rounds,
        complete=_is_complete(effort) and len(present) == len(known),
        left_out=[server.missing for server in chosen if server.missing],
    )
    signal.signal(signal.SIGTERM, end_in_order)
    _run(results, present, generators, effort)
    print(f"\n{report.terminal_table(results, METRICS)}\n")
    if options.json:
        options.json.write_text(results.to_json())
    if results.complete:
        report.rewrite(PAGE, results, METRICS, report.CLUSTER)
        print(f"rewrote {PAGE}")
    else:
        print(f"{PAGE} is left as it is: only a full run rewrites it")
    return 1 if results.failures else 0


def _is_complete(effort: ClusterEffort) -> bool:
    """Whether the figures are worth publishing: nothing shortened."""
    return effort == FULL._replace(rounds=max(effort.rounds, FULL.rounds))


def _run(
    results: Results, servers: list[ClusterServer], generators: Generators, effort: ClusterEffort
) -> None:
    """Every second round in the other order: who comes first can find a colder disk."""
    for number in range(1, effort.rounds + 1):
        for server in servers if number % 2 else servers[::-1]:
            begun_s = time.monotonic()
            label = f"round {number}/{effort.rounds}  {server.title}"
            os.sync()
            with tempfile.TemporaryDirectory(prefix="cluster-", dir=CACHE) as scratch:
                data = Path(scratch).resolve()
                try:
                    for metric, sample in with_noise(measure(server, generators, effort, data)):
                        results.add(metric, server.name, sample)
                        print(f"{label}: {metric} {sample.value:.4g}", flush=True)
                except (LoadFailed, OSError) as problem:
                    results.failures.append(f"{label}: {problem}")
                    print(f"FAILED {label}: {problem}", flush=True)
            print(f"{label} ({time.monotonic() - begun_s:.0f} s)", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nstopped; every process that was started has been ended")
