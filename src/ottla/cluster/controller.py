"""What a wish or an event means for the cluster: image in, changes out, or a refusal that helps.

Every function decides on one image and changes nothing; `ClusterState.commit` makes it so.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, Generic, TypeVar

from ottla.cluster.image import (
    CATALOG_KEY,
    BrokerImage,
    BrokerSettings,
    Catalog,
    Change,
    ClusterImage,
    ImageDraft,
    PartitionImage,
    Tombstone,
    TopicImage,
    broker_key,
    broker_settings_key,
    fold_name,
    tombstone_key,
    topic_key,
)
from ottla.cluster.placement import place
from ottla.config import (
    BrokerConfig,
    Kind,
    Setting,
    TopicConfig,
    format_value,
    settings_of,
    shared_broker_settings,
)
from ottla.errors import (
    ApiError,
    ErrorCode,
    FencedLeaderEpoch,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    NotLeader,
    PolicyViolation,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
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

Answer = TypeVar("Answer")

DEFAULT: Final = -1  # "as many as the broker's settings say", as on the wire
UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
FIXED_SETTINGS: Final = frozenset({"node.id", "advertised.listeners"})  # shown, not changed


@dataclass(frozen=True, slots=True)
class Decision(Generic[Answer]):
    """What shall change, and what to answer once it has."""

    changes: tuple[Change, ...]
    answer: Answer


class StalePartitionEpoch(ApiError):
    """The caller's view of the partition is older than the cluster's: look again."""

    code = ErrorCode.INVALID_UPDATE_VERSION


class IneligibleReplica(ApiError):
    """A broker that is not alive cannot be in sync."""

    code = ErrorCode.INELIGIBLE_REPLICA


# Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """What CreateTopics asks for; `assignment` instead of the two numbers names the replicas."""

    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    assignment: Mapping[int, Sequence[BrokerId]] = field(default_factory=dict)
    config: Mapping[str, str | None] = field(default_factory=dict)
    is_internal: bool = False


def create_topic(
    image: ClusterImage,
    wanted: NewTopic,
    defaults: BrokerConfig,
    *,
    new_id: Callable[[], Uuid],
    start: int,
) -> Decision[TopicImage]:
    """A topic with its replicas placed from the broker that `start` (any number) points at."""
    _check_name(image, wanted.name)
    config = _given_config(wanted.config)
    defaults.topic.override(config)
    placed = _place_new_topic(image, wanted, defaults, start)
    _check_partition_limit(image, len(placed), defaults)
    topic = TopicImage(
        name=wanted.name,
        id=_unused_id(image, new_id),
        partitions=tuple(map(_new_partition, placed)),
        config=config,
        is_internal=wanted.is_internal,
    )
    return Decision((Change(CATALOG_KEY, Catalog()), _topic_change(topic)), topic)


def delete_topic(image: ClusterImage, name: str, defaults: BrokerConfig) -> Decision[TopicImage]:
    """The topic goes, its id for ever; the answer is what it was.

    Its tombstone is part of the same commit: without one, no broker removes a log.
    """
    if not defaults.delete_topic:
        raise TopicDeletionDisabled(
            "topics cannot be deleted here: set delete.topic.enable = true on the brokers"
        )
    topic = _find_topic(image, name)
    holders = {broker for partition in topic.partitions for broker in partition.replicas}
    tombstone = Tombstone(topic.id, name, len(topic.partitions), tuple(sorted(holders)))
    return Decision(
        (Change(topic_key(name), None), Change(tombstone_key(topic.id), tombstone)), topic
    )


def logs_removed(
    image: ClusterImage, broker: BrokerId, topic_ids: Collection[Uuid]
) -> Decision[None]:
    """A broker has no logs of these deleted topics left; whoever is last ends the tombstone."""
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
    """A log that lies on a broker's disk, of a topic that may be unknown.

    `partition_count` and `config` count only if the topic has to be made again.
    """

    tp: TopicPartition
    topic_id: Uuid
    broker: BrokerId
    leader_epoch: LeaderEpoch
    partition_count: int
    config: Mapping[str, str]
    is_internal: bool


def adopt_partition(image: ClusterImage, found: FoundPartition) -> Decision[TopicImage]:
    """The log counts again: its topic has its id, its partition, and no older leader epoch."""
    if found.topic_id in image.tombstones:
        raise InvalidRequest(f"the topic {found.tp.topic!r} of this log was deleted")
    topic = image.topic_by_id(found.topic_id)
    if topic is None:
        _check_name(image, found.tp.topic)
        topic = TopicImage(found.tp.topic, found.topic_id, (), found.config, found.is_internal)
    if topic.name != found.tp.topic:
        raise InvalidRequest(f"the topic of this log is called {topic.name!r}")
    count = max(found.tp.partition + 1, len(topic.partitions))
    if not topic.partitions:
        count = max(count, found.partition_count)
    new = (_new_partition((found.broker,)) for _ in range(len(topic.partitions), count))
    grown = replace(topic, partitions=(*topic.partitions, *new))
    adopted = _raise_epoch(grown, found.tp.partition, found.leader_epoch)
    return Decision((Change(CATALOG_KEY, Catalog()), _topic_change(adopted)), adopted)


def raise_epochs(
    image: ClusterImage, epochs: Mapping[TopicPartition, LeaderEpoch]
) -> Decision[None]:
    """Make no partition's leader epoch older than what its log has already seen."""
    topics = dict(image.topics)
    for (name, index), epoch in epochs.items():
        topics[name] = _raise_epoch(topics[name], index, epoch)
    return Decision(_changed(image, topics.values()), None)


