"""One simulation: a seed in, a verdict out."""

import asyncio
import hashlib
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final

from histories.checker import judge
from histories.history import History
from ottla.model import TopicPartition
from sim.child import run_in_child
from sim.cluster import Cluster
from sim.fast_cron import speed_up
from sim.nemesis import (
    OWN_CLIENTS,
    PARTITION_COUNTS,
    PROFILES,
    RESIZED,
    SHARE_PROFILE,
    WAIT_PROFILE,
    Fault,
    Nemesis,
    draw,
)
from sim.network import SimNetworkLoop
from sim.planted import PLANTS
from sim.share_workload import ShareWorkload
from sim.wait_workload import RECURRING_END_S, WaitWorkload
from sim.workload import Workload

DURATION_S: Final = 30.0
CALM_S: Final = 10.0  # after all faults: by then every partition acknowledges
SHARE_END_S: Final = 90.0  # after that: sessions and locks have ended, all is finished
WAIT_END_S: Final = 40.0  # after that: transactions have ended, and nothing waits any more
TRANSACTION_S: Final = 12.0  # the timeout of a transaction, and some time to end it
DIED: Final = "the simulation died"  # a problem of the simulation, not of the brokers in it
_SETTINGS: Final = {
    "offsets.topic.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "500",
    "log.segment.bytes": "65536",
}
_REPLICATED: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "1500",
}
_SMALL_FETCHES: Final = (("replica.fetch.response.max.bytes", "1024"),)  # a few batches
_PRODUCERS: Final = 4
_SHORTEST_S: Final = 1.0
_CHILD_S: Final = 240.0  # of real time for one simulation
_LATEST_S: Final = 300.0  # after the faults: by then everything has been read


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one simulation."""

    seed: int
    profile: str
    trace_hash: str
    problems: tuple[str, ...]
    acked_count: int
    event_count: int

    @property
    def is_good(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a seed decides before the simulation begins."""

    seed: int
    profile: str
    machine_count: int
    duration_s: float
    faults: tuple[Fault, ...]
    settings: tuple[tuple[str, str], ...] = ()  # of the brokers, besides those of every plan
    plant: str = ""  # a bug of `planted` that the brokers have


def plan(seed: int, profile: str | None = None, duration_s: float = DURATION_S) -> Plan:
    """The simulation of a seed: of five, one has five machines and one a single one.

    In every other one a follower needs many fetches to catch up.
    """
    rng = Random(f"plan {seed}")
    chosen = profile or rng.choice(sorted(PROFILES.keys() - OWN_CLIENTS))
    machine_count = 5 if seed % 5 == 0 else 1 if seed % 5 == 4 else 3
    faults = draw(rng, chosen, machine_count, duration_s - 5.0)
    settings = _SMALL_FETCHES if rng.random() < 0.5 else ()
    return Plan(seed, chosen, machine_count, duration_s, tuple(faults), settings)


