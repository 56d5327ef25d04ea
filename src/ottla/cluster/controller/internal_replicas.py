"""Replicas of internal topics: how many there are to be, and added when brokers come.

The first broker of a cluster creates these topics for itself. When others come the topics get
replicas there, a few at a time: each is added to its partition, catches up, and joins the ISR.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ottla.cluster.controller.decision import Decision, stored_topic
from ottla.cluster.controller.leaders import ISR_MIN, with_isr_min
from ottla.cluster.controller.reassignment import begin_move
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.placement import added_replica, replication_factor
from ottla.cluster.values import Change, PartitionImage, topic_key
from ottla.config import BrokerConfig
from ottla.config.setting import NumberOrAuto
from ottla.model import TopicPartition

# How many replicas the partitions of each internal topic have, as set.
INTERNAL_FACTORS: Final[Mapping[str, Callable[[BrokerConfig], NumberOrAuto]]] = {
    "__consumer_offsets": lambda config: config.offsets_topic_replication_factor,
    "__transaction_state": lambda config: config.transactions_topic_replication_factor,
    "__share_group_state": lambda config: config.share_state_topic_replication_factor,
}
_DYNAMIC: Final = frozenset(
    {
        ISR_MIN,
        "offsets.topic.replication.factor",
        "share.coordinator.state.topic.replication.factor",
        "transaction.state.log.replication.factor",
    }
)
_PER_ADDITION: Final = 10  # partitions of a topic for each that gets a replica at a time


def internal_factor(image: ClusterImage, topic: str, config: BrokerConfig) -> int:
    """The number of replicas of an internal topic, at most as many as there are live brokers."""
    factor = replication_factor(INTERNAL_FACTORS[topic](config), image.brokers.values())
    return max(1, min(factor, len(image.brokers)))


def add_internal_replicas(image: ClusterImage, defaults: BrokerConfig) -> Decision[None]:
    """Add replicas to partitions of internal topics that have too few, some at a time.

    When all of a topic have three, two of them must be in sync from then on, as in a topic that
    is created with three.
    """
    names = image.broker_config.keys() & _DYNAMIC
    config = defaults.override({name: image.broker_config[name] for name in sorted(names)})
    changes: list[Change] = []
    for name in INTERNAL_FACTORS:
        topic = image.topics.get(name)
        if topic is not None:
            changes += _added(image, topic, internal_factor(image, name, config), config)
            changes += _isr_min_raised(topic, config)
    return Decision(tuple(changes), None)


def _isr_min_raised(topic: TopicImage, config: BrokerConfig) -> Iterator[Change]:
    fewest = min(len(partition.replicas) for partition in topic.partitions)
    settings = with_isr_min(topic.config, fewest, config)
    if settings is topic.config:
        return
    if all(set(one.replicas) == set(one.isr) for one in topic.partitions):
        yield Change(topic_key(topic.name), stored_topic(replace(topic, config=settings)))


def _added(
    image: ClusterImage, topic: TopicImage, factor: int, config: BrokerConfig
) -> Iterator[Change]:
    if all(len(partition.replicas) >= factor for partition in topic.partitions):
        return
    room = max(1, len(topic.partitions) // _PER_ADDITION)
    room -= sum(_is_catching_up(image, partition) for partition in topic.partitions)
    candidates = [one for one in image.brokers.values() if one.id not in image.draining]
    load = Counter(broker for one in topic.partitions for broker in one.replicas)
    for index, partition in enumerate(topic.partitions):
        if room <= 0:
            return
        if len(partition.replicas) >= factor or not _is_steady(image, partition):
            continue
        added = added_replica(candidates, partition.replicas, load)
        if added is None:
            continue
        load[added] += 1
        room -= 1
        target = (*partition.replicas, added)
        yield from begin_move(image, TopicPartition(topic.name, index), target, config).changes


def _is_catching_up(image: ClusterImage, partition: PartitionImage) -> bool:
    """True while a replica on a live broker is not in sync."""
    return any(
        broker in image.brokers and broker not in partition.isr for broker in partition.replicas
    )


def _is_steady(image: ClusterImage, partition: PartitionImage) -> bool:
    """True if a leader can bring one more replica into sync, and no other is on its way."""
    is_led = partition.leader is not None and partition.leader in image.brokers
    is_moving = partition.is_moving or _is_catching_up(image, partition)
    return is_led and not partition.elr and not is_moving
