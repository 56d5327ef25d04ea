"""Truths about the brokers that must hold after every turn of the loop."""

from ottla.broker.app import Broker
from ottla.cluster.image import ClusterImage
from ottla.cluster.routes import holders_of
from ottla.cluster.values import PartitionImage
from ottla.config import Durability
from ottla.model import BrokerId, Offset, TopicPartition, Uuid
from ottla.replication.partition import LeaderPartition
from ottla.storage.log import Log
from sim.cluster import Cluster

_CHECKED_BYTES = 1 << 20  # of the end of a new leader's log


class Invariants:
    """Looks at every broker after each turn, and remembers what it saw."""

    def __init__(self, cluster: Cluster) -> None:
        self.violations: list[str] = []
        self._cluster = cluster
        self._watermarks: dict[LeaderPartition, int] = {}
        self._leaders: dict[tuple[Uuid, TopicPartition, int], int] = {}
        self._revisions: dict[Broker, int] = {}
        # Of each partition, by id of its topic: the end of what was committed and its last bytes.
        self._committed: dict[tuple[Uuid, int], tuple[int, bytes]] = {}
        self._committers: dict[tuple[Uuid, int], LeaderPartition] = {}  # and by which leader
        self._stored = ClusterImage()

    def check(self) -> None:
        """Check the store, and the brokers that have done anything in this turn."""
        if self._cluster.store.revision != self._stored.revision:
            self._stored = self._cluster.stored_image()
            self._check_eligible()
        for machine in self._cluster.machines:
            broker, process = machine.broker, machine.process
            if broker is not None and process is not None and process.has_run:
                process.has_run = False
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
        self._check_committed(broker, partition)
        self._check_in_sync(partition)
        if not log.start_offset <= watermark <= log.end_offset:
            self._note(f"{partition.tp}: the high watermark {watermark} is outside the log")
        topic = broker.services.state.image.topics.get(partition.tp.topic)
        if topic is not None:
            key = (topic.id, partition.tp, partition.leader_epoch)
            leader = self._leaders.setdefault(key, machine)
            if leader != machine:
                self._note(f"{partition.tp}: {leader} and {machine} lead in epoch {key[2]}")

    def _check_committed(self, broker: Broker, partition: LeaderPartition) -> None:
        """What was committed is in the log of every later leader, at the same offsets."""
        topic = broker.services.state.image.topics.get(partition.tp.topic)
        if topic is None:
            return
        key, log = (topic.id, partition.tp.partition), partition.log
        end, last = self._committed.get(key, (0, b""))
        committer = self._committers.get(key)
        if committer is not None and partition.leader_epoch < committer.leader_epoch:
            self._check_outdated(partition, end, committer)
            return
        if log.end_offset < end:
            self._note(f"{partition.tp}: its leader has {log.end_offset} of {end} committed")
        elif last and _before(log, end) != last:
            self._note(f"{partition.tp}: other records than those committed before {end}")
        if partition.high_watermark > end:
            reached = partition.high_watermark
            self._committed[key] = (reached, _before(log, reached))
            self._committers[key] = partition

    def _check_outdated(self, partition: LeaderPartition, end: int, newer: LeaderPartition) -> None:
        """A leader that does not know of its successor commits only what the successor has."""
        tp, reached = partition.tp, partition.high_watermark
        if reached > end:
            self._note(f"{tp}: an outdated leader committed {reached}, behind {end}")
        brokers = [one.broker for one in self._cluster.machines if one.broker is not None]
        is_there = any(one.services.replicas.leaders.get(tp) is newer for one in brokers)
        if not is_there or not newer.log.start_offset < reached <= end:
            return
        if _before(partition.log, reached) != _before(newer.log, reached):
            self._note(f"{tp}: an outdated leader committed other records before {reached}")

    def _check_in_sync(self, partition: LeaderPartition) -> None:
        """Every replica that may lead next, and runs, has everything that is committed now."""
        stored = self._stored.partition(partition.tp)
        if stored is not None and stored.leader_epoch == partition.leader_epoch:
            self._check_replicas(partition.tp, stored)

    def _check_eligible(self) -> None:
        """The same for every partition, whenever the store has changed."""
        for topic in self._stored.topics.values():
            for index, partition in enumerate(topic.partitions):
                self._check_replicas(TopicPartition(topic.name, index), partition)

    def _check_replicas(self, tp: TopicPartition, stored: PartitionImage) -> None:
        end, last = self._committed.get((self._stored.topics[tp.topic].id, tp.partition), (0, b""))
        for machine in self._cluster.machines:
            broker = machine.broker
            if machine.id not in (*stored.isr, *stored.elr) or broker is None:
                continue
            found = broker.services.replicas.logs.get(tp)
            if machine.is_offline or not self._is_ready(machine.id, broker):
                continue
            if found is None:
                if end:
                    self._note(f"{tp}: broker {machine.id} may lead and has no log")
                continue
            is_fsync = found.config.durability is Durability.FSYNC
            reached = found.durable_offset if is_fsync else found.end_offset
            if reached < end:
                self._note(f"{tp}: broker {machine.id} may lead and has {reached} of {end}")
            elif found.truncation.is_under_way:
                continue  # nothing of it can be read
            elif last and _before(found, end) != last:
                self._note(f"{tp}: broker {machine.id} may lead and has other records than {end}")

    def _is_ready(self, broker_id: BrokerId, broker: Broker) -> bool:
        """True if the broker is registered as the one that it knows itself to be."""
        own = broker.services.state.image.brokers.get(broker_id)
        return own is not None and own == self._stored.brokers.get(broker_id)

    def check_acknowledged(self, tp: TopicPartition, offset: int) -> None:
        """A record is acknowledged only once it is committed, by this leader or one before.

        It may be in any partition that batches for this one were forwarded to.
        """
        topic = self._stored.topics[tp.topic]
        indexes = holders_of(topic, tp.partition)
        if all(self._reached(TopicPartition(tp.topic, index)) <= offset for index in indexes):
            self._note(f"{tp}: {offset} was acknowledged above the high watermark")

    def _reached(self, tp: TopicPartition) -> int:
        """The highest high watermark that a leader of a partition had."""
        topic = self._stored.topics[tp.topic]
        reached, _ = self._committed.get((topic.id, tp.partition), (0, b""))
        for machine in self._cluster.machines:
            if machine.broker is not None:
                partition = machine.broker.services.replicas.leaders.get(tp)
                if partition is not None:
                    reached = max(reached, partition.high_watermark)
        return reached

    def _note(self, text: str) -> None:
        if len(self.violations) < 100:
            self.violations.append(f"{self._cluster.loop.time():.6f} {text}")


def _before(log: Log, end: int) -> bytes:
    """The last bytes below `end`: the epoch of the last batch, and all of it."""
    start = max(log.start_offset, end - 1)
    if start >= min(end, log.end_offset):
        return b""
    found = log.read(Offset(start), Offset(end), _CHECKED_BYTES, at_least_one=True)
    return b"" if found is None else log.read_bytes(found)
