"""Reads for followers: who may, what they get, and what their leader learns from it."""

from dataclasses import replace

import pytest

from fakes import build
from fakes.cluster_images import cluster
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from ottla.broker.replica_reads import RefusedReads, ReplicaReads, check_follower
from ottla.cluster.image import ClusterImage
from ottla.cluster.values import Change, broker_key
from ottla.config import Durability, TopicConfig
from ottla.errors import (
    ApiError,
    ClusterAuthorizationFailed,
    ErrorCode,
    FencedLeaderEpoch,
    NotLeader,
    StaleBrokerEpoch,
)
from ottla.model import BrokerId, LeaderEpoch, Offset
from ottla.protocol.hot_fetch import FetchPartition, FetchRequest
from ottla.replication.partition import ACKS_LEADER, LeaderPartition
from ottla.storage.log import Log

LEADER, FOLLOWER = BrokerId(1), BrokerId(2)
TOKEN = bytes(range(16))
EPOCH = 7
CONFIG = TopicConfig(durability=Durability.REPLICATED)


def image() -> ClusterImage:
    """Two brokers, the follower registered with a token."""
    made = cluster(1, 2)
    follower = replace(made.registered[FOLLOWER], token=TOKEN)
    return made.apply([Change(broker_key(FOLLOWER), follower)], made.revision)


def request(replica: int = FOLLOWER, epoch: int = EPOCH, token: bytes = TOKEN) -> FetchRequest:
    return FetchRequest(replica, 0, 1, 1 << 20, 0, 0, -1, [], [], epoch, token)


class NoFlusher:
    def request(self, log: Log) -> None:
        return


def led(records: int = 3) -> LeaderPartition:
    """A partition with one follower in sync, and records that only its leader has."""
    partition = led_partition(
        build.TP,
        build.log(MemoryFiles(), CONFIG),
        broker_id=LEADER,
        leader_epoch=build.EPOCH,
        replicas=(LEADER, FOLLOWER),
        isr=(LEADER, FOLLOWER),
        flusher=NoFlusher(),
        soon=lambda callback: callback(),
    )
    for _ in range(records):
        partition.append(memoryview(build.batch()), ACKS_LEADER, build.NOW_MS)
    return partition


def want(
    offset: int, *, leader_epoch: int = build.EPOCH, last_epoch: int = build.EPOCH
) -> FetchPartition:
    return FetchPartition(0, offset, 1 << 20, leader_epoch, last_epoch)


def end_of(partition: LeaderPartition) -> int:
    return partition.followers.by_id[FOLLOWER].end


def test_a_broker_proves_that_it_is_the_one_that_is_registered() -> None:
    known = image()
    epoch = known.registered[FOLLOWER].epoch
    check_follower(known, request(epoch=epoch))
    for stranger in (request(9, epoch), request(epoch=epoch, token=b""), request(LEADER, epoch)):
        with pytest.raises(ApiError):
            check_follower(known, stranger)
    with pytest.raises(ClusterAuthorizationFailed):
        check_follower(known, request(epoch=epoch, token=TOKEN[::-1]))
    for other in (epoch - 1, epoch + 1):
        with pytest.raises(StaleBrokerEpoch):
            check_follower(known, request(epoch=other))


def test_a_follower_reads_what_is_not_committed_and_so_says_how_far_it_is() -> None:
    partition = led()
    reads = ReplicaReads(request(), 0.0)
    found = reads.read(partition, want(1), 1 << 20, at_least_one=True)
    assert found.records is not None
    assert (found.records.end_offset, found.high_watermark) == (3, 1)
    assert (end_of(partition), partition.high_watermark) == (1, 1)
    reads.is_first = False
    reads.read(partition, want(3), 1 << 20, at_least_one=True)
    assert end_of(partition) == 1, "a fetch that waits is read again, and says nothing new"


def test_logs_that_differ_say_where_and_move_nothing() -> None:
    partition = led()
    for asked in (want(5), want(2, last_epoch=build.EPOCH - 1)):
        found = ReplicaReads(request(), 0.0).read(partition, asked, 1 << 20, at_least_one=True)
        assert found.diverging is not None
        assert (found.records, end_of(partition), partition.high_watermark) == (None, -1, 0)


def test_an_offset_outside_of_the_log_says_where_it_begins_and_moves_nothing() -> None:
    partition = led()
    partition.log.advance_start(Offset(2))
    asked = want(0, last_epoch=-1)
    found = ReplicaReads(request(), 0.0).read(partition, asked, 1 << 20, at_least_one=True)
    assert (found.error_code, found.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)
    assert end_of(partition) == -1


def test_what_is_refused_moves_nothing() -> None:
    partition = led()
    refusals: list[tuple[ReplicaReads | RefusedReads, FetchPartition, type[ApiError]]] = [
        (ReplicaReads(request(), 0.0), want(1, leader_epoch=build.EPOCH - 1), FencedLeaderEpoch),
        (ReplicaReads(request(replica=9), 0.0), want(1), NotLeader),
        (RefusedReads(ClusterAuthorizationFailed("no")), want(1), ClusterAuthorizationFailed),
    ]
    for reads, asked, error in refusals:
        with pytest.raises(error):
            reads.read(partition, asked, 1 << 20, at_least_one=True)
    assert (end_of(partition), partition.high_watermark) == (-1, 0)
    assert LeaderEpoch(build.EPOCH) == partition.leader_epoch


def test_records_without_room_are_left_out_and_said_to_be_there() -> None:
    partition = led()
    reads = ReplicaReads(request(), 0.0)
    assert reads.read(partition, want(1), 0, at_least_one=False).is_left_out
    assert not reads.read(partition, want(1), 0, at_least_one=True).is_left_out
    assert not reads.read(partition, want(3), 0, at_least_one=False).is_left_out