def shrink(failing: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """The plan with fewer faults and less time, as long as it still fails."""
    part = max(len(failing.faults) // 2, 1)
    while part and failing.faults:
        candidates = [
            replace(failing, faults=failing.faults[:at] + failing.faults[at + part :])
            for at in range(0, len(failing.faults), part)
        ]
        found = next((plan for plan in candidates if fails(plan)), None)
        if found is not None:
            failing = found
            part = min(part, max(len(failing.faults) // 2, 1))
        else:
            part //= 2
    while failing.duration_s > _SHORTEST_S and fails(
        shorter := replace(failing, duration_s=failing.duration_s / 2)
    ):
        failing = shorter
    return failing


class Trace:
    """Every event of a simulation, as a hash and, if wanted, as lines."""

    def __init__(self, loop: SimNetworkLoop, *, is_shown: bool) -> None:
        self._loop = loop
        self._hash = hashlib.sha256()
        self._is_shown = is_shown
        self.count = 0

    def __call__(self, *words: object) -> None:
        line = f"{self._loop.time():.6f} {' '.join(map(str, words))}\n"
        self._hash.update(line.encode())
        self.count += 1
        if self._is_shown:
            sys.stdout.write(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]


def simulate(plan: Plan, *, is_shown: bool = False) -> Verdict:
    """Run one simulation to its end, in a process of its own.

    Killed brokers must not clean up, and would when they are freed: the process ends before.
    """
    verdict = run_in_child(partial(_simulate, plan, is_shown=is_shown), _CHILD_S)
    return verdict or Verdict(plan.seed, plan.profile, "", (DIED,), 0, 0)


def _simulate(plan: Plan, *, is_shown: bool) -> Verdict:
    if plan.plant:
        PLANTS[plan.plant]()
    if plan.profile == WAIT_PROFILE:
        speed_up()
    rng = Random(plan.seed)
    loop = SimNetworkLoop(rng)
    trace = Trace(loop, is_shown=is_shown)
    history = History()
    logging.getLogger("ottla").setLevel(logging.WARNING if is_shown else logging.CRITICAL)
    replicated = _REPLICATED if plan.machine_count > 1 else {}
    settings = {**_SETTINGS, **replicated, **dict(plan.settings)}
    cluster = Cluster(loop, rng, plan.machine_count, settings, trace)
    workload = Workload(cluster, history, plan.seed)
    invariants = workload.invariants
    loop.on_step = invariants.check
    loop.end_s = plan.duration_s + _LATEST_S
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_run(plan, cluster, workload))
    problems = [*invariants.violations, *judge(history), *map(repr, loop.problems)]
    return Verdict(
        plan.seed, plan.profile, trace.digest, tuple(problems), workload.acked_count, trace.count
    )


async def _run(plan: Plan, cluster: Cluster, workload: Workload) -> None:
    if plan.profile == SHARE_PROFILE:
        await _run_shares(plan, cluster, workload)
    elif plan.profile == WAIT_PROFILE:
        await _run_waits(plan, cluster, workload)
    else:
        await _run_logs(plan, cluster, workload)


async def _run_shares(plan: Plan, cluster: Cluster, workload: Workload) -> None:
    """Producers of a topic, and members of a share group that accept, release and reject."""
    shares = ShareWorkload(workload)
    cluster.start()
    await cluster.wait_ready()
    await shares.begin()
    await Nemesis(cluster, Random(f"nemesis {plan.seed}")).run(list(plan.faults))
    await asyncio.sleep(max(0.0, plan.duration_s - cluster.loop.time()))
    cluster.heal()
    await workload.probe(shares.tps, CALM_S)
    await shares.finish(SHARE_END_S)


async def _run_waits(plan: Plan, cluster: Cluster, workload: Workload) -> None:
    """Producers whose records wait, are cancelled, belong to transactions, or come again."""
    waits = WaitWorkload(workload)
    cluster.start()
    await cluster.wait_ready()
    await waits.begin()
    await Nemesis(cluster, Random(f"nemesis {plan.seed}")).run(list(plan.faults))
    await asyncio.sleep(max(0.0, plan.duration_s - cluster.loop.time()))
    cluster.heal()
    await workload.probe(waits.tps, CALM_S)
    await asyncio.sleep(RECURRING_END_S)
    await waits.finish(WAIT_END_S)


async def _run_logs(plan: Plan, cluster: Cluster, workload: Workload) -> None:
    counts = {"alpha": 3, "beta": 2}
    if plan.profile == "shrink":
        counts[RESIZED] = max(PARTITION_COUNTS)
        workload.history.resized = (RESIZED,)
    tps = [TopicPartition(name, index) for name, count in counts.items() for index in range(count)]
    cluster.start()
    await cluster.wait_ready()
    await workload.create_topics(counts, {})
    for number in range(_PRODUCERS):
        workload.start(f"producer{number}", workload.produce(tps))
    for number in range(2):
        workload.start(f"transactor{number}", workload.transact(tps))
    for number in range(2):
        workload.start(f"member{number}", workload.consume("group", list(counts)))
    workload.start("ledger", workload.keep_offset(tps[0]))
    for number in range(2):
        workload.start(f"auditor{number}", workload.look_up("ledger", tps[0]))
    await Nemesis(cluster, Random(f"nemesis {plan.seed}")).run(list(plan.faults))
    await asyncio.sleep(max(0.0, plan.duration_s - cluster.loop.time()))
    cluster.heal()
    await workload.probe(tps, CALM_S)
    await workload.stop()
    await asyncio.sleep(TRANSACTION_S)  # one that its producer gave up is aborted by then
    await workload.finish(tps, {"group": tps})
