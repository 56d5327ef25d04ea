"""The replicas of a broker, and which of them it leads, from one image to the next."""

from collections.abc import Iterable, Iterator

from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.values import PartitionImage
from ottla.errors import ApiError, NotLeader, UnknownTopicOrPartition
from ottla.model import BrokerId, TopicPartition, Uuid


def lost_partitions(
    before: ClusterImage, after: ClusterImage, broker: BrokerId
) -> Iterator[tuple[TopicPartition, ApiError]]:
    """The partitions that the broker led and leads no more, each with the error for its clients."""
    for name, old in before.topics.items():
        new = after.topics.get(name)
        if new is old:
            continue
        for index, partition in enumerate(old.partitions):
            tp = TopicPartition(name, index)
            if partition.leader != broker:
                continue
            if new is None or new.id != old.id:
                yield tp, UnknownTopicOrPartition(f"{tp} has been deleted")
            elif not _goes_on(partition, new.partitions[index]):
                yield tp, NotLeader(f"this broker no longer leads {tp} in the epoch it did")


def kept_partitions(
    before: ClusterImage, after: ClusterImage, broker: BrokerId
) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    """The partitions that the broker goes on leading and that have changed otherwise."""
    for name, old in before.topics.items():
        new = after.topics.get(name)
        if new is None or new is old or new.id != old.id:
            continue
        for index, partition in enumerate(old.partitions):
            now = new.partitions[index]
            if partition.leader == broker and now is not partition and _goes_on(partition, now):
                yield TopicPartition(name, index), now


def _goes_on(old: PartitionImage, new: PartitionImage) -> bool:
    """True if the leader leads on, perhaps in the next epoch because replicas were dropped.

    Each change of the leader begins an epoch, so no other broker has led in between.
    """
    return old.leader == new.leader and new.leader_epoch - old.leader_epoch in {0, 1}


def restarted_brokers(before: ClusterImage, after: ClusterImage) -> list[BrokerId]:
    """The brokers that are gone, or have registered anew: what is known of them is outdated."""
    if before.registered is after.registered:
        return []
    return [
        broker
        for broker, old in before.registered.items()
        if broker not in after.registered or after.registered[broker].epoch != old.epoch
    ]


def replicas_on(
    topics: Iterable[TopicImage], broker: BrokerId
) -> Iterator[tuple[TopicPartition, Uuid]]:
    """The partitions of some topics with a replica on the broker, each with its topic's id."""
    for topic in topics:
        for index, partition in enumerate(topic.partitions):
            if broker in partition.replicas:
                yield TopicPartition(topic.name, index), topic.id
