"""Truths about the brokers that must hold after every turn of the loop."""

from ottla.broker.app import Broker
from ottla.model import TopicPartition, Uuid
from ottla.replication.partition import LeaderPartition
from sim.cluster import Cluster


class Invariants:
    """Looks at every broker after each turn, and remembers what it saw."""

    def __init__(self, cluster: Cluster) -> None:
        self.violations: list[str] = []
        self._cluster = cluster
        self._watermarks: dict[LeaderPartition, int] = {}
        self._leaders: dict[tuple[Uuid, TopicPartition, int], int] = {}
        self._revisions: dict[Broker, int] = {}

    def check(self) -> None:
        for machine in self._cluster.machines:
            broker = machine.broker
            if broker is not None:
                self._check_image(machine.id, broker)
                for partition in broker.services.replicas.leaders.values():
                    self._check_partition(machine.id, broker, partition)

    def _check_image(self, machine: int, broker: Broker) -> None:
        revision = broker.services.state.image.revision
        if revision < self._revisions.get(broker, 0):
            self._note(f"broker {machine}: its image went back to revision {revision}")
        self._revisions[broker] = revision

    def _check_partition(self, machine: int, broker: Broker, partition: LeaderPartition) -> None:
        watermark, log = partition.high_watermark, partition.log
        before = self._watermarks.get(partition)
        if before == watermark:
            return
        self._watermarks[partition] = watermark
        if before is not None and watermark < before:
            self._note(f"{partition.tp}: the high watermark fell from {before} to {watermark}")
        if not log.start_offset <= watermark <= log.end_offset:
            self._note(f"{partition.tp}: the high watermark {watermark} is outside the log")
        topic = broker.services.state.image.topics.get(partition.tp.topic)
        if topic is not None:
            key = (topic.id, partition.tp, partition.leader_epoch)
            leader = self._leaders.setdefault(key, machine)
            if leader != machine:
                self._note(f"{partition.tp}: {leader} and {machine} lead in epoch {key[2]}")

    def check_acknowledged(self, tp: TopicPartition, offset: int) -> None:
        """A record is acknowledged only once it is committed."""
        for machine in self._cluster.machines:
            if machine.broker is not None:
                partition = machine.broker.services.replicas.leaders.get(tp)
                if partition is not None and not offset < partition.high_watermark:
                    self._note(f"{tp}: {offset} was acknowledged above the high watermark")

    def _note(self, text: str) -> None:
        if len(self.violations) < 100:
            self.violations.append(f"{self._cluster.loop.time():.6f} {text}")
