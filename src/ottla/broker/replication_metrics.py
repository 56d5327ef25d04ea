"""Metrics of replication: a few for the whole broker, whatever the number of its partitions."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from ottla.cluster.image import ClusterImage
from ottla.model import BrokerId
from ottla.replication.counts import ELECTIONS, ISR_CHANGES, ReplicationCounts
from ottla.replication.partition import LeaderPartition
from ottla.replication.replicas import Replicas
from ottla.telemetry import Metric, MetricKind

_GAUGE: Final = MetricKind.GAUGE
_COUNTER: Final = MetricKind.COUNTER


def collect_replication(
    replicas: Replicas, image: ClusterImage, broker_id: BrokerId, now_s: float
) -> Iterable[Metric]:
    """The state of the partitions that this broker leads, and what has happened to them."""
    leaders = replicas.leaders.values()
    states = {
        "under_replicated": sum(len(one.isr) < len(one.replicas) for one in leaders),
        "under_min_isr": sum(one.is_under_isr_min for one in leaders),
        "offline": _offline_count(image) if image.controller_id == broker_id else 0,
        "reassigning": sum(one.image.is_moving for one in leaders),
        "draining": _draining_count(leaders, image.draining),
    }
    yield Metric(
        "ottla_partitions",
        _GAUGE,
        "Partitions in a state that should not last: of those led here; offline, without a leader,"
        " of the whole cluster, by the broker that acts as controller.",
        ("state",),
        [((state,), count) for state, count in states.items()],
    )
    yield _one("ottla_leaders", _GAUGE, "Partitions that this broker leads.", len(leaders))
    lag_records, lag_s = 0, 0.0
    for leader in leaders:
        if len(leader.replicas) > 1:
            records, behind_s = leader.followers.lag(leader.log.end_offset, now_s)
            lag_records, lag_s = max(lag_records, records), max(lag_s, behind_s)
    yield _one(
        "ottla_replica_lag_records",
        _GAUGE,
        "Records of a partition led here that a follower has not fetched, at most.",
        lag_records,
    )
    yield _one(
        "ottla_replica_lag_ms",
        _GAUGE,
        "Milliseconds since a follower of a partition led here had all its records, at most.",
        round(lag_s * 1000),
    )
    yield from _counts(replicas.following.counts)


def _draining_count(leaders: Iterable[LeaderPartition], draining: AbstractSet[BrokerId]) -> int:
    """The partitions that have a replica on a broker which is being drained."""
    if not draining:
        return 0
    return sum(not draining.isdisjoint(one.replicas) for one in leaders)


def _counts(counts: ReplicationCounts) -> Iterable[Metric]:
    yield Metric(
        "ottla_isr_changes",
        _COUNTER,
        "Replicas that came into sync, or fell behind, of partitions led here.",
        ("kind",),
        [((kind,), counts.isr_changes[kind]) for kind in ISR_CHANGES],
    )
    yield Metric(
        "ottla_elections",
        _COUNTER,
        "Partitions that this broker was elected to lead: in sync, or eligible (KIP-966), or"
        " uncleanly, which may have lost records.",
        ("kind",),
        [((kind,), counts.elections[kind]) for kind in ELECTIONS],
    )
    yield _one(
        "ottla_truncated_records",
        _COUNTER,
        "Records cut off here because the leader of their partition does not have them.",
        counts.truncated_records,
    )
    yield _one(
        "ottla_replica_repairs",
        _COUNTER,
        "Replicas that were damaged here, and are fetched again from their leaders.",
        counts.repairs,
    )
    yield Metric(
        "ottla_replica_fetch_bytes",
        _COUNTER,
        "Bytes of batches that this broker has fetched as a follower, by the leader's id.",
        ("leader",),
        [((str(leader),), size) for leader, size in sorted(counts.fetched_bytes.items())],
    )


def _offline_count(image: ClusterImage) -> int:
    return sum(
        partition.leader is None
        for topic in image.topics.values()
        for partition in topic.partitions
    )


def _one(name: str, kind: MetricKind, doc: str, number: float) -> Metric:
    return Metric(name, kind, doc, (), [((), number)])
