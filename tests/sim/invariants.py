"""Truths about the brokers that must hold after every turn of the loop."""

from ottla.broker.app import Broker
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
        # Of each partition, by id of its topic: the records that were committed, as bytes.
        self._committed: dict[tuple[Uuid, int], tuple[int, bytes]] = {}

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
        if log.end_offset < end:
            self._note(f"{partition.tp}: its leader has {log.end_offset} of {end} committed")
        elif last and _before(log, end) != last:
            self._note(f"{partition.tp}: other records than those committed before {end}")
        if partition.high_watermark > end:
            reached = partition.high_watermark
            self._committed[key] = (reached, _before(log, reached))

    def _check_in_sync(self, partition: LeaderPartition) -> None:
        """Every replica in sync that runs has everything that is committed."""
        for machine in self._cluster.machines:
            if machine.broker is None or machine.id not in partition.isr or machine.is_offline:
                continue
            found = machine.broker.services.replicas.logs.get(partition.tp)
            if found is None or not _is_registered(machine.broker, machine.id, partition):
                continue
            is_fsync = found.config.durability is Durability.FSYNC
            end = found.durable_offset if is_fsync else found.end_offset
            if end < partition.high_watermark:
                self._note(
                    f"{partition.tp}: broker {machine.id} is in sync and has {end} of"
                    f" {partition.high_watermark}"
                )

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


def _before(log: Log, end: int) -> bytes:
    """The last bytes below `end`: the epoch of the last batch, and all of it."""
    start = max(log.start_offset, end - 1)
    if start >= min(end, log.end_offset):
        return b""
    found = log.read(Offset(start), Offset(end), _CHECKED_BYTES, at_least_one=True)
    return b"" if found is None else log.read_bytes(found)


def _is_registered(broker: Broker, broker_id: BrokerId, partition: LeaderPartition) -> bool:
    """True if the broker runs as it was when it was in sync; else it leaves the ISR."""
    image = broker.services.state.image
    seen = image.partition(partition.tp)
    return broker_id in image.brokers and seen is not None and broker_id in seen.isr
