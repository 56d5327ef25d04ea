"""Three machines, what clients see of them, and waiting for that."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic, PartitionMetadata

from chaos.machine import Machine
from chaos.network import Network
from crash.topics import admin_of
from ottla.model import TopicPartition

MACHINES: Final = (1, 2, 3)
TIMEOUT_S: Final = 180.0  # only for what hangs: a busy machine must not fail a run
_LOOK_S: Final = 0.1


class NotInTime(Exception):
    """Something did not happen, though minutes went by, or cannot happen any more."""


class Cluster:
    """The machines, by the ids of their brokers."""

    def __init__(self, machines: Sequence[Machine], network: Network) -> None:
        self.machines = {machine.number: machine for machine in machines}
        self.network = network
        self.bootstrap = ",".join(str(machine.endpoint) for machine in machines)
        self.problems: list[str] = []  # of clients: a run ends at the first
        self._never = threading.Event()
        self._admin = admin_of(self.bootstrap)

    def create_topics(self, counts: dict[str, int]) -> list[TopicPartition]:
        topics = [NewTopic(name, count, 3) for name, count in counts.items()]
        for future in self._admin.create_topics(topics).values():
            future.result(TIMEOUT_S)
        return [TopicPartition(name, index) for name in counts for index in range(counts[name])]

    def leader_of(self, tp: TopicPartition) -> int:
        """The broker that leads a partition; waits until there is one."""
        found = -1

        def is_led() -> bool:
            nonlocal found
            found = self._partitions().get(tp, _NONE).leader
            return found in self.machines

        self.wait_until(is_led, f"{tp} has a leader")
        return found

    def led_by(self, broker: int, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        partitions = self._partitions()
        return [tp for tp in tps if tp in partitions and partitions[tp].leader == broker]

    def store_leader(self) -> Machine:
        """The machine whose member leads etcd; waits until there is one."""
        found: list[Machine] = []

        def is_led() -> bool:
            found[:] = [one for one in self.machines.values() if one.store.is_leader]
            return bool(found)

        self.wait_until(is_led, "etcd has a leader")
        return found[0]

    def start_brokers(self, machines: Sequence[Machine]) -> None:
        """Start brokers at the same time; they are ready on return."""
        with ThreadPoolExecutor(len(machines)) as pool:
            list(pool.map(Machine.start_broker, machines))

    def wait_stores(self) -> None:
        machines = self.machines.values()
        self.wait_until(lambda: all(one.store.is_healthy for one in machines), "etcd is healthy")

    def wait_in_sync(self) -> None:
        """Return when every partition has a leader, and all its replicas in sync."""

        def are_in_sync() -> bool:
            partitions = self._partitions().values()
            return bool(partitions) and all(
                one.leader in self.machines and len(one.isrs) == len(self.machines)
                for one in partitions
            )

        self.wait_until(are_in_sync, "every replica is in sync")

    def wait_until(self, is_true: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not is_true():
            if self.problems:
                raise NotInTime(f"a client died before: {what}")
            if time.monotonic() > deadline_s:
                raise NotInTime(f"not within {TIMEOUT_S:g} s: {what}")
            self.pass_time(_LOOK_S)

    def pass_time(self, seconds: float) -> None:
        self._never.wait(seconds)

    def _partitions(self) -> dict[TopicPartition, PartitionMetadata]:
        """Every partition, internal ones as well; none while no broker responds."""
        with suppress(KafkaException):
            topics = self._admin.list_topics(timeout=5.0).topics
            return {
                TopicPartition(name, index): one
                for name, topic in topics.items()
                for index, one in topic.partitions.items()
            }
        return {}


_NONE: Final = PartitionMetadata()


@contextmanager
def running_cluster(folder: Path, plant: str = "") -> Iterator[Cluster]:
    """Machines that run, with empty disks; their logs and disks are in `folder`.

    Their brokers have the bug `plant`, if one is named.
    """
    network = Network(MACHINES)
    network.make()
    machines: list[Machine] = []
    try:
        machines += (Machine(number, MACHINES, folder, plant) for number in MACHINES)
        cluster = Cluster(machines, network)
        for machine in machines:
            machine.store.spawn()
        cluster.wait_stores()
        cluster.start_brokers(machines)
        yield cluster
    finally:
        for machine in machines:
            machine.end()
