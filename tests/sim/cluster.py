"""Brokers on machines of their own, one store between them: started, killed, cut, brought back."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from fakes.memory_store import MemoryStore
from ottla.broker.app import Broker, ServeOptions
from ottla.broker.environment import Environment
from ottla.clock import Clock
from ottla.cluster.image import ClusterImage
from ottla.cluster.layout import read_image
from ottla.cluster.store import CoordinationStore, StoreUnavailable
from ottla.cluster.values import broker_key
from ottla.config import BrokerConfig
from ottla.errors import ApiError
from ottla.model import BrokerId, Endpoint
from sim.loop import Process
from sim.machine import Disk, SimClock
from sim.network import SimNetworkLoop
from sim.store_link import StoreFaults, StoreLink

T = TypeVar("T")

DATA: Final = Path("/data")
PORT: Final = 9092
_STARTS_MAX: Final = 20  # of one broker while the store is away


class Machine:
    """A host with a disk, on which one broker runs, or does not."""

    def __init__(self, cluster: "Cluster", number: int) -> None:
        self.id = BrokerId(number)
        self.host = f"host{number}"
        self.broker: Broker | None = None
        self.process: Process | None = None
        self.faults = StoreFaults()
        self.disk = Disk(cluster.loop, cluster.rng)
        self.clock = SimClock(cluster.loop)
        self._cluster = cluster
        self._incarnation = 0
        self._boots = 1  # how often the machine was switched on

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, PORT)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive

    @property
    def is_offline(self) -> bool:
        """True if the broker runs, and cannot use its disk."""
        return self.broker is not None and self.broker.services.replicas.is_offline

    def start(self) -> None:
        """Start the broker; it is ready once `broker` is set."""
        assert not self.is_running
        cluster = self._cluster
        self._incarnation += 1
        cluster.network.bring_up(self.host)
        self.process = Process(f"broker{self.id}.{self._incarnation}", self.host)
        cluster.trace("start", self.process.name)
        running = self.process.start(cluster.loop, self._run(self.process), self.process.name)
        running.add_done_callback(self._note_over)

    def _note_over(self, running: "asyncio.Task[None]") -> None:
        """A broker that ends by itself has failed."""
        if not running.cancelled() and (problem := running.exception()) is not None:
            self._cluster.trace("failed", running.get_name(), type(problem).__name__)
            self._cluster.loop.problems.append(problem)

    async def _run(self, process: Process) -> None:
        options = ServeOptions(
            data=DATA,
            listen=self.endpoint,
            node_id=self.id,
            config=BrokerConfig.parse(self._cluster.settings),
        )
        environment = Environment(
            clock=self.clock,
            rng=Random(self._cluster.rng.getrandbits(64)),
            files=self.disk.files,
            open_store=self._open_store,
            start_flusher=self.disk.start_flusher,
            start_worker=self.disk.start_worker,
            has_own_store=False,
            boot_id=f"{self._boots:x}",
            machine_id=self.host,
        )
        for _ in range(_STARTS_MAX):
            try:
                self.broker = await Broker.start(options, environment)
                break
            except (StoreUnavailable, ApiError, OSError) as problem:  # it is started again
                self._cluster.trace("start failed", process.name, type(problem).__name__)
                await asyncio.sleep(1.0)
        else:
            raise AssertionError(f"{process.name} does not start")
        self._cluster.trace("ready", process.name)
        await self.broker.wait_failed()
        defect = self.broker.defects.first
        assert defect is not None
        raise defect

    async def _open_store(self, data: Path, clock: Clock) -> CoordinationStore:
        return StoreLink(self._cluster.store, self.faults, self._cluster.rng)

    def kill(self) -> None:
        """SIGKILL: what was written stays written."""
        self._end("kill")
        self.disk.kill()

    def cut_power(self) -> None:
        """What was not synced may be gone, and peers do not learn that the machine is."""
        self._cluster.network.take_down(self.host)
        self._boots += 1
        self._end("power cut")
        self.disk.cut_power()

    def _end(self, reason: str) -> None:
        assert self.process is not None
        self._cluster.trace(reason, self.process.name)
        self._cluster.graveyard.append((self.process, self.broker))
        self.process.kill()
        self._cluster.network.drop_process(self.process)
        self.broker = None


class Cluster:
    """The machines of one simulation."""

    def __init__(
        self,
        loop: SimNetworkLoop,
        rng: Random,
        machine_count: int,
        settings: dict[str, str],
        trace: Callable[..., None],
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.network = loop.network
        self.settings = settings
        self.trace = trace
        self.graveyard: list[object] = []  # kept: what is freed would run its `finally`
        self.store = MemoryStore(loop)
        self.machines = [Machine(self, number) for number in range(machine_count)]
        self._client_count = 0

    @property
    def bootstrap(self) -> list[Endpoint]:
        return [machine.endpoint for machine in self.machines]

    def stored_image(self) -> ClusterImage:
        """The cluster as the store has it."""
        return read_image(self.store.snapshot())

    def start(self) -> None:
        for machine in self.machines:
            machine.start()

    async def wait_ready(self) -> None:
        """Return when every broker that was started serves."""
        while any(machine.broker is None for machine in self.machines):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def run_client(self, work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Run a coroutine as a client program, on a host of its own."""
        process = Process(name, f"client-{name}")
        return process.start(self.loop, work, name)

    def expire_registration(self, machine: Machine) -> None:
        """The store ends a broker's lease early."""
        self.store.expire_key(broker_key(machine.id))

    def heal(self) -> None:
        """End all faults; start what does not run."""
        self.trace("heal")
        self.network.unblock_all()
        self.network.delay_s = (0.0001, 0.002)
        for machine in self.machines:
            machine.faults.heal()
            machine.disk.heal()
            if machine.is_offline:
                machine.kill()
            if machine.process is not None and machine.process.is_frozen:
                self.loop.thaw(machine.process)
            if not machine.is_running:
                machine.start()
