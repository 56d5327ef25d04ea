"""Decisions on partition leaders and in-sync replicas."""

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from ottla.cluster.controller.decision import Decision
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.values import (
    Change,
    PartitionImage,
    partition_key,
)
from ottla.config import BrokerConfig, TopicConfig
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

ISR_MIN: Final = "min.insync.replicas"
_RULES: Final = frozenset({"unclean.leader.election.enable", ISR_MIN})
_AUTO_REBALANCE: Final = "auto.leader.rebalance.enable"
_MANY_REPLICAS: Final = 3  # from that number on, two must be in sync for acks=all
_ISR_MIN_OF_MANY: Final = 2


class StalePartitionEpoch(ApiError):
    """The caller's view of the partition is outdated: read it again."""

    code = ErrorCode.INVALID_UPDATE_VERSION


class IneligibleReplica(ApiError):
    """A broker that is not alive cannot join the ISR."""

    code = ErrorCode.INELIGIBLE_REPLICA


def begin_terms(
    image: ClusterImage, broker: BrokerId, epoch: int, changes_max: int | None = None
) -> Decision[None]:
    """New leader epochs for all that a broker led before its registration of this epoch.

    It stays the leader of what no other broker has taken over. A partition that was written
    since the registration has begun its new epoch, or lost its leader.
    """
    keyed = (
        (partition_key(topic.id, index), partition)
        for topic in image.topics.values()
        for index, partition in enumerate(topic.partitions)
        if partition.leader == broker
    )
    changes = (
        Change(key, _in_new_term(partition))
        for key, partition in keyed
        if image.mod_revision(key) < epoch
    )
    return Decision(tuple(islice(changes, changes_max)), None)


def settle_leaders(
    image: ClusterImage,
    defaults: BrokerConfig,
    changes_max: int | None = None,
    newcomers: Sequence[BrokerId] = (),
) -> Decision[None]:
    """Remove dead brokers from every ISR and elect a leader for every partition.

    Follows from the image alone, not from an event, so any broker may call it at any time: on a
    settled image it changes nothing. With `changes_max`, more than a commit takes, it decides
    about so many partitions at most: about the others after the commit. `newcomers` are elected
    only where no other replica can be, the first of them before the others.
    """
    rules = replication_rules(image.broker_config, defaults)
    changes = (
        change
        for topic in image.topics.values()
        for change in settled_partitions(image, topic, rules, newcomers)
    )
    return Decision(tuple(islice(changes, changes_max)), None)


def settle(
    partition: PartitionImage,
    live: AbstractSet[BrokerId],
    *,
    isr_min: int,
    is_unclean: bool,
    newcomers: Sequence[BrokerId] = (),
) -> PartitionImage:
    """The partition with leader and ISR among the `live` brokers; only `alter_isr` adds to the ISR.

    When the last in-sync replicas are gone the ISR stays: each of them has everything that was
    committed, and besides them only eligible replicas are known to. With `is_unclean` any other
    may lead then.
    """
    isr = tuple(broker for broker in partition.isr if broker in live)
    candidates = _with_newcomers_last(partition.replicas, newcomers)
    if (leader := partition.leader) not in isr:
        leader = _first(candidates, isr)
    if leader is not None:
        return advanced(partition, leader, isr, isr_min)
    if (eligible := _first(candidates, live & set(partition.elr))) is not None:
        return advanced(partition, eligible, (eligible,), isr_min)
    candidate = _first(candidates, live)
    if candidate is None or not is_unclean:
        return advanced(partition, None, partition.isr, isr_min)
    elected = advanced(replace(partition, isr=(), elr=()), candidate, (candidate,), isr_min)
    return replace(elected, unclean_epoch=elected.leader_epoch)


def _with_newcomers_last(
    replicas: Sequence[BrokerId], newcomers: Sequence[BrokerId]
) -> Sequence[BrokerId]:
    if not newcomers:
        return replicas
    known = [broker for broker in replicas if broker not in newcomers]
    return [*known, *(broker for broker in newcomers if broker in replicas)]


def _first(replicas: Sequence[BrokerId], among: Container[BrokerId]) -> BrokerId | None:
    """The first of the replicas that is among some brokers: the preferred leader, if it is."""
    return next((broker for broker in replicas if broker in among), None)


@dataclass(frozen=True, slots=True)
class IsrChange:
    """The ISR that a leader wants for a partition, and the view of it on which it decided.

    `epochs` are the registrations under which brokers that join have fetched.
    """

    tp: TopicPartition
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: int
    epochs: Mapping[BrokerId, int] = field(default_factory=dict)


