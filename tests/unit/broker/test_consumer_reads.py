"""Reads for consumers near a follower: which replica they are sent to, and when to none."""

from fakes import build
from fakes.cluster_images import alive, broker
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from ottla.broker.consumer_reads import NearReads, near_replica
from ottla.broker.fetch_sessions import FetchSession
from ottla.broker.replica_reads import ReplicaReads
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import Revision
from ottla.config import Durability, TopicConfig
from ottla.model import BrokerId, Offset
from ottla.protocol.hot_fetch import FetchPartition, FetchRequest
from ottla.replication.partition import ACKS_LEADER, LeaderPartition
from ottla.storage.log import Log

LEADER, NEAR, ALSO_NEAR, FAR = map(BrokerId, (1, 2, 3, 4))
RACKS = {LEADER: "a", NEAR: "b", ALSO_NEAR: "b", FAR: "c"}
EPOCH = 7


class NoFlusher:
    def request(self, log: Log) -> None:
        return


def image(racks: dict[BrokerId, str] = RACKS) -> ClusterImage:
    changes = [c for one, rack in racks.items() for c in alive(broker(one, rack=rack), 1)]
    return ClusterImage().apply(changes, Revision(1))


def led(isr: tuple[BrokerId, ...] = (LEADER, NEAR, ALSO_NEAR, FAR)) -> LeaderPartition:
    """A partition with three batches of one record, which all followers have."""
    partition = led_partition(
        build.TP,
        build.log(MemoryFiles(), TopicConfig(durability=Durability.REPLICATED)),
        broker_id=LEADER,
        leader_epoch=build.EPOCH,
        replicas=(LEADER, NEAR, ALSO_NEAR, FAR),
        isr=isr,
        flusher=NoFlusher(),
        soon=lambda callback: callback(),
    )
    for _ in range(3):
        partition.append(memoryview(build.batch(1)), ACKS_LEADER, build.NOW_MS)
    for follower in (NEAR, ALSO_NEAR, FAR):
        partition.note_fetch(follower, EPOCH, Offset(3), 0.0)
    return partition


def consumer(rack: str) -> FetchRequest:
    return FetchRequest(-1, 0, 1, 1 << 20, 0, 0, -1, [], [], rack=rack)


def want(offset: int, watermark: int | None = None) -> FetchPartition:
    wanted = FetchPartition(0, offset, 1 << 20, build.EPOCH)
    return wanted if watermark is None else wanted._replace(high_watermark=watermark)


def test_the_replica_in_the_rack_that_has_the_most_is_read() -> None:
    partition = led()
    assert near_replica(partition, 3, "b", image()) == NEAR
    partition.append(memoryview(build.batch(1)), ACKS_LEADER, build.NOW_MS)
    partition.note_fetch(ALSO_NEAR, EPOCH, Offset(4), 1.0)
    assert near_replica(partition, 3, "b", image()) == ALSO_NEAR
    assert near_replica(partition, 5, "b", image()) is None, "no replica has so much"


def test_the_leader_is_read_in_its_own_rack_and_where_there_is_no_replica_in_sync() -> None:
    everyone = image()
    assert near_replica(led(), 0, "a", everyone) is None
    assert near_replica(led(), 0, "a", image({**RACKS, NEAR: "a"})) is None
    assert near_replica(led(), 0, "x", everyone) is None
    assert near_replica(led((LEADER, FAR)), 0, "b", everyone) is None
    dead = {one: rack for one, rack in RACKS.items() if one not in {NEAR, ALSO_NEAR}}
    assert near_replica(led(), 0, "b", image(dead)) is None


def test_a_consumer_is_sent_away_at_once_and_without_records() -> None:
    partition = led()
    fetched = NearReads(consumer("b"), image()).read(partition, want(0), 100, at_least_one=True)
    assert (fetched.preferred, fetched.records, fetched.is_urgent) == (NEAR, None, True)
    fetched = NearReads(consumer("a"), image()).read(partition, want(0), 100, at_least_one=True)
    assert (fetched.preferred, fetched.is_urgent) == (-1, False)
    assert fetched.records is not None


def test_a_session_names_the_replica_each_time() -> None:
    session = FetchSession(1, by_id=False, follower=None, soon=lambda callback: callback())
    session.update([("t", [want(0)])])
    reads = NearReads(consumer("b"), image())
    for _ in range(2):
        fetched = reads.read(led(), want(0), 100, at_least_one=True)
        assert session.changes([("t", [fetched])]) == [("t", [fetched])]


def test_a_follower_with_consumers_is_told_of_a_newer_watermark_at_once() -> None:
    partition = led()
    request = FetchRequest(FAR, 0, 1, 1 << 20, 0, 0, -1, [], [], EPOCH, b"")
    old, new = partition.high_watermark - 1, partition.high_watermark
    reads = ReplicaReads(request, 0.0)
    assert reads.read(partition, want(3, old), 100, at_least_one=True).is_urgent
    assert not reads.read(partition, want(3, new), 100, at_least_one=True).is_urgent
