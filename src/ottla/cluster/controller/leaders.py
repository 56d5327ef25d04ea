"""Decisions on brokers, partition leaders and in-sync replicas."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from ottla.cluster.controller.decision import Decision
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.values import (
    BrokerImage,
    Change,
    Member,
    PartitionImage,
    Ready,
    broker_key,
    member_key,
    partition_key,
    ready_key,
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


class NotRegistered(ApiError):
    """The registration that a broker acts under has been replaced, or its lease has ended."""

    code = ErrorCode.STALE_BROKER_EPOCH


class IneligibleReplica(ApiError):
    """A broker that is not alive cannot join the ISR."""

    code = ErrorCode.INELIGIBLE_REPLICA


def register_broker(image: ClusterImage, broker: BrokerImage) -> Decision[None]:
    """Register a broker that has started; its earlier process is dead, even if still registered.

    It is not ready, so it counts as dead: `settle_leaders` gives its partitions to others.
    """
    changes = [Change(broker_key(broker.id), broker)]
    if broker.id in image.ready:
        changes.append(Change(ready_key(broker.id), None))
    return Decision(tuple(changes), None)


def note_ready(image: ClusterImage, broker: BrokerId, epoch: int) -> Decision[None]:
    """The broker has opened its logs: it may lead and be in sync, always in a new leader epoch."""
    registered = image.registered.get(broker)
    if registered is None or registered.epoch != epoch:
        raise NotRegistered(f"broker {broker} is no longer registered in epoch {epoch}")
    member = Member(broker, epoch, registered.rack, registered.machine)
    changes = [Change(ready_key(broker), Ready(broker, epoch))]
    if image.members.get(broker) != member:
        changes.append(Change(member_key(broker), member))
    return Decision(tuple(changes), None)


def settle_leaders(image: ClusterImage, defaults: BrokerConfig) -> Decision[None]:
    """Remove dead brokers from every ISR and elect a leader for every partition.

    Follows from the image alone, not from an event, so any broker may call it at any time: on a
    settled image it changes nothing.
    """
    unclean = unclean_rule(image.broker_config, defaults)
    return Decision(
        tuple(
            change
            for topic in image.topics.values()
            for change in settled_partitions(image, topic, unclean)
        ),
        None,
    )


def settle(
    partition: PartitionImage,
    live: AbstractSet[BrokerId],
    *,
    allow_unclean: Callable[[Sequence[BrokerId]], bool],
) -> PartitionImage:
    """The partition with leader and ISR among the `live` brokers; only `alter_isr` adds to the ISR.

    When the last in-sync replicas are gone the ISR stays: each of them has everything that was
    acknowledged, and no other replica is known to.
    """
    if partition.leader in live and all(broker in live for broker in partition.isr):
        return partition
    isr = tuple(broker for broker in partition.isr if broker in live)
    leader = partition.leader if partition.leader in isr else None
    if leader is None:
        leader = next((broker for broker in partition.replicas if broker in isr), None)
    if leader is None:
        isr = partition.isr
        candidate = next((broker for broker in partition.replicas if broker in live), None)
        if candidate is not None and allow_unclean(isr):
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
    if changed is partition:
        return Decision((), changed)
    key = partition_key(image.topics[tp.topic].id, tp.partition)
    return Decision((Change(key, changed),), changed)


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


def settled_partitions(
    image: ClusterImage, topic: TopicImage, unclean: UncleanRule
) -> Iterator[Change]:
    """The partitions of a topic that `settle` changes.

    While a broker of the ISR is starting, no other is elected uncleanly: it may be ready soon.
    """
    live, starting = image.brokers.keys(), image.registered.keys() - image.brokers.keys()

    def allow_unclean(isr: Sequence[BrokerId]) -> bool:
        return starting.isdisjoint(isr) and unclean(topic)

    for index, partition in enumerate(topic.partitions):
        settled = settle(partition, live, allow_unclean=allow_unclean)
        if settled is not partition:
            yield Change(partition_key(topic.id, index), settled)


def unclean_rule(broker_config: Mapping[str, str], defaults: BrokerConfig) -> UncleanRule:
    """A predicate: True if a topic allows unclean leader election, itself or by default."""

    def allows(topic: TopicImage) -> bool:
        text = topic.config.get(UNCLEAN_ELECTION, broker_config.get(UNCLEAN_ELECTION))
        own = {} if text is None else {UNCLEAN_ELECTION: text}
        return defaults.topic.override(own).unclean_leader_election_enable

    return allows


def raise_epochs(
    image: ClusterImage, epochs: Mapping[TopicPartition, LeaderEpoch]
) -> Decision[None]:
    """Raise leader epochs to at least those that the partitions' logs have seen."""
    changes = []
    for tp, epoch in epochs.items():
        partition = image.partition(tp)
        if partition is not None and partition.leader_epoch < epoch:
            key = partition_key(image.topics[tp.topic].id, tp.partition)
            changes.append(Change(key, replace(partition, leader_epoch=epoch)))
    return Decision(tuple(changes), None)
