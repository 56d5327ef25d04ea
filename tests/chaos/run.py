"""One run: a seed and sizes in, a verdict out. Called in namespaces of its own."""

import pickle
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.cluster import Cluster, NotInTime, running_cluster
from chaos.nemesis import Nemesis
from chaos.plan import Planned, Sizes
from chaos.workload import TOPICS, Workload
from histories.checker import fault_of, gaps, judge, redelivered_share
from histories.history import History, Outcome

_REDELIVERED_MAX: Final = 0.02
_REDELIVERED_RECORDS: Final = 100_000  # with fewer, a single batch counts too much
_SHOWN: Final = 5  # of each kind
_GAPS: Final = 20_000  # the longest: those of every fault are among them


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, and the counts of the run."""

    problems: list[str]
    totals: list[str]


def run(seed: int, sizes: Sizes, faults: list[Planned], folder: Path, plant: str = "") -> Verdict:
    """Make faults happen to a cluster with clients, and judge what these saw."""
    begun_s = time.monotonic()
    history = History(calm_gap_s_max=sizes.gap_s)
    problems: list[str] = []
    with running_cluster(folder, plant) as cluster:
        tps = cluster.create_topics(TOPICS)
        workload = Workload(cluster, history, sizes, seed, tps)
        _say(f"ready after {time.monotonic() - begun_s:.1f} s")
        workload.start()
        try:
            _make_happen(cluster, workload, history, sizes, faults, begun_s)
        except (NotInTime, AssertionError) as problem:
            problems.append(f"{type(problem).__name__}: {problem}")
        finally:
            workload.stop()
        workload.finish()
        problems += _defects(folder)
    if sum(len(read.records) for read in history.reads) >= _REDELIVERED_RECORDS:
        history.redelivered_max = _REDELIVERED_MAX
    problems += [*workload.problems, *judge(history)]
    totals = [
        *_totals(history, workload, len(faults)),
        f"{time.monotonic() - begun_s:.0f} s in all",
    ]
    if problems:
        (folder / "history.pickle").write_bytes(pickle.dumps(history))
    return Verdict(problems, totals)


def _make_happen(
    cluster: Cluster,
    workload: Workload,
    history: History,
    sizes: Sizes,
    faults: list[Planned],
    begun_s: float,
) -> None:
    nemesis = Nemesis(cluster, history, sizes, workload.orders, workload.acked_since)
    nemesis.wait_acked()
    cluster.wait_in_sync()
    for number, planned in enumerate(faults, 1):
        _say(f"{time.monotonic() - begun_s:6.1f} s  {number}/{len(faults)} {planned}")
        fault = nemesis.run(planned)
        _say(
            f"          {fault.name}: in sync after {fault.ended_s - fault.begun_s:.1f} s,"
            f" {workload.acked_count} acknowledged, {workload.transaction_count} transactions,"
            f" {workload.churn.count} rebalances"
        )
    workload.wait_all()
    nemesis.wait_acked()


def _defects(folder: Path) -> Iterator[str]:
    for log in sorted(folder.glob("broker*.log")):
        lines = log.read_text(errors="replace").splitlines()
        found = [line for line in lines if "Traceback" in line]
        if found:
            yield f"{log.name} has {len(found)} lines like: {found[0][:300]}"


def _totals(history: History, workload: Workload, fault_count: int) -> Iterator[str]:
    yield f"{fault_count} faults, {workload.acked_count} records acknowledged to producers"
    yield f"{sum(one.failed_count for one in workload.writers)} records given up by producers"
    committed = sum(one.committed_count for one in workload.transactors)
    aborted = sum(one.aborted_count for one in workload.transactors)
    failed = sum(one.failed_count for one in workload.transactors)
    unknown = sum(one.outcome is Outcome.UNKNOWN for one in history.transactions)
    yield (
        f"{committed} transactions committed, {aborted} aborted as meant, {failed} aborted after an"
        f" error, {unknown} of unknown outcome"
    )
    reads = sum(len(read.records) for read in history.reads)
    yield (
        f"{workload.churn.count} members replaced, {reads} records read by groups,"
        f" {redelivered_share(history):.3%} of them again, {len(history.commits)} offsets committed"
    )
    probes = [sent for sent in history.sent if sent.broker is not None]
    done = sum(sent.outcome is Outcome.DONE for sent in probes)
    yield (
        f"{len(history.isolations)} leaders isolated, {len(probes)} records sent to them, {done}"
        f" acknowledged; {len(history.seen)} reads of a stored offset"
    )
    yield from _longest_gaps(history)


def _longest_gaps(history: History) -> Iterator[str]:
    """The longest gap of any partition, by the kind of fault that it belongs to."""
    longest: dict[str, float] = {}
    for gap in gaps(history)[:_GAPS]:
        fault = fault_of(history, gap)
        kind = fault.name.split()[0] if fault else "no fault"
        longest.setdefault(kind, gap.length_s)
    for kind, length_s in sorted(longest.items()):
        yield f"longest gap, {kind}: {length_s:.1f} s"


def show(verdict: Verdict) -> None:
    _say("TOTALS")
    for line in verdict.totals:
        _say(line)
    counts = Counter[str]()
    for problem in verdict.problems:
        kind = " ".join(word for word in problem.split()[:2] if word.isalpha() or word[-1] == ":")
        counts[kind] += 1
        if counts[kind] <= _SHOWN:
            _say(f"PROBLEM {problem}")
    for kind, count in counts.items():
        if count > _SHOWN:
            _say(f"and {count - _SHOWN} more: {kind}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
