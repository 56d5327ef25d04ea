"""The replicas of a broker, and which of them it leads, from one image to the next."""

from collections.abc import Iterable, Iterator, Mapping

from ottla.cluster.image import ClusterImage, TopicChange, TopicImage
from ottla.cluster.values import PartitionImage
from ottla.errors import ApiError, NotLeader, UnknownTopicOrPartition
from ottla.model import BrokerId, TopicPartition

ChangedPartitions = list[tuple[TopicPartition, PartitionImage]]


def removed_topics(changes: Iterable[TopicChange]) -> Iterator[TopicImage]:
    """The topics that are no more; another may have the name of one."""
    for change in changes:
        if change.old is not None and not change.is_same:
            yield change.old


def lost_partitions(
    changes: Iterable[TopicChange], broker: BrokerId
) -> Iterator[tuple[TopicPartition, ApiError]]:
    """The partitions that the broker led and leads no more, each with the error for its clients."""
    for change in changes:
        if change.old is None:
            continue
        if not change.is_same:
            for index, partition in enumerate(change.old.partitions):
                if partition.leader == broker:
                    tp = TopicPartition(change.name, index)
                    yield tp, UnknownTopicOrPartition(f"{tp} has been deleted")
            continue
        for tp, was, now in changed_partitions(change):
            if was.leader == broker and not _goes_on(was, now):
                yield tp, NotLeader(f"this broker no longer leads {tp} in the epoch it did")


def kept_partitions(
    changes: Iterable[TopicChange], broker: BrokerId
) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    """The partitions that the broker goes on leading and that have changed otherwise."""
    for change in changes:
        for tp, was, now in changed_partitions(change):
            if was.leader == broker and _goes_on(was, now):
                yield tp, now


def changed_partitions(
    change: TopicChange,
) -> Iterator[tuple[TopicPartition, PartitionImage, PartitionImage]]:
    """The partitions that a topic had before and has now, and that differ."""
    if change.old is None or change.new is None:
        return
    was, now = change.old.partitions, change.new.partitions
    for index in change.indexes:
        yield TopicPartition(change.name, index), was[index], now[index]


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
    changes: Iterable[TopicChange], after: Mapping[str, TopicImage], again: Iterable[str]
) -> list[tuple[TopicImage, ChangedPartitions]]:
    """The topics of `after` that have changed, with those of their partitions that have.

    With all of them, if the topic has new settings or is in `again`.
    """
    whole = dict.fromkeys(name for name in again if name in after)
    changed: list[tuple[TopicImage, ChangedPartitions]] = []
    for change in changes:
        old, new = change.old, change.new
        if new is None or change.name in whole:
            continue
        if old is None or not change.is_same or old.config != new.config:
            whole[change.name] = None
            continue
        added = range(len(old.partitions), len(new.partitions))
        partitions = [
            (TopicPartition(change.name, index), new.partitions[index])
            for index in (*change.indexes, *added)
        ]
        changed.append((new, partitions))
    for name in whole:
        every = [(TopicPartition(name, at), one) for at, one in enumerate(after[name].partitions)]
        changed.append((after[name], every))
    return changed
