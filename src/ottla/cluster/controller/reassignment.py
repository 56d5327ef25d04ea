"""Decisions on moves: replicas on other brokers, brokers that are drained, brokers that go.

A move is part of the partition's value: `begin_move` adds the new replicas to it, and the commit
that brings the last of them into the ISR drops the old ones (`leaders.advanced`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ottla.cluster.controller.decision import Decision
from ottla.cluster.controller.leaders import (
    advanced,
    isr_min_of,
    replication_rules,
    settle,
    with_epochs,
)
from ottla.cluster.image import ClusterImage
from ottla.cluster.placement import Site, replace_replicas
from ottla.cluster.values import (
    Change,
    Member,
    PartitionImage,
    broker_settings_key,
    member_key,
    partition_key,
    tombstone_key,
)
from ottla.config import BrokerConfig
from ottla.errors import (
    BrokerIdNotRegistered,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    PolicyViolation,
    PreferredLeaderNotAvailable,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)
from ottla.model import BrokerId, TopicPartition

# Moves of one partition


def begin_move(
    image: ClusterImage,
    tp: TopicPartition,
    target: Sequence[BrokerId],
    defaults: BrokerConfig,
    *,
    may_resize: bool = True,
) -> Decision[None]:
    """Move a partition to these replicas, the first of which is to lead it.

    Replaces the target of a move that is under way. Without new replicas it is done at once.
    """
    partition = _find(image, tp)
    _check_target(image, partition, target, may_resize=may_resize)
    return _changed(image, tp, partition, _aimed(partition, target), defaults)


def cancel_move(image: ClusterImage, tp: TopicPartition, defaults: BrokerConfig) -> Decision[None]:
    """Give up a move: the partition keeps the replicas that it had when the move began.

    Refused if none of them is in sync: only the new replicas have everything then.
    """
    partition = _find(image, tp)
    if not partition.is_moving:
        raise NoReassignmentInProgress("no move of the partition is under way")
    kept = partition.original
    isr = tuple(broker for broker in partition.isr if broker in kept)
    if not isr:
        raise InvalidReplicaAssignment(
            f"none of the replicas {list(kept)} that {tp} had before the move is in sync, so it"
            " cannot go back to them: wait for the move, or start their brokers"
        )
    elr = tuple(broker for broker in partition.elr if broker in kept)
    back = replace(partition, replicas=kept, isr=isr, elr=elr, adding=(), removing=())
    return _changed(image, tp, partition, back, defaults)


def moving_partitions(image: ClusterImage) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    """The partitions that are being moved."""
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if partition.adding or partition.removing:
                yield TopicPartition(topic.name, index), partition


def _find(image: ClusterImage, tp: TopicPartition) -> PartitionImage:
    if (partition := image.partition(tp)) is None:
        raise UnknownTopicOrPartition(f"there is no partition {tp}")
    return partition


def _aimed(partition: PartitionImage, target: Sequence[BrokerId]) -> PartitionImage:
    """The partition on its way to another target; no replica is dropped yet."""
    removing = tuple(broker for broker in partition.replicas if broker not in target)
    replicas, original = (*target, *removing), partition.original
    adding = tuple(broker for broker in replicas if broker not in original)
    return replace(partition, replicas=replicas, adding=adding, removing=removing)


def _changed(
    image: ClusterImage,
    tp: TopicPartition,
    before: PartitionImage,
    wanted: PartitionImage,
    defaults: BrokerConfig,
) -> Decision[None]:
    """Write the partition with other replicas, and with a leader and ISR among those alive."""
    topic = image.topics[tp.topic]
    rules = replication_rules(image.broker_config, defaults)
    isr_min = isr_min_of(rules(topic), wanted)
    settled = settle(wanted, image.brokers.keys(), isr_min=isr_min, is_unclean=False)
    after = with_epochs(before, settled)
    if after is before:
        return Decision((), None)
    return Decision((Change(partition_key(topic.id, tp.partition), after),), None)


def _check_target(
    image: ClusterImage,
    partition: PartitionImage,
    target: Sequence[BrokerId],
    *,
    may_resize: bool,
) -> None:
    """Refuse an assignment that makes no sense, with the error that Kafka has for it."""
    if not target:
        raise InvalidReplicaAssignment("a partition needs at least one replica")
    if len(set(target)) < len(target):
        raise InvalidReplicaAssignment("a broker is named twice: name each once")
    added = [broker for broker in target if broker not in partition.replicas]
    for broker in added:
        if broker not in image.members and broker not in image.registered:
            raise InvalidReplicaAssignment(
                f"there is no broker {broker}: choose from {sorted(image.brokers)}"
            )
        if broker not in image.brokers:
            raise InvalidReplicaAssignment(
                f"broker {broker} is not alive: start it, or choose from {sorted(image.brokers)}"
            )
        if broker in image.draining:
            raise InvalidReplicaAssignment(
                f"broker {broker} is being drained: undrain it, or choose another"
            )
    if len(target) != len(partition.target) and not may_resize:
        raise InvalidReplicationFactor(
            f"the partition has {len(partition.target)} replicas, and the request does not allow"
            " another number"
        )


# Elections that are requested


def elect_preferred(
    image: ClusterImage, tp: TopicPartition, defaults: BrokerConfig
) -> Decision[None]:
    """Let the first replica of a partition lead it."""
    partition = _find(image, tp)
    first = partition.replicas[0]
    if partition.leader == first:
        raise ElectionNotNeeded("the preferred replica leads the partition already")
    if first not in image.brokers:
        raise PreferredLeaderNotAvailable(
            f"broker {first}, which is to lead the partition, is not alive: start it"
        )
    if first not in partition.isr:
        raise PreferredLeaderNotAvailable(
            f"broker {first}, which is to lead the partition, is not in sync: wait until it has"
            " caught up"
        )
    topic = image.topics[tp.topic]
    isr_min = isr_min_of(replication_rules(image.broker_config, defaults)(topic), partition)
    elected = advanced(partition, first, partition.isr, isr_min)
    return Decision((Change(partition_key(topic.id, tp.partition), elected),), None)


def elect_uncleanly(
    image: ClusterImage, tp: TopicPartition, defaults: BrokerConfig
) -> Decision[None]:
    """Let any live replica lead a partition that has no leader; it may have lost records."""
    partition = _find(image, tp)
    if partition.leader is not None:
        raise ElectionNotNeeded("the partition has a leader")
    topic = image.topics[tp.topic]
    isr_min = isr_min_of(replication_rules(image.broker_config, defaults)(topic), partition)
    elected = settle(partition, image.brokers.keys(), isr_min=isr_min, is_unclean=True)
    if elected.leader is None:
        raise EligibleLeadersNotAvailable(
            f"none of the brokers {list(partition.replicas)} is alive: start one of them"
        )
    return Decision((Change(partition_key(topic.id, tp.partition), elected),), None)


# Brokers that are drained


def set_draining(image: ClusterImage, broker: BrokerId, *, is_draining: bool) -> Decision[None]:
    """Have the replicas of a broker moved to others, or let it have replicas again."""
    member = _find_member(image, broker)
    if is_draining:
        _check_room(image, broker)
    if member.is_draining == is_draining:
        return Decision((), None)
    changed = replace(member, is_draining=is_draining)
    return Decision((Change(member_key(broker), changed),), None)


def drain(image: ClusterImage, defaults: BrokerConfig) -> Decision[None]:
    """Move partitions off the brokers that are drained, so many at a time as the settings allow.

    Follows from the image alone. A partition for which there is no other broker stays.
    """
    draining = image.draining
    if not draining:
        return Decision((), None)
    limit = concurrent_moves(image, defaults)
    under_way = sum(1 for _ in moving_partitions(image))
    sites: dict[BrokerId, Site] = {**image.members, **image.registered}
    candidates = image.brokers.keys() - draining
    load = _replica_counts(image)
    changes: list[Change] = []
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if draining.isdisjoint(partition.target):
                continue
            if not partition.is_moving and under_way >= limit:
                continue
            target = replace_replicas(partition.target, draining, candidates, sites, load)
            if target is None:
                continue
            under_way += not partition.is_moving
            tp, aimed = TopicPartition(topic.name, index), _aimed(partition, target)
            changes += _changed(image, tp, partition, aimed, defaults).changes
    return Decision(tuple(changes), None)


def concurrent_moves(image: ClusterImage, defaults: BrokerConfig) -> int:
    """The partitions that may move at the same time, as the cluster's settings say."""
    given = image.broker_config.get("reassignment.concurrent.max")
    return defaults.reassignment_concurrent_max if given is None else int(given)


