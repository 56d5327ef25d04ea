"""Makes the faults of a plan happen one by one, and lets the cluster recover from each."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from random import Random

from chaos.cluster import Cluster
from chaos.isolated import probing
from chaos.machine import Machine
from chaos.plan import Planned, Sizes
from histories.history import Fault, History, Isolation
from ottla.model import TopicPartition


class Nemesis:
    """Owner of the faults. `acked_since` says which partitions acknowledged what was sent since."""

    def __init__(
        self,
        cluster: Cluster,
        history: History,
        sizes: Sizes,
        tps: Sequence[TopicPartition],
        acked_since: Callable[[float], set[TopicPartition]],
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._sizes = sizes
        self._tps = list(tps)
        self._acked_since = acked_since
        self._probe_count = 0

    def run(self, planned: Planned) -> Fault:
        """Begin a fault, end it, and wait until every replica is in sync."""
        begun_s = time.monotonic()
        with self._fault(planned) as where:
            self._cluster.pass_time(planned.lasts_s)
            if planned.kind.startswith("kill"):
                self.wait_acked()  # by those that are left
        self._cluster.wait_in_sync()
        self.wait_acked()
        is_kill = planned.kind.startswith("kill")
        fault = Fault(
            f"{planned.kind} {where}",
            begun_s,
            time.monotonic(),
            self._sizes.kill_gap_s if is_kill else self._sizes.gap_s,
        )
        self._history.faults.append(fault)
        return fault

    def wait_acked(self) -> None:
        """Return when every partition has acknowledged what was sent from now on."""
        now_s = time.monotonic()
        self._cluster.wait_until(
            lambda: self._acked_since(now_s).issuperset(self._tps),
            "every partition acknowledges",
        )

    def _fault(self, planned: Planned) -> AbstractContextManager[str]:
        rng = Random(planned.choice)
        match planned.kind:
            case "kill_leader":
                return self._killed(self._leader(rng))
            case "kill_lowest":
                return self._killed(self._cluster.machines[min(self._cluster.machines)])
            case "kill_random":
                return self._killed(self._any(rng))
            case "kill_store_leader":
                return self._stores_killed([self._cluster.store_leader()])
            case "store_majority":
                return self._stores_killed(rng.sample(list(self._cluster.machines.values()), 2))
            case "power_one":
                return self._power_cut([self._any(rng)])
            case "power_all":
                return self._power_cut(list(self._cluster.machines.values()))
            case "pause_leader" | "pause_random" | "pause_store_leader":
                return self._paused(planned.kind, rng)
            case _:
                return self._cut(planned.kind, rng)

    def _any(self, rng: Random) -> Machine:
        return self._cluster.machines[rng.choice(sorted(self._cluster.machines))]

    def _leader(self, rng: Random) -> Machine:
        """The machine that leads a partition."""
        return self._cluster.machines[self._cluster.leader_of(rng.choice(self._tps))]

    @contextmanager
    def _killed(self, machine: Machine) -> Iterator[str]:
        machine.broker.kill()
        yield f"broker {machine.number}"
        machine.start_broker()

    @contextmanager
    def _stores_killed(self, machines: list[Machine]) -> Iterator[str]:
        for machine in machines:
            machine.store.kill()
        yield f"etcd {[machine.number for machine in machines]}"
        for machine in machines:
            machine.store.spawn()
        self._cluster.wait_stores()

    @contextmanager
    def _power_cut(self, machines: list[Machine]) -> Iterator[str]:
        for machine in machines:
            machine.disk.cut_power()
        for machine in machines:
            machine.cut_power()
        yield f"machine {[machine.number for machine in machines]}"
        for machine in machines:
            machine.store.spawn()
        self._cluster.wait_stores()
        self._cluster.start_brokers(machines)

    @contextmanager
    def _paused(self, kind: str, rng: Random) -> Iterator[str]:
        if kind == "pause_store_leader":
            machine = self._cluster.store_leader()
            resume = machine.pause(machine.store)
        else:
            machine = self._leader(rng) if kind == "pause_leader" else self._any(rng)
            resume = machine.pause(machine.broker)
        try:
            yield f"machine {machine.number}"
        finally:
            resume()

    @contextmanager
    def _cut(self, kind: str, rng: Random) -> Iterator[str]:
        network, machine = self._cluster.network, self._leader(rng)
        others = [one for one in sorted(self._cluster.machines) if one != machine.number]
        if kind.startswith("cut_pair"):
            others = [rng.choice(others)]
        led = self._cluster.led_by(machine.number, self._tps)
        try:
            if kind == "store_cut":
                network.drop_store(machine.number)
            if kind in {"isolate", "isolate_in", "cut_pair", "cut_pair_one_way"}:
                network.drop_from(machine.number, others)
            if kind in {"isolate", "isolate_out", "cut_pair"}:
                network.drop_to(machine.number, others)
            is_isolated = kind.startswith("isolate")
            with self._isolation(machine, led) if is_isolated else nullcontext():
                yield f"machine {machine.number} from {others}"
        finally:
            network.heal()

    @contextmanager
    def _isolation(self, machine: Machine, led: list[TopicPartition]) -> Iterator[None]:
        """Write to an isolated leader as clients do that know no better."""
        begun_s = time.monotonic()
        self._probe_count += 1
        with probing(machine, led, self._history, f"probe{self._probe_count}"):
            yield
        self._history.isolations.append(Isolation(machine.number, begun_s, time.monotonic()))
