"""Verdicts on the logs on disk: which the broker may open, and which it may remove.

A log is removed only if the store remembers that its topic was deleted. What the store does not
know is set aside: it may be the store that has forgotten, not the log that is too much.
"""

from collections.abc import Container, Iterator

from ottla.cluster.image import ClusterImage
from ottla.cluster.values import Tombstone
from ottla.model import BrokerId, TopicPartition, Uuid, format_uuid
from ottla.storage.found_logs import Fate, FoundLog, Verdict


def judge(image: ClusterImage, broker: BrokerId, found: FoundLog) -> Verdict:
    """The verdict on a log that was found, as far as this image knows it."""
    if found.topic_id is None:
        return _judge_nameless(image, broker, found)
    if found.topic_id in image.tombstones:
        return _judge_deleted(image.tombstones[found.topic_id], found.tp)
    return _judge_named(image, found.tp, found.topic_id)


def _judge_deleted(tombstone: Tombstone, tp: TopicPartition) -> Verdict:
    if tombstone.topic == tp.topic and tp.partition < tombstone.partition_count:
        return Verdict(Fate.DELETE)
    was = f"{tombstone.topic!r} with {tombstone.partition_count} partitions"
    return Verdict(Fate.SET_ASIDE, f"the topic of its id was deleted, but that was {was}")


def _judge_named(image: ClusterImage, tp: TopicPartition, topic_id: Uuid) -> Verdict:
    topic = image.topic_by_id(topic_id)
    if topic is None:
        return Verdict(Fate.SET_ASIDE, f"the store knows no topic of id {format_uuid(topic_id)}")
    if topic.name != tp.topic:
        return Verdict(Fate.SET_ASIDE, f"its id is that of the topic {topic.name!r}")
    if tp.partition >= len(topic.partitions):
        count = len(topic.partitions)
        return Verdict(Fate.SET_ASIDE, f"the store knows only {count} partitions of its topic")
    return Verdict(Fate.OPEN)


def _judge_nameless(image: ClusterImage, broker: BrokerId, found: FoundLog) -> Verdict:
    """A log without a topic id belongs to the topic of its name, if no other had that name here.

    To set it aside would be as safe, and take a partition away that is whole. A log of a deleted
    topic of the same name, the only other thing it can be, has a tombstone as long as it exists.
    """
    tp, topic = found.tp, image.topics.get(found.tp.topic)
    if topic is None or tp.partition >= len(topic.partitions):
        return Verdict(Fate.SET_ASIDE, f"{found.problem}, and the store does not know {tp}")
    if _was_just_deleted(image, broker, tp.topic):
        return Verdict(
            Fate.SET_ASIDE, f"{found.problem}, and an older topic of this name was just deleted"
        )
    return Verdict(Fate.OPEN, topic_id=topic.id)


def expected_id(
    image: ClusterImage, broker: BrokerId, tp: TopicPartition, noted_id: Uuid | None
) -> Uuid | None:
    """The topic id of a log that this broker must have, if a checkpoint names it with `noted_id`.

    None if the log is not the broker's any more: its topic was deleted, or made again. An older
    Ottla noted no id; then an older topic of the name must not have been deleted just now.
    """
    topic, partition = image.topics.get(tp.topic), image.partition(tp)
    if topic is None or partition is None or broker not in partition.replicas:
        return None
    if len(partition.replicas) > 1:
        return None  # its peers have it
    if noted_id is None:
        return None if _was_just_deleted(image, broker, tp.topic) else topic.id
    return topic.id if topic.id == noted_id else None


def _was_just_deleted(image: ClusterImage, broker: BrokerId, topic: str) -> bool:
    """True when logs of a deleted topic of this name may still be here."""
    return any(
        tombstone.topic == topic and broker in tombstone.brokers
        for tombstone in image.tombstones.values()
    )


def missing_logs(
    image: ClusterImage, broker: BrokerId, found: Container[TopicPartition]
) -> Iterator[TopicPartition]:
    """The partitions with a replica on this broker whose logs are not among those found."""
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            tp = TopicPartition(topic.name, index)
            if broker in partition.replicas and tp not in found:
                yield tp
