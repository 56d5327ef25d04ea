"""`python -m bench`: measure, print a table, and after a full run rewrite the documentation."""

import argparse
import resource
import shutil
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from bench import chart, report
from bench.load import build_generators
from bench.measures import FULL, QUICK, Effort, Row
from bench.results import Contestant, Results, conditions
from bench.rows import ROWS
from bench.run import Run
from bench.servers import Server, contestants

CACHE = Path(".cache/bench")
PAGE = Path("docs/benchmarks.md")
PICTURE = Path("docs/benchmark.svg")
DISK_BYTES_MIN = 20_000_000_000


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.publish:
        first, *others = (Results.from_json(file.read_text()) for file in options.publish)
        for other in others:
            first.join(other)
        _publish(first)
        return 0
    results = _measure(options)
    print(f"\n{report.terminal_table(results)}\n")
    if options.json:
        options.json.write_text(results.to_json())
    if results.complete:
        _publish(results)
    else:
        print(f"{PAGE} and {PICTURE} are left as they are: only a full run rewrites them")
    return 1 if results.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = [row.name for row in ROWS]
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds to alternate (default 5)")
    parser.add_argument("--quick", action="store_true", help="one short round, about 10 minutes")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=names, help=", ".join(names))
    parser.add_argument(
        "--servers",
        default="ottla,kafka,nats,rabbitmq",
        metavar="LIST",
        help="comma-separated, in the order in which they take turns (default %(default)s)",
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="TREE",
        help="another checkout, after `make setup` there, whose Ottla takes turns with this one",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    parser.add_argument(
        "--publish",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="only rewrite the docs, from such a FILE, or from several with other rows in each",
    )
    return parser


def _measure(options: argparse.Namespace) -> Results:
    effort = _effort(options)
    CACHE.mkdir(parents=True, exist_ok=True)
    generators = build_generators(CACHE / "bin")
    names = options.servers.split(",")
    if options.before is not None:
        names.append("before")
    present, missing = _choose(contestants(generators, options.before), names)
    for reason in missing:
        print(f"left out: {reason}")
    if not present:
        sys.exit("nothing to measure")
    rows = [row for row in ROWS if not options.only or row.name in options.only]
    results = Results(
        conditions=conditions(native=generators.native),
        contestants=[Contestant(s.name, s.title, s.version, s.durability) for s in present],
        rounds=effort.rounds,
        complete=_is_complete(effort, rows, present),
        left_out=missing,
    )
    _raise_file_limit()
    signal.signal(signal.SIGTERM, end_in_order)
    with tempfile.TemporaryDirectory(
        prefix="run-", dir=CACHE, ignore_cleanup_errors=True
    ) as scratch:
        Run(results, effort, Path(scratch).resolve()).measure(present, rows)
    return results


def _is_complete(effort: Effort, rows: list[Row], servers: list[Server]) -> bool:
    """Whether the figures are worth publishing: nothing shortened, Ottla and Kafka there."""
    full = effort == replace(FULL, rounds=max(effort.rounds, FULL.rounds))
    return full and len(rows) == len(ROWS) and {"ottla", "kafka"} <= {s.name for s in servers}


def _effort(options: argparse.Namespace) -> Effort:
    effort = QUICK if options.quick else FULL
    if options.rounds is None:
        return effort
    if options.rounds < 1:
        sys.exit("--rounds must be 1 or more")
    return replace(effort, rounds=options.rounds)


def _choose(known: dict[str, Server], names: list[str]) -> tuple[list[Server], list[str]]:
    if unknown := set(names) - known.keys():
        sys.exit(f"unknown servers: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    if shutil.disk_usage(CACHE).free < DISK_BYTES_MIN:
        sys.exit(f"the bench needs {DISK_BYTES_MIN / 1e9:.0f} GB of free disk under {CACHE}")
    chosen = [known[name] for name in names]
    return [s for s in chosen if not s.missing], [s.missing for s in chosen if s.missing]


def _publish(results: Results) -> None:
    report.rewrite(PAGE, results)
    print(f"rewrote {PAGE}")
    try:
        chart.draw(results, PICTURE)
        print(f"rewrote {PICTURE}")
    except ImportError:
        print(f"left out: {PICTURE} is drawn with matplotlib, which is not installed")


def _raise_file_limit() -> None:
    """Servers inherit it, and 2,000 connections need more than the usual 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def end_in_order(signal_number: int, frame: object) -> NoReturn:
    """A plain SIGTERM would leave the servers behind."""
    raise SystemExit(128 + signal_number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nstopped; every server that was started has been ended")
