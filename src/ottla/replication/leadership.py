"""The replicas of a broker, and which of them it leads, from one image to the next."""

from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import zip_longest

from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.values import PartitionImage
from ottla.errors import ApiError, NotLeader, UnknownTopicOrPartition
from ottla.model import BrokerId, TopicPartition

ChangedPartitions = list[tuple[TopicPartition, PartitionImage]]


def lost_partitions(
    before: ClusterImage, after: ClusterImage, broker: BrokerId
) -> Iterator[tuple[TopicPartition, ApiError]]:
    """The partitions that the broker led and leads no more, each with the error for its clients."""
    for name, old in before.topics.items():
        new = after.topics.get(name)
        if new is old:
            continue
        if new is None or new.id != old.id:
            for index, partition in enumerate(old.partitions):
                if partition.leader == broker:
                    tp = TopicPartition(name, index)
                    yield tp, UnknownTopicOrPartition(f"{tp} has been deleted")
            continue
        for index, was, now in _changes(old, new):
            if was.leader == broker and not _goes_on(was, now):
                tp = TopicPartition(name, index)
                yield tp, NotLeader(f"this broker no longer leads {tp} in the epoch it did")


def kept_partitions(
    before: ClusterImage, after: ClusterImage, broker: BrokerId
) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    """The partitions that the broker goes on leading and that have changed otherwise."""
    for name, old in before.topics.items():
        new = after.topics.get(name)
        if new is None or new is old or new.id != old.id:
            continue
        for index, was, now in _changes(old, new):
            if was.leader == broker and _goes_on(was, now):
                yield TopicPartition(name, index), now


def _changes(
    old: TopicImage, new: TopicImage
) -> Iterator[tuple[int, PartitionImage, PartitionImage]]:
    """The partitions of a topic that have changed: few of many, so this is all that is done."""
    for index, (was, now) in enumerate(zip(old.partitions, new.partitions, strict=False)):
        if was is not now:
            yield index, was, now


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


def changed_topics(
    before: Mapping[str, TopicImage], after: Mapping[str, TopicImage], again: Container[str]
) -> list[tuple[TopicImage, ChangedPartitions]]:
    """The topics that have changed, with those of their partitions that have.

    With all of them, if the topic has new settings or is in `again`.
    """
    changed: list[tuple[TopicImage, ChangedPartitions]] = []
    for name, topic in after.items():
        old = before.get(name)
        if old is topic and name not in again:
            continue
        known: Sequence[PartitionImage] = ()
        if old is not None and old.id == topic.id and old.config == topic.config:
            known = () if name in again else old.partitions
        partitions = [
            (TopicPartition(name, index), now)
            for index, (was, now) in enumerate(zip_longest(known, topic.partitions))
            if was is not now
        ]
        changed.append((topic, partitions))
    return changed