def _raise_epoch(topic: TopicImage, index: int, epoch: LeaderEpoch) -> TopicImage:
    partition = topic.partitions[index]
    if partition.leader_epoch >= epoch:
        return topic
    return _with_partition(topic, index, replace(partition, leader_epoch=epoch))


def add_partitions(
    image: ClusterImage,
    name: str,
    total: int,
    defaults: BrokerConfig,
    *,
    start: int,
    assignments: Sequence[Sequence[BrokerId]] | None = None,
) -> Decision[TopicImage]:
    """The topic with `total` partitions; the old ones stay as they are."""
    topic = _find_topic(image, name)
    count = len(topic.partitions)
    if total <= count:
        raise InvalidPartitions(
            f"topic {name!r} has {count} partitions and partitions cannot be taken away:"
            f" ask for {count + 1} or more, not {total}"
        )
    _check_partition_limit(image, total - count, defaults)
    factor = len(topic.partitions[0].replicas)
    placed: Sequence[Sequence[BrokerId]]
    if assignments is None:
        _check_replication_factor(image, factor)
        placed = place(image.brokers.values(), range(count, total), factor, start=start)
    else:
        placed = _check_added_assignments(image, assignments, total - count, factor)
    grown = replace(topic, partitions=topic.partitions + tuple(map(_new_partition, placed)))
    return Decision((Change(CATALOG_KEY, Catalog()), _topic_change(grown)), grown)


def _topic_change(topic: TopicImage) -> Change:
    return Change(topic_key(topic.name), topic)


def _find_topic(image: ClusterImage, name: str) -> TopicImage:
    if (topic := image.topics.get(name)) is None:
        raise UnknownTopicOrPartition(f"there is no topic {name!r}: create it, or list what exists")
    return topic


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


def _unused_id(image: ClusterImage, new_id: Callable[[], Uuid]) -> Uuid:
    """Neither zero nor taken; printed, it does not look like a command line option."""
    while True:
        topic_id = new_id()
        taken = topic_id == NO_UUID or topic_id in image.topic_names
        taken = taken or topic_id in image.tombstones
        if not taken and not format_uuid(topic_id).startswith("-"):
            return topic_id


def _new_partition(replicas: Sequence[BrokerId]) -> PartitionImage:
    return PartitionImage(
        leader=replicas[0],
        leader_epoch=LeaderEpoch(0),
        replicas=tuple(replicas),
        isr=tuple(replicas),
        partition_epoch=0,
    )


# Where replicas go


def _place_new_topic(
    image: ClusterImage, wanted: NewTopic, defaults: BrokerConfig, start: int
) -> Sequence[Sequence[BrokerId]]:
    if wanted.assignment:
        _check_partition_limit(image, len(wanted.assignment), defaults)
        return _check_assignment(image, wanted)
    partition_count, factor = wanted.partition_count, wanted.replication_factor
    if partition_count == DEFAULT:
        partition_count = defaults.partitions_default
    if factor == DEFAULT:
        factor = defaults.default_replication_factor
    if partition_count < 1:
        raise InvalidPartitions(
            f"a topic has 1 or more partitions, not {partition_count}; -1 asks for the default,"
            f" {defaults.partitions_default}"
        )
    # Before placing: a request for two billion partitions must cost nothing.
    _check_partition_limit(image, partition_count, defaults)
    _check_replication_factor(image, factor)
    return place(image.brokers.values(), range(partition_count), factor, start=start)


