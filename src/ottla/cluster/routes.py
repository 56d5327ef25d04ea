"""Routes of batches between partitions of a topic: those for sealed partitions go to active ones.

A partition is sealed if its index is not below the topic's active count. While it is, batches for
it go to one other partition, its target, with a producer id that tells them from those that are
sent there directly. The target may be sealed later: then they go on from there, with the same id.
"""

from collections.abc import Iterator

from ottla.cluster.image import TopicImage
from ottla.model import MAPPED_IDS_FROM, ProducerId


def mapped_id(producer_id: ProducerId, index: int) -> ProducerId:
    """The id under which a producer's batches for partition `index` are in other partitions.

    None is mapped twice, and a batch without a producer id stays without one.
    """
    if not 0 <= producer_id < MAPPED_IDS_FROM:
        return producer_id
    return ProducerId(producer_id + (index + 1) * MAPPED_IDS_FROM)


def target_of(topic: TopicImage, index: int) -> int:
    """The partition that batches for a sealed one go to; always one with a lower index."""
    forwarded_to = topic.partitions[index].forwarded_to
    return forwarded_to[-1] if forwarded_to else index % topic.active_count


def owner_of(topic: TopicImage, index: int) -> int:
    """The active partition that a batch for this one is appended to: itself, if it is active."""
    active_count = topic.active_count
    while index >= active_count:
        index = target_of(topic, index)
    return index


def is_direct(topic: TopicImage, index: int) -> bool:
    """True if batches for a partition are in its own log, and always were."""
    return index < topic.active_count and not topic.partitions[index].forwarded_to


def holders_of(topic: TopicImage, index: int) -> list[int]:
    """The partitions whose logs may have batches for this one, itself first."""
    return list(dict.fromkeys(_holders(topic, index)))


def _holders(topic: TopicImage, index: int) -> Iterator[int]:
    yield index
    if index >= topic.active_count and not topic.partitions[index].forwarded_to:
        yield from _holders(topic, target_of(topic, index))
    for target in topic.partitions[index].forwarded_to:
        yield from _holders(topic, target)