def alter_isr(
    image: ClusterImage, change: IsrChange, rules: "ReplicationRules"
) -> Decision[PartitionImage]:
    """Replace the ISR, as its leader requests; refused unless the leader's view is current."""
    tp, partition = change.tp, image.partition(change.tp)
    if partition is None:
        raise UnknownTopicOrPartition(f"unknown partition {tp}")
    _check_leadership(partition, tp, change.leader, change.leader_epoch)
    if change.partition_epoch != partition.partition_epoch:
        raise StalePartitionEpoch(
            f"{tp} is at partition epoch {partition.partition_epoch}, not"
            f" {change.partition_epoch}: read the partition again, then retry"
        )
    if change.leader not in change.isr or not set(change.isr) <= set(partition.replicas):
        raise InvalidRequest(
            f"the in-sync replicas of {tp} are its leader {change.leader} and some of"
            f" {list(partition.replicas)}, not {list(change.isr)}"
        )
    _check_alive(image, change)
    topic = image.topics[tp.topic]
    ordered = tuple(broker for broker in partition.replicas if broker in change.isr)
    isr_min = isr_min_of(rules(topic), partition)
    changed = advanced(partition, change.leader, ordered, isr_min, is_new=False)
    if changed is partition:
        return Decision((), changed)
    return Decision((Change(partition_key(topic.id, tp.partition), changed),), changed)


def alter_isrs(
    image: ClusterImage, changes: Iterable[IsrChange], defaults: BrokerConfig
) -> Decision[None]:
    """Make the changes of a leader that still fit the image; it decides anew on the others."""
    rules = replication_rules(image.broker_config, defaults)
    made: list[Change] = []
    for change in changes:
        with contextlib.suppress(ApiError):
            made += alter_isr(image, change, rules).changes
    return Decision(tuple(made), None)


@dataclass(frozen=True, slots=True)
class Forfeit:
    """A replica that its broker gives up: its log may lack what was committed.

    With `has_log` it has most of it, and is better than nothing.
    """

    tp: TopicPartition
    has_log: bool


def forfeit(image: ClusterImage, broker: BrokerId, forfeits: Iterable[Forfeit]) -> Decision[None]:
    """Remove a broker that is not ready yet from the ISR and the eligible replicas of partitions.

    If it was the last, and has a log, it stays, but the next election counts as unclean: others
    may have had more.
    """
    changes = []
    for one in forfeits:
        found = image.partition(one.tp)
        if found is None:
            continue
        is_led = found.leader == broker
        partition = replace(_in_new_term(found), leader=None) if is_led else found
        isr = tuple(other for other in partition.isr if other != broker)
        elr = tuple(other for other in partition.elr if other != broker)
        changed = replace(partition, isr=isr, elr=elr)
        if one.has_log and not (isr or elr):
            next_epoch = LeaderEpoch(partition.leader_epoch + 1)
            changed = replace(partition, isr=(broker,), elr=(), unclean_epoch=next_epoch)
        if changed != partition:
            changed = replace(changed, partition_epoch=found.partition_epoch + 1)
            key = partition_key(image.topics[one.tp.topic].id, one.tp.partition)
            changes.append(Change(key, changed))
    return Decision(tuple(changes), None)


def forfeit_damaged(
    image: ClusterImage, broker: BrokerId, damaged: Iterable[TopicPartition]
) -> Decision[None]:
    """Remove a live broker from the ISR and the eligible replicas of partitions it has damaged.

    The leader epoch rises even if the leader stays: a fetch from before, still on its way, would
    otherwise bring the replica back into the ISR. One that is the last to have everything stays.
    """
    changes = []
    for tp in damaged:
        partition = image.partition(tp)
        if partition is None or broker not in (*partition.isr, *partition.elr):
            continue
        isr = tuple(other for other in partition.isr if other != broker)
        elr = tuple(other for other in partition.elr if other != broker)
        leader = partition.leader
        if leader == broker:
            leader = _first(partition.replicas, image.brokers.keys() & set(isr))
            if leader is None:
                continue
        if not (isr or elr):
            continue
        changed = replace(_in_new_term(partition), leader=leader, isr=isr, elr=elr)
        changes.append(Change(partition_key(image.topics[tp.topic].id, tp.partition), changed))
    return Decision(tuple(changes), None)


def _check_alive(image: ClusterImage, change: IsrChange) -> None:
    """Refuse brokers that are dead, or that have started anew since they were seen in sync."""
    live = image.brokers
    if gone := sorted(set(change.isr) - live.keys()):
        raise IneligibleReplica(
            f"brokers {gone} are not alive, so they cannot be in sync on {change.tp}"
        )
    if anew := sorted(one for one, epoch in change.epochs.items() if live[one].epoch != epoch):
        raise IneligibleReplica(
            f"brokers {anew} have started anew: they have to catch up on {change.tp} again"
        )


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