def _check_replication_factor(image: ClusterImage, factor: int) -> None:
    if factor < 1:
        raise InvalidReplicationFactor(
            f"a partition has 1 or more replicas, not {factor}; -1 asks for the default"
        )
    if factor > len(image.brokers):
        raise InvalidReplicationFactor(
            f"{factor} replicas need as many brokers, and {len(image.brokers)} are alive: start"
            " more brokers, or ask for fewer replicas"
        )


def _check_partition_limit(image: ClusterImage, added: int, defaults: BrokerConfig) -> None:
    total = image.partition_count + added
    if total > defaults.partitions_max:
        raise PolicyViolation(
            f"the cluster would have {total} partitions, and max.partitions allows"
            f" {defaults.partitions_max}: ask for fewer, delete topics, or raise the limit"
        )


def _check_assignment(image: ClusterImage, wanted: NewTopic) -> Sequence[Sequence[BrokerId]]:
    if wanted.partition_count != DEFAULT or wanted.replication_factor != DEFAULT:
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
            f"a broker can hold one replica of a partition, {list(replicas)} names one twice"
        )
    if unknown := sorted(set(replicas) - image.brokers.keys()):
        raise InvalidReplicaAssignment(
            f"brokers {unknown} are not alive; alive are {sorted(image.brokers)}"
        )
    if len(replicas) != factor:
        raise InvalidReplicaAssignment(
            f"all partitions of a topic have equally many replicas: {list(replicas)} should be"
            f" {factor}"
        )


# Settings


