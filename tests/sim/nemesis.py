"""Faults, drawn from the seed: what goes wrong, where, when and for how long."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from ottla.client.admin import resize_topic
from ottla.client.client import Client
from ottla.client.errors import ClientError
from ottla.client.placement import move_partitions, set_draining
from ottla.cluster.controller.reassignment import moving_partitions
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import Revision
from ottla.model import BrokerId, TopicPartition
from sim.cluster import Cluster, Machine

PROFILES: Final[dict[str, tuple[str, ...]]] = {
    "calm": (),
    "kill": ("kill",),
    "power": ("power", "kill", "power_all"),
    "partition": ("partition", "one_way", "isolate", "reset", "pause"),
    "disk": ("slow_disk", "fail_disk", "kill", "power"),
    "clock": ("clock", "kill"),
    "wipe": ("wipe", "kill", "partition"),
    "store": ("store_away", "store_cut", "response_lost", "watch_held", "lease_lost"),
}
PROFILES["all"] = tuple(dict.fromkeys(kind for kinds in PROFILES.values() for kind in kinds))
# What operators do, while machines die.
PROFILES["move"] = (
    *("move", "move", "move", "cancel", "drain"),
    *("kill", "power", "partition", "lease_lost", "response_lost", "watch_held"),
)
RESIZED: Final = "alpha"  # the topic of which partitions are sealed and opened
PARTITION_COUNTS: Final = (8, 5, 3)  # that it has then; first all of them
PROFILES["shrink"] = (
    *("resize", "resize", "resize", "resize"),
    *("kill", "power", "partition", "one_way", "reset", "pause", "lease_lost"),
    *("response_lost", "watch_held"),
)
# Share groups under everything; drawn by no seed, for their clients are others.
SHARE_PROFILE: Final = "share"
PROFILES[SHARE_PROFILE] = PROFILES["all"]
# Records that wait, under everything but clocks that are set: leaders go by their own.
WAIT_PROFILE: Final = "wait"
PROFILES[WAIT_PROFILE] = tuple(kind for kind in PROFILES["all"] if kind != "clock")
OWN_CLIENTS: Final = frozenset({SHARE_PROFILE, WAIT_PROFILE})
_REPLICAS_MIN: Final = 2  # one alone would have to come back before anything can be read


class Fault(NamedTuple):
    """One fault: when it begins, how long it lasts, where."""

    at_s: float
    kind: str
    lasts_s: float
    target: int  # of the machines, or of their pairs


def draw(rng: Random, profile: str, machine_count: int, within_s: float) -> list[Fault]:
    """The faults of one simulation, in order."""
    kinds = PROFILES[profile]
    faults: list[Fault] = []
    at_s = rng.uniform(0.5, 3.0)
    while kinds and at_s < within_s:
        faults.append(
            Fault(at_s, rng.choice(kinds), rng.uniform(0.2, 6.0), rng.randrange(machine_count))
        )
        at_s += rng.expovariate(1 / 2.5)
    return faults


class Nemesis:
    """Makes the faults happen."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._operations: list[asyncio.Task[None]] = []  # kept: the loop does not
        self._wiped: dict[BrokerId, Revision] = {}  # when each machine last got a new disk

    async def run(self, faults: list[Fault]) -> None:
        begun_s = self._cluster.loop.time()
        for fault in faults:
            await asyncio.sleep(max(0.0, begun_s + fault.at_s - self._cluster.loop.time()))
            self._cluster.trace("fault", fault.kind, fault.target, f"{fault.lasts_s:.3f}")
            end = self._begin(fault)
            self._cluster.loop.call_later(fault.lasts_s, end)

    def _begin(self, fault: Fault) -> Callable[[], object]:
        machine = self._cluster.machines[fault.target]
        match fault.kind:
            case "kill" | "power" | "power_all" | "wipe":
                return self._end_processes(machine, fault.kind)
            case "partition" | "one_way" | "isolate":
                return self._partition(machine, fault.kind)
            case "move" | "cancel" | "drain" | "resize":
                return self._do_as_operator(machine, fault.kind)
            case "reset":
                self._cluster.network.reset_some(0.3)
                return _do_nothing
            case "pause":
                return self._pause(machine)
            case "slow_disk":
                machine.disk.slow_down(self._rng.uniform(10, 200))
                return machine.disk.heal
            case "fail_disk":
                machine.disk.files.fail_next(self._rng.choice(["sync", "append", "sync_dir"]))
                return self._replace_failed(machine)
            case "clock":
                # Within message.timestamp.after.max.ms of the clients' clocks.
                machine.clock.step_ms = self._rng.randint(-3_000_000, 3_000_000)
                return _do_nothing
            case "lease_lost":
                self._cluster.expire_registration(machine)
                return _do_nothing
            case _:
                return self._disturb_store(machine, fault.kind)

    def _end_processes(self, machine: Machine, kind: str) -> Callable[[], object]:
        if kind == "wipe":
            return self._wipe(machine)
        if kind == "power_all":
            ends = [self._stop(one, has_power=False) for one in self._cluster.machines]
            return lambda: [end() for end in ends]
        return self._stop(machine, has_power=kind == "kill")

    def _stop(self, machine: Machine, *, has_power: bool) -> Callable[[], object]:
        if not machine.is_running:
            return _do_nothing
        if has_power:
            machine.kill()
        else:
            machine.cut_power()
        stopped = machine.process

        def start() -> None:
            if machine.process is stopped:
                machine.start()

        return start

    def _wipe(self, machine: Machine) -> Callable[[], object]:
        """The machine gets a new disk, if enough others have all that this one must have.

        Where there are three replicas, two others: with one alone its lost lease, before the ISR is
        without this machine, leaves nothing that may be elected.
        """
        image = self._cluster.stored_image()
        others = {
            one.id
            for one in self._cluster.machines
            if one is not machine and one.is_running and self._has_registered(one, image)
        }
        for topic in image.topics.values():
            for partition in topic.partitions:
                needed = min(len(partition.replicas) - 1, 2) or 1
                if machine.id in partition.replicas and len(others & set(partition.isr)) < needed:
                    return _do_nothing
        if not machine.is_running:
            return _do_nothing
        start = self._stop(machine, has_power=False)
        machine.disk.wipe()
        self._wiped[machine.id] = image.revision
        return start

    def _has_registered(self, machine: Machine, image: ClusterImage) -> bool:
        """False from when a machine got a new disk until its broker has said so in the store."""
        known = image.brokers.get(machine.id)
        wiped = self._wiped.get(machine.id)
        return wiped is None or (known is not None and known.epoch > wiped)

    def _replace_failed(self, machine: Machine) -> Callable[[], object]:
        """An operator starts a broker anew whose directory went offline."""

        def restart() -> None:
            if machine.is_running and machine.is_offline:
                machine.kill()
                machine.start()

        return restart

    def _partition(self, machine: Machine, kind: str) -> Callable[[], object]:
        network = self._cluster.network
        others = [one for one in self._cluster.machines if one is not machine]
        if kind != "isolate":
            others = [self._rng.choice(others)] if others else []
        for other in others:
            network.block(machine.host, other.host)
            if kind != "one_way":
                network.block(other.host, machine.host)
        return network.unblock_all

    def _pause(self, machine: Machine) -> Callable[[], object]:
        process = machine.process
        if process is None or not process.is_alive or process.is_frozen:
            return _do_nothing
        process.is_frozen = True

        def go_on() -> None:
            if process.is_alive and process.is_frozen:
                self._cluster.loop.thaw(process)

        return go_on

    def _do_as_operator(self, machine: Machine, kind: str) -> Callable[[], object]:
        if kind == "drain":
            return self._drain(machine)
        if kind == "resize":
            count = self._rng.choice(PARTITION_COUNTS)
            self._operate(lambda client: self._resize(client, count), f"resize-{count}")
            return _do_nothing
        self._move(is_cancelled=kind == "cancel")
        return _do_nothing

    def _move(self, *, is_cancelled: bool) -> None:
        """An operator moves a partition to some brokers, or has had enough of a move."""
        image, brokers = self._cluster.stored_image(), [one.id for one in self._cluster.machines]
        tps = [tp for tp, _ in moving_partitions(image)]
        if not is_cancelled:
            tps = [
                TopicPartition(topic.name, index)
                for topic in image.topics.values()
                for index in range(len(topic.partitions))
            ]
        if not tps or len(brokers) <= _REPLICAS_MIN:
            return
        tp = self._rng.choice(sorted(tps))
        count = self._rng.randint(_REPLICAS_MIN, min(4, len(brokers)))
        target = None if is_cancelled else self._rng.sample(brokers, count)
        self._operate(lambda client: self._try_move(client, tp, target), f"move-{tp}")

    async def _try_move(
        self, client: Client, tp: TopicPartition, target: Sequence[BrokerId] | None
    ) -> None:
        refused = await move_partitions(client, {tp: target})
        self._cluster.trace("move", tp, target, *(one.code.name for one in refused.values()))

    async def _resize(self, client: Client, count: int) -> None:
        """An operator has fewer partitions, or more again."""
        await resize_topic(client, RESIZED, count, {})
        self._cluster.trace("resized", RESIZED, count)

    def _drain(self, machine: Machine) -> Callable[[], object]:
        """An operator drains a broker, and changes his mind."""

        def want(is_draining: bool) -> None:
            self._operate(
                lambda client: set_draining(client, machine.id, is_draining=is_draining),
                f"drain-{machine.id}",
            )

        want(True)
        return lambda: want(False)

    def _operate(self, work: Callable[[Client], Coroutine[Any, Any, None]], name: str) -> None:
        async def run() -> None:
            async with Client(self._cluster.bootstrap, timeout_s=4.0) as client:
                with contextlib.suppress(ClientError):
                    await work(client)

        self._operations.append(self._cluster.run_client(run(), name))

    def _disturb_store(self, machine: Machine, kind: str) -> Callable[[], object]:
        chosen = self._cluster.machines if kind == "store_away" else [machine]
        for one in chosen:
            faults = one.faults
            if kind in {"store_away", "store_cut"}:
                faults.is_cut = True
            elif kind == "response_lost":
                faults.loses_responses = True
            else:
                assert kind == "watch_held", kind
                faults.holds_watch = True
                faults.compacts = self._rng.random() < 0.3

        def heal() -> None:
            for one in chosen:
                one.faults.heal()

        return heal


def _do_nothing() -> None:
    return
