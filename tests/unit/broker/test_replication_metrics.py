"""Metrics of replication, of partitions that are led here."""

from types import SimpleNamespace
from typing import cast

from fakes import build
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from ottla.broker.replication_metrics import collect_replication
from ottla.cluster.image import ClusterImage
from ottla.config import Durability, TopicConfig
from ottla.model import BrokerId, Offset
from ottla.replication.counts import ReplicationCounts
from ottla.replication.partition import LeaderPartition
from ottla.replication.replicas import Replicas
from ottla.storage.log import Log
from ottla.telemetry import Metric

HERE, NEAR, FAR = BrokerId(0), BrokerId(1), BrokerId(2)
EPOCH = 5


class NoFlusher:
    """A flusher that is never asked: the topic does not promise the disk."""

    def request(self, log: Log) -> None:
        raise AssertionError("nothing is flushed")


def led() -> LeaderPartition:
    """A partition with three records and two followers, of which one is in sync."""
    log = build.log(MemoryFiles(), TopicConfig(durability=Durability.REPLICATED))
    build.append(log, 3)
    return led_partition(
        build.TP,
        log,
        broker_id=HERE,
        leader_epoch=build.EPOCH,
        replicas=(HERE, NEAR, FAR),
        isr={HERE, NEAR},
        flusher=NoFlusher(),
        soon=lambda wake: None,
    )


def samples(partition: LeaderPartition, now_s: float) -> dict[str, float]:
    """The metrics without labels, and the states of partitions."""
    replicas = SimpleNamespace(
        leaders={("orders", 0): partition},
        following=SimpleNamespace(counts=ReplicationCounts(HERE)),
    )
    found = collect_replication(cast("Replicas", replicas), ClusterImage(), HERE, now_s)
    metrics = [one for one in found if isinstance(one, Metric)]
    return {
        labels[0] if labels else metric.name: number
        for metric in metrics
        for labels, number in metric.samples
    }


def test_the_lag_of_the_slowest_follower_is_shown_in_records_and_milliseconds() -> None:
    partition = led()
    partition.note_fetch(NEAR, EPOCH, Offset(3), 10.0)
    partition.note_fetch(FAR, EPOCH, Offset(1), 10.0)
    found = samples(partition, 12.5)
    assert found["ottla_replica_lag_records"] == 2
    assert found["ottla_replica_lag_ms"] == 12_500, "it never had everything"
    partition.note_fetch(FAR, EPOCH, Offset(3), 12.5)
    found = samples(partition, 13.0)
    assert (found["ottla_replica_lag_records"], found["ottla_replica_lag_ms"]) == (0, 0)


def test_partitions_with_replicas_that_are_not_in_sync_are_counted() -> None:
    found = samples(led(), 0.0)
    assert (found["under_replicated"], found["under_min_isr"], found["ottla_leaders"]) == (1, 0, 1)
