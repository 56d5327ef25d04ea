"""Decisions on topics: create, delete, grow, adopt a found log, place replicas."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ottla.cluster.controller.configs import check_delay_known, checked_topic_config, values_given
from ottla.cluster.controller.decision import Decision, find_topic, topic_changes
from ottla.cluster.controller.internal_replicas import INTERNAL_FACTORS, internal_factor
from ottla.cluster.controller.leaders import with_isr_min
from ottla.cluster.controller.partition_count import open_sealed
from ottla.cluster.image import ClusterImage, TopicImage, fold_name
from ottla.cluster.placement import place, replication_factor
from ottla.cluster.values import (
    CATALOG_KEY,
    BrokerImage,
    Catalog,
    Change,
    PartitionImage,
    Tombstone,
    making_key,
    parse_partition_key,
    partition_key,
    tombstone_key,
    topic_key,
)
from ottla.config import (
    BrokerConfig,
)
from ottla.config.topic import ACTIVE_PARTITIONS, ALL_PARTITIONS
from ottla.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    PolicyViolation,
    TopicAlreadyExists,
    TopicDeletionDisabled,
)
from ottla.model import (
    NO_UUID,
    BrokerId,
    LeaderEpoch,
    TopicPartition,
    Uuid,
    format_uuid,
    topic_name_problem,
)
from ottla.protocol.messages.topics import BROKER_DEFAULT

_SWEPT_AT_ONCE: Final = 32  # partitions that are removed in the commit that deletes their topic


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create; `assignment` names the replicas instead of the two numbers."""

    name: str
    partition_count: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignment: Mapping[int, Sequence[BrokerId]] = field(default_factory=dict)
    config: Mapping[str, str | None] = field(default_factory=dict)
    is_internal: bool = False


def new_topic_id(image: ClusterImage, draw: Callable[[], Uuid]) -> Uuid:
    """A topic id that is unused, not zero, and not mistaken for a command line option in print."""
    while True:
        topic_id = draw()
        taken = topic_id == NO_UUID or topic_id in image.topic_names
        taken = taken or topic_id in image.tombstones or topic_id in image.detached
        if not taken and not format_uuid(topic_id).startswith("-"):
            return topic_id


def create_topic(
    image: ClusterImage,
    wanted: NewTopic,
    defaults: BrokerConfig,
    *,
    topic_id: Uuid,
    start: int,
) -> Decision[TopicImage]:
    """Create a topic, with replicas placed from the broker at `start` (any number) on.

    Decided again, after a conflict or because not all partitions fitted into one commit, it has
    the same id.
    """
    _check_name(image, wanted.name)
    given = values_given(wanted.config)
    config = checked_topic_config(given, defaults)
    if config.delay_enable:
        check_delay_known(image)
    if config.active_partitions != ALL_PARTITIONS:
        raise InvalidConfig(
            f"a new topic has active partitions only: create it with as many as {ACTIVE_PARTITIONS}"
            " says, and leave that out"
        )
    placed = _place_new_topic(image, wanted, defaults, start)
    stored = with_isr_min(given, len(placed[0]), defaults)
    _check_partition_limit(image, len(placed), defaults)
    topic = TopicImage(
        name=wanted.name,
        id=topic_id,
        partitions=tuple(map(_new_partition, placed)),
        config=stored,
        is_internal=wanted.is_internal,
    )
    return Decision(_made(image, topic), topic)


def delete_topic(image: ClusterImage, name: str, defaults: BrokerConfig) -> Decision[TopicImage]:
    """Delete a topic; the result is its last image. Its id is never used again.

    A tombstone is part of the same commit: without one, no broker removes a log.
    """
    if not defaults.delete_topic:
        raise TopicDeletionDisabled(
            "topic deletion is disabled: set delete.topic.enable = true on the brokers"
        )
    topic = find_topic(image, name)
    holders = {broker for partition in topic.partitions for broker in partition.replicas}
    tombstone = Tombstone(topic.id, name, len(topic.partitions), tuple(sorted(holders)))
    changes = [Change(topic_key(name), None), Change(tombstone_key(topic.id), tombstone)]
    if len(topic.partitions) <= _SWEPT_AT_ONCE:  # else `sweep` removes them
        changes += (
            Change(partition_key(topic.id, index), None) for index in range(len(topic.partitions))
        )
    return Decision(tuple(changes), topic)


def sweep(image: ClusterImage, given_up: Collection[Uuid] = ()) -> Decision[None]:
    """Remove partitions without a topic: of deleted topics, and of those in `given_up`.

    Those are ids of topics whose creation has stopped half-way. Its mark goes first, so that it
    cannot go on.
    """
    changes = [Change(making_key(topic_id), None) for topic_id in given_up]
    for topic_id, partitions in image.detached.items():
        if topic_id not in image.making or topic_id in given_up:
            changes += (Change(partition_key(topic_id, index), None) for index in partitions)
    return Decision(tuple(changes), None)


