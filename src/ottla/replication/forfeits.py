"""Replicas that a broker gives up before it is ready: their logs may lack what was committed.

Decided once, when a process starts. A broker that keeps its place in the ISR, or stays eligible,
says that it has everything that was committed: with a log that is missing, damaged, of an older
copy of the disk, or that lost its end with the power, it must not.
"""

from collections.abc import Iterator, Mapping

from ottla.cluster.controller.leaders import Forfeit
from ottla.cluster.image import ClusterImage
from ottla.cluster.values import PartitionImage
from ottla.config import Durability
from ottla.model import BrokerId, TopicPartition
from ottla.storage.log import Log


def forfeits(
    image: ClusterImage,
    broker: BrokerId,
    logs: Mapping[TopicPartition, Log],
    *,
    is_outdated: bool,
    lost_power: bool,
) -> Iterator[Forfeit]:
    """The replicas to give up.

    `is_outdated` says that the disk is not the one that the broker last used, or an older copy;
    `lost_power` that what was not synced when it last ran may be gone.
    """
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            tp = TopicPartition(topic.name, index)
            if partition.is_new or broker not in (*partition.isr, *partition.elr):
                continue
            is_shared = len(partition.replicas) > 1
            if is_outdated or (tp not in logs and is_shared):
                yield Forfeit(tp, has_log=False)
            elif tp in logs and is_shared:
                is_damaged = bool(logs[tp].corrupt) and _has_others(partition, broker)
                if is_damaged or (lost_power and _is_cached(logs[tp])):
                    yield Forfeit(tp, has_log=True)


def _has_others(partition: PartitionImage, broker: BrokerId) -> bool:
    """True if another replica has everything that was committed."""
    return any(other != broker for other in (*partition.isr, *partition.elr))


def _is_cached(log: Log) -> bool:
    """True if what is acknowledged may be in the page cache only."""
    return log.config.durability is not Durability.FSYNC