class EditKind(IntEnum):
    """What IncrementalAlterConfigs can do to a setting; the numbers are the wire's."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """One step of IncrementalAlterConfigs."""

    kind: EditKind
    name: str
    value: str | None = None


def alter_topic_config(
    image: ClusterImage, name: str, edits: Sequence[ConfigEdit], defaults: BrokerConfig
) -> Decision[None]:
    """Change single settings of a topic and leave the others."""
    config = _edit(_find_topic(image, name).config, edits, _topic_lists(defaults))
    return replace_topic_config(image, name, config, defaults)


def replace_topic_config(
    image: ClusterImage, name: str, config: Mapping[str, str | None], defaults: BrokerConfig
) -> Decision[None]:
    """Give a topic exactly these settings; one that is not named returns to its default."""
    topic = _find_topic(image, name)
    given = _given_config(config)
    defaults.topic.override(given)
    if given == topic.config:
        return Decision((), None)
    # Settled at once, because the change may have allowed an unclean election.
    unclean = _unclean_rule(image.broker_config, defaults)
    changed = _settle_topic(replace(topic, config=given), image.brokers.keys(), unclean)
    return Decision((_topic_change(changed),), None)


def alter_broker_config(
    image: ClusterImage,
    edits: Sequence[ConfigEdit],
    defaults: BrokerConfig,
    broker: BrokerId | None = None,
) -> Decision[None]:
    """Change single settings of one broker, or of all of them, and leave the others."""
    config = _edit(image.config_of(broker), edits, _broker_lists(defaults))
    return replace_broker_config(image, config, defaults, broker)


def replace_broker_config(
    image: ClusterImage,
    config: Mapping[str, str | None],
    defaults: BrokerConfig,
    broker: BrokerId | None = None,
) -> Decision[None]:
    """Give one broker, or all, exactly these settings, on top of what each was started with."""
    if broker is not None and broker not in image.brokers:
        raise InvalidRequest(f"there is no broker {broker} in this cluster")
    given = _given_config(config)
    _check_changeable(given.keys(), broker)
    BrokerConfig.parse(given)
    if given == image.config_of(broker):
        return Decision((), None)
    key = broker_settings_key(broker)
    change = Change(key, BrokerSettings(given) if given or broker is None else None)
    settled = settle_leaders(image.apply((change,), image.revision), defaults)
    return Decision((change, *settled.changes), None)


def _check_changeable(names: Collection[str], broker: BrokerId | None) -> None:
    """Some are fixed when a broker starts, and about some all brokers must agree."""
    if fixed := sorted(FIXED_SETTINGS.intersection(names)):
        raise InvalidRequest(f"{', '.join(fixed)} cannot be changed while a broker runs")
    if broker is not None and (shared := sorted(shared_broker_settings().intersection(names))):
        raise InvalidRequest(
            f"all brokers share {', '.join(shared)}: change it for all of them (an empty name),"
            f" not for broker {broker}"
        )


def _given_config(config: Mapping[str, str | None]) -> dict[str, str]:
    given = {name: value for name, value in config.items() if value is not None}
    if missing := sorted(config.keys() - given.keys()):
        raise InvalidConfig(
            f"no value given for {', '.join(missing)}: give one, or leave the setting out to get"
            " its default"
        )
    return given


def _edit(
    config: Mapping[str, str], edits: Sequence[ConfigEdit], lists: Mapping[str, str]
) -> dict[str, str]:
    """`config` after all edits; `lists` has the settings that are lists, and their defaults."""
    named = Counter(edit.name for edit in edits)
    if len(named) != len(edits):
        twice = sorted(name for name, times in named.items() if times > 1)
        raise InvalidRequest(f"{', '.join(twice)} named twice: send one change per setting")
    edited = dict(config)
    for edit in edits:
        if edit.kind is EditKind.DELETE:
            edited.pop(edit.name, None)
        else:
            edited[edit.name] = _edited_value(edited.get(edit.name), edit, lists)
    return edited


def _edited_value(current: str | None, edit: ConfigEdit, lists: Mapping[str, str]) -> str:
    if edit.value is None:
        raise InvalidRequest(f"no value given for {edit.name}: give one, or delete the setting")
    if edit.kind is EditKind.SET:
        return edit.value
    if edit.name not in lists:
        raise InvalidConfig(
            f"{edit.name} is not a list, so nothing can be appended or subtracted: set it instead"
        )
    items = _split(lists[edit.name] if current is None else current)
    named = _split(edit.value)
    if edit.kind is EditKind.APPEND:
        return ",".join([*items, *(item for item in named if item not in items)])
    return ",".join(item for item in items if item not in named)


def _split(text: str) -> list[str]:
    return [item for item in map(str.strip, text.split(",")) if item]


def _topic_lists(defaults: BrokerConfig) -> dict[str, str]:
    return {row.name: value for row, value in _list_settings(defaults.topic)}


def _broker_lists(defaults: BrokerConfig) -> dict[str, str]:
    own = {row.name: value for row, value in _list_settings(defaults)}
    topic = {
        row.broker_name: value
        for row, value in _list_settings(defaults.topic)
        if row.broker_name is not None
    }
    return own | topic


def _list_settings(config: TopicConfig | BrokerConfig) -> Iterable[tuple[Setting, str]]:
    for name, row in settings_of(type(config)):
        if row.kind is Kind.LIST:
            yield row, format_value(getattr(config, name))


# Brokers and leaders


def register_broker(
    image: ClusterImage, broker: BrokerImage, defaults: BrokerConfig
) -> Decision[None]:
    """A broker has started. Whatever ran under its id before is gone, even if still registered.

    So what it led passes to others in sync, or back to it in a new leader epoch: records that
    were lost with the old process must not be written a second time in the old epoch.
    """
    others = image.brokers.keys() - {broker.id}
    without = (_settle_topic(topic, others, _never) for topic in image.topics.values())
    unclean = _unclean_rule(image.broker_config, defaults)
    topics = [_settle_topic(topic, others | {broker.id}, unclean) for topic in without]
    return Decision((Change(broker_key(broker.id), broker), *_changed(image, topics)), None)


def broker_gone(image: ClusterImage, broker: BrokerId, defaults: BrokerConfig) -> Decision[None]:
    """A broker leaves; others lead what it led, as far as they are in sync."""
    others = image.brokers.keys() - {broker}
    topics = _settle_all(image, others, defaults)
    removed = (Change(broker_key(broker), None),) if broker in image.brokers else ()
    return Decision((*removed, *_changed(image, topics)), None)


def settle_leaders(image: ClusterImage, defaults: BrokerConfig) -> Decision[None]:
    """Take brokers that are gone out of every partition, and give every partition a leader.

    Follows from the image alone, not from an event, so it may be asked at any time and by
    anybody: on a settled image it changes nothing.
    """
    topics = _settle_all(image, image.brokers.keys(), defaults)
    return Decision(_changed(image, topics), None)


def settle(
    partition: PartitionImage, live: AbstractSet[BrokerId], *, allow_unclean: Callable[[], bool]
) -> PartitionImage:
    """The partition, given who is alive. Brokers come into the ISR by `alter_isr` only.

    When the last in-sync replicas are gone the ISR stays: whoever of them returns has everything
    that was acknowledged, and nobody else is known to.
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
    """The leader has seen a follower catch up or fall behind. Only on what it last saw."""
    partition = image.partition(tp)
    if partition is None:
        raise UnknownTopicOrPartition(f"there is no partition {tp}")
    _check_leadership(partition, tp, leader, leader_epoch)
    if partition_epoch != partition.partition_epoch:
        raise StalePartitionEpoch(
            f"{tp} is at partition epoch {partition.partition_epoch}, not {partition_epoch}: read"
            " the partition again, then decide again"
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
    topic = _with_partition(image.topics[tp.topic], tp.partition, changed)
    return Decision(_changed(image, (topic,)), changed)


def _check_leadership(
    partition: PartitionImage, tp: TopicPartition, leader: BrokerId, leader_epoch: LeaderEpoch
) -> None:
    if leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch(
            f"{tp} is at leader epoch {partition.leader_epoch}, {leader_epoch} is over"
        )
    if leader_epoch > partition.leader_epoch:
        raise UnknownLeaderEpoch(
            f"{tp} is at leader epoch {partition.leader_epoch}, {leader_epoch} is not known"
        )
    if leader != partition.leader:
        raise NotLeader(f"broker {leader} does not lead {tp}, {partition.leader} does")


def _advance(
    partition: PartitionImage, leader: BrokerId | None, isr: tuple[BrokerId, ...]
) -> PartitionImage:
    """The only place where epochs grow: with every change of what they count, by one."""
    if leader == partition.leader and isr == partition.isr:
        return partition
    return PartitionImage(
        leader=leader,
        leader_epoch=LeaderEpoch(partition.leader_epoch + (leader != partition.leader)),
        replicas=partition.replicas,
        isr=isr,
        partition_epoch=partition.partition_epoch + 1,
    )


def _with_partition(topic: TopicImage, index: int, partition: PartitionImage) -> TopicImage:
    if partition == topic.partitions[index]:
        return topic
    partitions = (*topic.partitions[:index], partition, *topic.partitions[index + 1 :])
    return replace(topic, partitions=partitions)


UncleanRule = Callable[[TopicImage], bool]


def _settle_all(
    image: ClusterImage, live: AbstractSet[BrokerId], defaults: BrokerConfig
) -> list[TopicImage]:
    unclean = _unclean_rule(image.broker_config, defaults)
    return [_settle_topic(topic, live, unclean) for topic in image.topics.values()]


def _settle_topic(
    topic: TopicImage, live: AbstractSet[BrokerId], unclean: UncleanRule
) -> TopicImage:
    partitions = tuple(
        settle(partition, live, allow_unclean=lambda: unclean(topic))
        for partition in topic.partitions
    )
    return topic if partitions == topic.partitions else replace(topic, partitions=partitions)


def _unclean_rule(broker_config: Mapping[str, str], defaults: BrokerConfig) -> UncleanRule:
    """Whether a topic prefers a leader that lost records to none: by its own word, or ours."""

    def allows(topic: TopicImage) -> bool:
        text = topic.config.get(UNCLEAN_ELECTION, broker_config.get(UNCLEAN_ELECTION))
        own = {} if text is None else {UNCLEAN_ELECTION: text}
        return defaults.topic.override(own).unclean_leader_election_enable

    return allows


def _never(_topic: TopicImage) -> bool:
    return False


def _changed(image: ClusterImage, topics: Iterable[TopicImage]) -> tuple[Change, ...]:
    return tuple(_topic_change(topic) for topic in topics if topic is not image.topics[topic.name])


# Several at once


def decide_each(
    image: ClusterImage, decides: Iterable[Callable[[ClusterImage], Decision[Answer]]]
) -> Decision[tuple[Answer | ApiError, ...]]:
    """One commit for many wishes: each sees what those before it changed, a refused one nothing.

    The answer has, in their order, each wish's own answer or its refusal.
    """
    draft = ImageDraft(image)
    seen = image
    merged: dict[str, Change] = {}
    answers: list[Answer | ApiError] = []
    for decide in decides:
        try:
            decision = decide(seen)
        except ApiError as refusal:
            answers.append(refusal)
            continue
        for change in decision.changes:
            draft.apply(change, image.revision)
            merged[change.key] = change
        seen = draft.at(image.revision)
        answers.append(decision.answer)
    return Decision(tuple(merged.values()), tuple(answers))