def _check_room(image: ClusterImage, broker: BrokerId) -> None:
    """Refuse to drain a broker without which a partition could not have all its replicas."""
    others = image.brokers.keys() - image.draining - {broker}
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if broker in partition.target and len(partition.target) > len(others):
                raise PolicyViolation(
                    f"without broker {broker} there are too few brokers for"
                    f" {TopicPartition(topic.name, index)}: {len(others)} for a replication factor"
                    f" of {len(partition.target)}; start another one first, or give the topic fewer"
                    " replicas"
                )


# Brokers that are removed


def remove_broker(image: ClusterImage, broker: BrokerId) -> Decision[None]:
    """Forget a broker that will not come back; refused while it runs or has replicas.

    Tombstones of topics no longer wait for it: if it does come back, its logs of deleted topics are
    set aside.
    """
    member = _find_member(image, broker)
    if broker in image.registered:
        raise PolicyViolation(f"broker {broker} is running: stop it first")
    held = _replica_counts(image)[broker]
    if held:
        advice = "wait until they have been moved" if member.is_draining else "drain it first"
        refusal = ReassignmentInProgress if member.is_draining else PolicyViolation
        raise refusal(f"broker {broker} has replicas of {held} partitions: {advice}")
    changes = []
    for tombstone in image.tombstones.values():
        if broker in tombstone.brokers:
            others = tuple(other for other in tombstone.brokers if other != broker)
            rest = replace(tombstone, brokers=others) if others else None
            changes.append(Change(tombstone_key(tombstone.id), rest))
    if broker in image.own_configs:
        changes.append(Change(broker_settings_key(broker), None))
    changes.append(Change(member_key(broker), None))  # last: until then it is asked for again
    return Decision(tuple(changes), None)


def _find_member(image: ClusterImage, broker: BrokerId) -> Member:
    if (member := image.members.get(broker)) is None:
        raise BrokerIdNotRegistered(
            f"there is no broker {broker}: the cluster knows {sorted(image.members)}"
        )
    return member


def _replica_counts(image: ClusterImage) -> Counter[BrokerId]:
    counts: Counter[BrokerId] = Counter()
    for topic in image.topics.values():
        for partition in topic.partitions:
            counts.update(partition.replicas)
    for partitions in image.detached.values():
        for partition in partitions.values():
            counts.update(partition.replicas)
    return counts
