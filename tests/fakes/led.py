"""Partitions that a broker leads, for tests of what is built on them."""

from collections.abc import Callable, Iterable

from ottla.cluster.values import PartitionImage
from ottla.model import BrokerId, LeaderEpoch, TopicPartition
from ottla.replication.partition import Flushes, LeaderPartition
from ottla.storage.log import Log


def led_partition(
    tp: TopicPartition,
    log: Log,
    *,
    broker_id: BrokerId,
    leader_epoch: LeaderEpoch,
    replicas: tuple[BrokerId, ...],
    isr: Iterable[BrokerId],
    flusher: Flushes,
    soon: Callable[[Callable[[], None]], object],
    want_isr_change: Callable[[], None] = lambda: None,
    now_s: float = 0.0,
) -> LeaderPartition:
    """A partition led by `broker_id`, with this ISR."""
    ordered = tuple(broker for broker in replicas if broker in set(isr))
    return LeaderPartition(
        tp,
        log,
        PartitionImage(broker_id, leader_epoch, replicas, ordered, 0),
        broker_id=broker_id,
        flusher=flusher,
        soon=soon,
        want_isr_change=want_isr_change,
        now_s=now_s,
    )