def advanced(
    partition: PartitionImage,
    leader: BrokerId | None,
    isr: tuple[BrokerId, ...],
    isr_min: int,
    *,
    is_new: bool | None = None,
) -> PartitionImage:
    """The partition with another leader or ISR, and with it the end of a move that is done.

    Those that leave an ISR which is then too small stay eligible; with enough members again,
    only these are known to have everything that is committed from now on.
    """
    assert leader is None or leader in isr, f"the leader {leader} is not in the ISR {isr}"
    assert set(isr) <= set(partition.replicas), f"the ISR {isr} is not among the replicas"
    elr: tuple[BrokerId, ...] = ()
    if len(isr) < isr_min or leader is None:
        left = {*partition.isr, *partition.elr}.difference(isr)
        elr = tuple(broker for broker in partition.replicas if broker in left)
    changed = replace(
        partition,
        leader=leader,
        isr=isr,
        elr=elr,
        is_new=partition.is_new if is_new is None else is_new,
    )
    if leader is not None and changed.is_moving and set(changed.target) <= set(isr):
        changed = _moved(changed)
    return with_epochs(partition, changed)


def _moved(partition: PartitionImage) -> PartitionImage:
    """The partition on its target alone, all of which is in sync and alive."""
    target = partition.target
    return replace(
        partition,
        leader=partition.leader if partition.leader in target else target[0],
        replicas=target,
        isr=target,
        elr=(),
        adding=(),
        removing=(),
    )


def _in_new_term(partition: PartitionImage) -> PartitionImage:
    """The partition in its next leader epoch, whether or not its leader changes."""
    return replace(
        partition,
        leader_epoch=LeaderEpoch(partition.leader_epoch + 1),
        partition_epoch=partition.partition_epoch + 1,
    )


def with_epochs(before: PartitionImage, after: PartitionImage) -> PartitionImage:
    """A changed partition with its next epochs, each larger by one.

    A leader begins a new epoch also when replicas are dropped: what they still send is refused.
    """
    if before == after:
        return before
    is_new_term = before.leader != after.leader or not set(before.replicas) <= set(after.replicas)
    return replace(
        after,
        leader_epoch=LeaderEpoch(before.leader_epoch + is_new_term),
        partition_epoch=before.partition_epoch + 1,
    )


ReplicationRules = Callable[[TopicImage], TopicConfig]


def replication_rules(broker_config: Mapping[str, str], defaults: BrokerConfig) -> ReplicationRules:
    """The settings of a topic that decide about its replicas: its own, or the cluster's."""

    def rules(topic: TopicImage) -> TopicConfig:
        given = {**broker_config, **topic.config}
        names = given.keys() & _RULES
        return defaults.topic.override({name: given[name] for name in names})

    return rules


def isr_min_of(config: TopicConfig, partition: PartitionImage) -> int:
    """The members that an ISR needs for a commit; a topic with fewer replicas needs all it has.

    While replicas are being added or removed, as many as there are before and after the move.
    """
    size = len(partition.replicas)
    if partition.is_moving:
        size = min(len(partition.original), len(partition.target))
    return min(config.min_insync_replicas, size)


def with_isr_min(
    config: Mapping[str, str], replica_count: int, defaults: BrokerConfig
) -> Mapping[str, str]:
    """A topic's settings; with three replicas or more, two must be in sync unless a user said so.

    Written down with the topic, so that all brokers count alike, and a broker that comes later
    with other settings changes nothing.
    """
    if replica_count < _MANY_REPLICAS or ISR_MIN in config or ISR_MIN in defaults.given:
        return config
    return {**config, ISR_MIN: str(_ISR_MIN_OF_MANY)}


def settled_partitions(
    image: ClusterImage,
    topic: TopicImage,
    rules: ReplicationRules,
    newcomers: Sequence[BrokerId] = (),
) -> Iterator[Change]:
    """The partitions of a topic that `settle` changes.

    While a broker that has everything is starting, no other is elected uncleanly: it may be
    ready soon.
    """
    live, starting = image.brokers.keys(), image.registered.keys() - image.brokers.keys()
    config: TopicConfig | None = None
    for index, partition in enumerate(topic.partitions):
        if partition.leader in live and not partition.elr and live >= set(partition.isr):
            continue
        if config is None:
            config = rules(topic)
        is_unclean = config.unclean_leader_election_enable and starting.isdisjoint(
            (*partition.isr, *partition.elr)
        )
        isr_min = isr_min_of(config, partition)
        settled = settle(
            partition, live, isr_min=isr_min, is_unclean=is_unclean, newcomers=newcomers
        )
        if settled is not partition:
            yield Change(partition_key(topic.id, index), settled)


def prefer_leaders(image: ClusterImage, defaults: BrokerConfig) -> Decision[None]:
    """Let first replicas that are in sync lead again, unless the cluster wants leaders to stay."""
    given = {name: text for name, text in image.broker_config.items() if name == _AUTO_REBALANCE}
    if not defaults.override(given).auto_leader_rebalance_enable:
        return Decision((), None)
    rules = replication_rules(image.broker_config, defaults)
    changes = []
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            first = partition.replicas[0]
            if partition.leader in {None, first} or first not in partition.isr:
                continue
            if first in image.brokers:
                isr_min = isr_min_of(rules(topic), partition)
                changed = advanced(partition, first, partition.isr, isr_min)
                changes.append(Change(partition_key(topic.id, index), changed))
    return Decision(tuple(changes), None)


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
