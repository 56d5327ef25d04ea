"""The partitions that a broker leads, from one image of the cluster to the next."""

from collections.abc import Iterable, Iterator

from ottla.cluster.image import ClusterImage, TopicImage
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
            elif new.partitions[index].leader != broker:
                yield tp, NotLeader(f"this broker no longer leads {tp}")


def led_partitions(
    topics: Iterable[TopicImage], broker: BrokerId
) -> Iterator[tuple[TopicPartition, Uuid]]:
    """The partitions of some topics that the broker is to lead, each with its topic's id."""
    for topic in topics:
        for index, partition in enumerate(topic.partitions):
            if partition.leader == broker:
                yield TopicPartition(topic.name, index), topic.id
