"""`python -m sim.capacity`: how long a large cluster takes to elect leaders, and what it stores.

Real brokers under virtual time, as in every simulation, with many partitions and no records. Some
brokers are killed at the same time; printed is when the last partition is led again, and how many
commits and bytes the store took for that.
"""

import argparse
import asyncio
import functools
import gc
import logging
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from fakes.memory_store import MemoryStore
from ottla.client.admin import create_topic
from ottla.client.client import Client
from ottla.cluster import layout
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import Compare, Delete, Revision, Write
from ottla.model import BrokerId
from sim.child import run_in_child
from sim.cluster import Cluster
from sim.network import SimNetworkLoop

_TOPIC_PARTITIONS: Final = 1000
_SETTINGS: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
_LOOK_S: Final = 0.1
_CREATE_S: Final = 120.0
_REAL_S: Final = 7200.0
_PATIENCE_S: Final = 600.0  # of virtual time, for each step


class CountingStore(MemoryStore):
    """A store that counts what is committed."""

    commit_count = 0
    written_bytes = 0

    async def commit(self, writes: Sequence[Write], compares: Sequence[Compare] = ()) -> Revision:
        revision = await super().commit(writes, compares)
        self.commit_count += 1
        self.written_bytes += sum(
            len(write.key) + (0 if isinstance(write, Delete) else len(write.value))
            for write in writes
        )
        return revision


@dataclass(frozen=True, slots=True)
class Phase:
    """The time that a phase took, and the work that it was for the store."""

    name: str
    virtual_s: float
    cpu_s: float
    commit_count: int
    written_bytes: int


class Capacity:
    """A cluster that is made, filled with partitions, and loses brokers."""

    def __init__(self, broker_count: int, partition_count: int) -> None:
        self.loop = SimNetworkLoop(Random(1))
        self.cluster = Cluster(self.loop, Random(1), broker_count, _SETTINGS, lambda *_: None)
        self.store = self.cluster.store = CountingStore(self.loop)
        self.partition_count = partition_count
        self.phases: list[Phase] = []

    async def run(self, kill_count: int) -> None:
        self.cluster.start()
        await self._phase("start", lambda: self._live_count() == len(self.cluster.machines))
        creating = self.cluster.run_client(self._create(), "admin")
        await self._phase("create", lambda: self._settled_count(3) == self.partition_count)
        await creating
        for machine in self.cluster.machines[:kill_count]:
            machine.cut_power()
        dead = {machine.id for machine in self.cluster.machines[:kill_count]}
        await self._phase("elect", lambda: self._are_led(dead))

    def _are_led(self, dead: set[BrokerId]) -> bool:
        """True if all partitions are led by living brokers, but for those with no such replica."""
        return all(
            one.leader is not None and one.leader not in dead
            for topic in self._image().topics.values()
            for one in topic.partitions
            if not dead.issuperset(one.replicas)
        )

    async def _create(self) -> None:
        endpoints = self.cluster.bootstrap
        async with Client(endpoints, client_id="admin", timeout_s=_CREATE_S) as client:
            for number in range(0, self.partition_count, _TOPIC_PARTITIONS):
                count = min(_TOPIC_PARTITIONS, self.partition_count - number)
                await create_topic(client, f"topic{number}", partitions=count, settings={})

    async def _phase(self, name: str, is_over: Callable[[], bool]) -> None:
        before = self.phases[-1] if self.phases else None
        begun_s, begun_cpu_s = self.loop.time(), time.process_time()
        commits, written = self.store.commit_count, self.store.written_bytes
        image: ClusterImage | None = None
        while True:
            if image is not self._image():
                image = self._image()
                if is_over():
                    break
            assert self.loop.time() - begun_s < _PATIENCE_S, f"{name} does not end: {before}"
            await asyncio.sleep(_LOOK_S)
        phase = Phase(
            name,
            self.loop.time() - begun_s,
            time.process_time() - begun_cpu_s,
            self.store.commit_count - commits,
            self.store.written_bytes - written,
        )
        self.phases.append(phase)
        sys.stdout.write(
            f"{name}: {phase.virtual_s:.1f} s ({phase.cpu_s:.0f} s of CPU),"
            f" {phase.commit_count} commits, {phase.written_bytes} bytes\n"
        )
        sys.stdout.flush()

    def _image(self) -> ClusterImage:
        """The cluster as the last broker knows it."""
        broker = self.cluster.machines[-1].broker
        return ClusterImage() if broker is None else broker.services.state.image

    def _live_count(self) -> int:
        return len(self._image().brokers)

    def _settled_count(self, isr_size: int) -> int:
        return sum(
            one.leader is not None and len(one.isr) == isr_size and not one.is_new
            for topic in self._image().topics.values()
            for one in topic.partitions
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="sim.capacity", description=__doc__)
    parser.add_argument("--brokers", type=int, default=50, help="(default 50)")
    parser.add_argument("--partitions", type=int, default=20_000, help="(default 20,000)")
    parser.add_argument("--kills", type=int, default=5, help="at the same time (default 5)")
    arguments = parser.parse_args()
    found = measure(arguments.brokers, arguments.partitions, arguments.kills, _REAL_S)
    return 0 if found else 1


def measure(
    broker_count: int, partition_count: int, kill_count: int, real_s: float
) -> list[Phase] | None:
    """The phases of a cluster; None if one of them does not end."""

    def run() -> list[Phase]:
        logging.getLogger("ottla").setLevel(logging.CRITICAL)
        gc.set_threshold(100_000, 20, 1000)  # there are millions of objects, and few go
        # All brokers read the same values, which are frozen: one of them decodes each.
        layout.decode = functools.lru_cache(maxsize=10_000)(layout.decode)
        capacity = Capacity(broker_count, partition_count)
        capacity.loop.end_s = 3 * _PATIENCE_S
        asyncio.set_event_loop(capacity.loop)
        capacity.loop.run_until_complete(capacity.run(kill_count))
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        sys.stdout.write(f"memory of all brokers: {peak_mib} MiB\n")
        return capacity.phases

    return run_in_child(run, real_s)


if __name__ == "__main__":
    sys.exit(main())
