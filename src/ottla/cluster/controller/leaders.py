"""Decisions on brokers, partition leaders and in-sync replicas."""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from ottla.cluster.controller.decision import Decision, changed_topics, with_partition
from ottla.cluster.image import (
    BrokerImage,
    Change,
    ClusterImage,
    PartitionImage,
    TopicImage,
    broker_key,
)
from ottla.config import (
    BrokerConfig,
)
from ottla.errors import (
    ApiError,
    ErrorCode,
    FencedLeaderEpoch,
    InvalidRequest,
    NotLeader,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from ottla.model import (
    BrokerId,
    LeaderEpoch,
    TopicPartition,
)

UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"


class StalePartitionEpoch(ApiError):
    """The caller's view of the partition is outdated: read it again."""

    code = ErrorCode.INVALID_UPDATE_VERSION


class IneligibleReplica(ApiError):
    """A broker that is not alive cannot join the ISR."""

    code = ErrorCode.INELIGIBLE_REPLICA


def register_broker(
    image: ClusterImage, broker: BrokerImage, defaults: BrokerConfig
) -> Decision[None]:
    """Register a broker that has started; its earlier process is dead, even if still registered.

    So its partitions get another in-sync leader, or the same in a new leader epoch: offsets that
    were lost with the old process must not be written a second time in the old epoch.
    """
    others = image.brokers.keys() - {broker.id}
    without = (settle_topic(topic, others, _never) for topic in image.topics.values())
    unclean = unclean_rule(image.broker_config, defaults)
    topics = [settle_topic(topic, others | {broker.id}, unclean) for topic in without]
    return Decision((Change(broker_key(broker.id), broker), *changed_topics(image, topics)), None)


def broker_gone(image: ClusterImage, broker: BrokerId, defaults: BrokerConfig) -> Decision[None]:
    """Remove a broker; in-sync replicas take over the partitions it led."""
    others = image.brokers.keys() - {broker}
    topics = _settle_all(image, others, defaults)
    removed = (Change(broker_key(broker), None),) if broker in image.brokers else ()
    return Decision((*removed, *changed_topics(image, topics)), None)


def settle_leaders(image: ClusterImage, defaults: BrokerConfig) -> Decision[None]:
    """Remove dead brokers from every ISR and elect a leader for every partition.

    Follows from the image alone, not from an event, so any broker may call it at any time: on a
    settled image it changes nothing.
    """
    topics = _settle_all(image, image.brokers.keys(), defaults)
    return Decision(changed_topics(image, topics), None)


def settle(
    partition: PartitionImage, live: AbstractSet[BrokerId], *, allow_unclean: Callable[[], bool]
) -> PartitionImage:
    """The partition with leader and ISR among the `live` brokers; only `alter_isr` adds to the ISR.

    When the last in-sync replicas are gone the ISR stays: each of them has everything that was
    acknowledged, and no other replica is known to.
    """
    isr = tuple(broker for broker in partition.isr if broker in live)
    leader = partition.leader if partition.leader in isr else None
    if leader is None:
        leader = next((broker for broker in partition.replicas if broker in isr), None)
    if leader is None:
        isr = partition.isr
        candidate = next((broker for broker in partition.replicas if broker in live), None)
        if candidate is not None and allow_unclean():
            leader, isr = candidate, (candidate,)
    return _advance(partition, leader, isr)


def alter_isr(
    image: ClusterImage,
    tp: TopicPartition,
    isr: Sequence[BrokerId],
    *,
    leader: BrokerId,
    leader_epoch: LeaderEpoch,
    partition_epoch: int,
) -> Decision[PartitionImage]:
    """Replace the ISR, as its leader requests; refused unless the leader's view is current."""
    partition = image.partition(tp)
    if partition is None:
        raise UnknownTopicOrPartition(f"unknown partition {tp}")
    _check_leadership(partition, tp, leader, leader_epoch)
    if partition_epoch != partition.partition_epoch:
        raise StalePartitionEpoch(
            f"{tp} is at partition epoch {partition.partition_epoch}, not {partition_epoch}: read"
            " the partition again, then retry"
        )
    if leader not in isr or not set(isr) <= set(partition.replicas):
        raise InvalidRequest(
            f"the in-sync replicas of {tp} are its leader {leader} and some of"
            f" {list(partition.replicas)}, not {list(isr)}"
        )
    if gone := sorted(set(isr) - image.brokers.keys()):
        raise IneligibleReplica(f"brokers {gone} are not alive, so they cannot be in sync on {tp}")
    ordered = tuple(broker for broker in partition.replicas if broker in isr)
    changed = _advance(partition, leader, ordered)
    topic = with_partition(image.topics[tp.topic], tp.partition, changed)
    return Decision(changed_topics(image, (topic,)), changed)


def _check_leadership(
    partition: PartitionImage, tp: TopicPartition, leader: BrokerId, leader_epoch: LeaderEpoch
) -> None:
    if leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch(
            f"{tp} is at leader epoch {partition.leader_epoch}, {leader_epoch} is fenced"
        )
    if leader_epoch > partition.leader_epoch:
        raise UnknownLeaderEpoch(
            f"{tp} is at leader epoch {partition.leader_epoch}, {leader_epoch} is unknown"
        )
    if leader != partition.leader:
        raise NotLeader(f"the leader of {tp} is broker {partition.leader}, not {leader}")


def _advance(
    partition: PartitionImage, leader: BrokerId | None, isr: tuple[BrokerId, ...]
) -> PartitionImage:
    """The partition with another leader or ISR. The only place where its epochs grow, by one."""
    assert leader is None or leader in isr, f"the leader {leader} is not in the ISR {isr}"
    assert set(isr) <= set(partition.replicas), f"the ISR {isr} is not among the replicas"
    if leader == partition.leader and isr == partition.isr:
        return partition
    return PartitionImage(
        leader=leader,
        leader_epoch=LeaderEpoch(partition.leader_epoch + (leader != partition.leader)),
        replicas=partition.replicas,
        isr=isr,
        partition_epoch=partition.partition_epoch + 1,
    )


UncleanRule = Callable[[TopicImage], bool]


def _settle_all(
    image: ClusterImage, live: AbstractSet[BrokerId], defaults: BrokerConfig
) -> list[TopicImage]:
    unclean = unclean_rule(image.broker_config, defaults)
    return [settle_topic(topic, live, unclean) for topic in image.topics.values()]


def settle_topic(
    topic: TopicImage, live: AbstractSet[BrokerId], unclean: UncleanRule
) -> TopicImage:
    partitions = tuple(
        settle(partition, live, allow_unclean=lambda: unclean(topic))
        for partition in topic.partitions
    )
    return topic if partitions == topic.partitions else replace(topic, partitions=partitions)


def unclean_rule(broker_config: Mapping[str, str], defaults: BrokerConfig) -> UncleanRule:
    """A predicate: True if a topic allows unclean leader election, itself or by default."""

    def allows(topic: TopicImage) -> bool:
        text = topic.config.get(UNCLEAN_ELECTION, broker_config.get(UNCLEAN_ELECTION))
        own = {} if text is None else {UNCLEAN_ELECTION: text}
        return defaults.topic.override(own).unclean_leader_election_enable

    return allows


def _never(_topic: TopicImage) -> bool:
    return False


def raise_epochs(
    image: ClusterImage, epochs: Mapping[TopicPartition, LeaderEpoch]
) -> Decision[None]:
    """Raise leader epochs to at least those that the partitions' logs have seen."""
    topics = dict(image.topics)
    for (name, index), epoch in epochs.items():
        topics[name] = raise_epoch(topics[name], index, epoch)
    return Decision(changed_topics(image, topics.values()), None)


def raise_epoch(topic: TopicImage, index: int, epoch: LeaderEpoch) -> TopicImage:
    """The topic with the leader epoch of one partition at least `epoch`."""
    partition = topic.partitions[index]
    if partition.leader_epoch >= epoch:
        return topic
    return with_partition(topic, index, replace(partition, leader_epoch=epoch))