def _made(image: ClusterImage, topic: TopicImage) -> tuple[Change, ...]:
    """The changes that create or grow a topic: its partitions, then what makes them count.

    Partitions that the store has already, because not all fitted into one commit, are left out.
    """
    written = image.detached.get(topic.id, {})
    changes = [
        change
        for change in topic_changes(image, topic)
        if not isinstance(change.value, PartitionImage)
        or written.get(parse_partition_key(change.key)[1]) != change.value
    ]
    changes.append(Change(CATALOG_KEY, Catalog()))
    if topic.id in image.making:
        changes.append(Change(making_key(topic.id), None))
    return tuple(changes)


def logs_removed(
    image: ClusterImage, broker: BrokerId, topic_ids: Collection[Uuid]
) -> Decision[None]:
    """Note that a broker removed its logs of deleted topics; the last ends the tombstone."""
    changes = []
    for topic_id in topic_ids:
        tombstone = image.tombstones.get(topic_id)
        if tombstone is None or broker not in tombstone.brokers:
            continue
        others = tuple(other for other in tombstone.brokers if other != broker)
        rest = replace(tombstone, brokers=others) if others else None
        changes.append(Change(tombstone_key(topic_id), rest))
    return Decision(tuple(changes), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPartition:
    """A log found on a broker's disk, of a topic that may be unknown.

    `partition_count` and `config` are used only if the topic has to be created again.
    """

    tp: TopicPartition
    topic_id: Uuid
    broker: BrokerId
    leader_epoch: LeaderEpoch
    partition_count: int
    config: Mapping[str, str]
    is_internal: bool


def adopt_partition(image: ClusterImage, found: FoundPartition) -> Decision[TopicImage]:
    """Make a found log part of its topic, which is created or grown if needed.

    The partition's leader epoch is not older than the log's.
    """
    if found.topic_id in image.tombstones:
        raise InvalidRequest(f"topic {found.tp.topic!r} of the found log was deleted")
    topic = image.topic_by_id(found.topic_id)
    if topic is None:
        _check_name(image, found.tp.topic)
        topic = TopicImage(found.tp.topic, found.topic_id, (), found.config, found.is_internal)
    if topic.name != found.tp.topic:
        raise InvalidRequest(
            f"the found log belongs to topic {topic.name!r}, not {found.tp.topic!r}"
        )
    count = max(found.tp.partition + 1, len(topic.partitions))
    if not topic.partitions:
        count = max(count, found.partition_count)
    new = (_new_partition((found.broker,)) for _ in range(len(topic.partitions), count))
    grown = replace(topic, partitions=(*topic.partitions, *new))
    adopted = _raise_epoch(grown, found.tp.partition, found.leader_epoch)
    return Decision(_made(image, adopted), adopted)


def _raise_epoch(topic: TopicImage, index: int, epoch: LeaderEpoch) -> TopicImage:
    """The topic with the leader epoch of one partition at least `epoch`."""
    partition = topic.partitions[index]
    if partition.leader_epoch >= epoch:
        return topic
    raised = replace(partition, leader_epoch=epoch)
    partitions = (*topic.partitions[:index], raised, *topic.partitions[index + 1 :])
    return replace(topic, partitions=partitions)


def add_partitions(
    image: ClusterImage,
    name: str,
    total: int,
    defaults: BrokerConfig,
    *,
    start: int,
    assignments: Sequence[Sequence[BrokerId]] | None = None,
) -> Decision[TopicImage]:
    """Grow a topic to `total` active partitions: sealed ones are opened before any are added."""
    topic = open_sealed(image, name, total)
    count = len(topic.partitions)
    if assignments is not None and find_topic(image, name).active_count < count:
        raise InvalidReplicaAssignment(
            f"sealed partitions of {name!r} are opened first, with the replicas that they have:"
            " leave the assignments out"
        )
    if total <= count:
        return Decision(_made(image, topic), topic)
    _check_partition_limit(image, total - count, defaults)
    factor = len(topic.partitions[0].target)
    placed: Sequence[Sequence[BrokerId]]
    if assignments is None:
        _check_replication_factor(image, factor)
        placed = place(_hosts(image, factor), range(count, total), factor, start=start)
    else:
        placed = _check_added_assignments(image, assignments, total - count, factor)
    grown = replace(topic, partitions=topic.partitions + tuple(map(_new_partition, placed)))
    return Decision(_made(image, grown), grown)


def _check_name(image: ClusterImage, name: str) -> None:
    if problem := topic_name_problem(name):
        raise InvalidTopic(f"{problem}: choose another name than {name!r}")
    if name in image.topics:
        raise TopicAlreadyExists(f"topic {name!r} exists already")
    if other := image.folded_names.get(fold_name(name) or ""):
        raise InvalidTopic(
            f"{name!r} differs from the topic {other!r} only in '.' and '_', which metrics cannot"
            " tell apart: choose another name"
        )


def _new_partition(replicas: Sequence[BrokerId]) -> PartitionImage:
    return PartitionImage(
        leader=replicas[0],
        leader_epoch=LeaderEpoch(0),
        replicas=tuple(replicas),
        isr=tuple(replicas),
        partition_epoch=0,
        is_new=len(replicas) > 1,
    )


def _place_new_topic(
    image: ClusterImage, wanted: NewTopic, defaults: BrokerConfig, start: int
) -> Sequence[Sequence[BrokerId]]:
    if wanted.assignment:
        _check_partition_limit(image, len(wanted.assignment), defaults)
        return _check_assignment(image, wanted)
    partition_count, factor = wanted.partition_count, wanted.replication_factor
    if partition_count == BROKER_DEFAULT:
        partition_count = defaults.partitions_default
    if factor == BROKER_DEFAULT:
        factor = _default_factor(image, wanted, defaults)
    if partition_count < 1:
        raise InvalidPartitions(
            f"a topic has 1 or more partitions, not {partition_count}; -1 means the default,"
            f" {defaults.partitions_default}"
        )
    # Before placing: a request for two billion partitions must cost nothing.
    _check_partition_limit(image, partition_count, defaults)
    _check_replication_factor(image, factor)
    return place(_hosts(image, factor), range(partition_count), factor, start=start)


def _hosts(image: ClusterImage, factor: int) -> Sequence[BrokerImage]:
    """The brokers for new partitions: those that are drained only if there are too few others."""
    draining = image.draining
    others = [one for one in image.brokers.values() if one.id not in draining]
    return others if len(others) >= factor else tuple(image.brokers.values())


def _default_factor(image: ClusterImage, wanted: NewTopic, defaults: BrokerConfig) -> int:
    """The number of replicas of a topic for which none was requested."""
    if wanted.name in INTERNAL_FACTORS and wanted.is_internal:
        return internal_factor(image, wanted.name, defaults)
    return replication_factor(defaults.default_replication_factor, image.brokers.values())


def _check_replication_factor(image: ClusterImage, factor: int) -> None:
    if factor < 1:
        raise InvalidReplicationFactor(
            f"a partition has 1 or more replicas, not {factor}; -1 means the default"
        )
    if factor > len(image.brokers):
        raise InvalidReplicationFactor(
            f"{factor} replicas need as many live brokers, and {len(image.brokers)} are alive:"
            " start more brokers, or request fewer replicas"
        )


def _check_partition_limit(image: ClusterImage, added: int, defaults: BrokerConfig) -> None:
    total = image.partition_count + added
    if total > defaults.partitions_max:
        raise PolicyViolation(
            f"the cluster would have {total} partitions, and max.partitions allows"
            f" {defaults.partitions_max}: request fewer, delete topics, or raise the limit"
        )


def _check_assignment(image: ClusterImage, wanted: NewTopic) -> Sequence[Sequence[BrokerId]]:
    if wanted.partition_count != BROKER_DEFAULT or wanted.replication_factor != BROKER_DEFAULT:
        raise InvalidRequest(
            "give either the replicas of each partition or two numbers: with an assignment, the"
            " partition count and the replication factor must be -1"
        )
    if sorted(wanted.assignment) != list(range(len(wanted.assignment))):
        raise InvalidReplicaAssignment(
            f"assigned partitions must be 0, 1, 2 and so on, not {sorted(wanted.assignment)}"
        )
    placed = [tuple(wanted.assignment[index]) for index in range(len(wanted.assignment))]
    for replicas in placed:
        _check_replicas(image, replicas, len(placed[0]))
    return placed


def _check_added_assignments(
    image: ClusterImage, assignments: Sequence[Sequence[BrokerId]], added: int, factor: int
) -> Sequence[Sequence[BrokerId]]:
    if len(assignments) != added:
        raise InvalidReplicaAssignment(
            f"{added} partitions are added, so {added} assignments are needed,"
            f" not {len(assignments)}"
        )
    for replicas in assignments:
        _check_replicas(image, replicas, factor)
    return assignments


def _check_replicas(image: ClusterImage, replicas: Sequence[BrokerId], factor: int) -> None:
    if not replicas:
        raise InvalidReplicaAssignment("every partition needs at least one replica")
    if len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignment(
            f"{list(replicas)} names a broker twice: a broker has one replica of a partition"
        )
    if unknown := sorted(set(replicas) - image.brokers.keys()):
        raise InvalidReplicaAssignment(
            f"brokers {unknown} are not alive: choose from {sorted(image.brokers)}"
        )
    if len(replicas) != factor:
        raise InvalidReplicaAssignment(
            f"all partitions of a topic have equally many replicas: {factor}, not"
            f" {len(replicas)} as in {list(replicas)}"
        )
