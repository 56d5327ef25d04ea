"""The cluster as one immutable value: brokers, topics, partition leaders, settings."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, assert_never

from ottla.cluster.shared_mappings import CopiedMapping, KeyRevisions
from ottla.cluster.store import NEVER, Revision
from ottla.cluster.values import (
    BROKER_PREFIX,
    BROKER_SETTINGS_KEY,
    BROKER_SETTINGS_PREFIX,
    GROUP_SETTINGS_PREFIX,
    MAKING_PREFIX,
    MEMBER_PREFIX,
    NO_CLUSTER,
    PARTITION_PREFIX,
    READY_PREFIX,
    SUSPICION_PREFIX,
    TOMBSTONE_PREFIX,
    TOPIC_PREFIX,
    BrokerImage,
    Catalog,
    Change,
    ClusterId,
    ClusterIdentity,
    Making,
    Member,
    PartitionImage,
    Ready,
    StoredSettings,
    StoredTopic,
    Suspicion,
    Tombstone,
    Value,
    parse_partition_key,
)
from ottla.config.topic import ACTIVE_PARTITIONS, ALL_PARTITIONS
from ottla.model import BrokerId, TopicPartition, Uuid, parse_uuid


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; `config` has only the settings made for it, by Kafka's dotted names."""

    name: str
    id: Uuid
    partitions: tuple[PartitionImage, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    is_internal: bool = False
    listed: int | None = None  # see `listed_count`

    @property
    def active_count(self) -> int:
        """The partitions that producers write to are those below this number.

        The others are sealed: batches for them are forwarded, and their records can be read.
        """
        active = int(self.config.get(ACTIVE_PARTITIONS, ALL_PARTITIONS))
        return len(self.partitions) if active == ALL_PARTITIONS else active

    @property
    def listed_count(self) -> int:
        """The partitions that clients see are those below this number."""
        return len(self.partitions) if self.listed is None else self.listed


def fold_name(topic: str) -> str | None:
    """A topic's name in metrics, where "." and "_" are the same; None without either."""
    return topic.replace(".", "_") if "." in topic or "_" in topic else None


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The content of the store at one revision. Never changed, only replaced."""

    revision: Revision = NEVER
    cluster_id: ClusterId = NO_CLUSTER
    registered: Mapping[BrokerId, BrokerImage] = field(default_factory=dict)
    ready: Mapping[BrokerId, Ready] = field(default_factory=dict)
    # Alive: registered, and ready since then. All others count as dead.
    brokers: Mapping[BrokerId, BrokerImage] = field(default_factory=dict)
    members: Mapping[BrokerId, Member] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[Uuid, str] = field(default_factory=dict)
    # Partitions of topics that are not there: being made, or just deleted.
    detached: Mapping[Uuid, Mapping[int, PartitionImage]] = field(default_factory=dict)
    suspicions: Mapping[BrokerId, Suspicion] = field(default_factory=dict)
    making: Mapping[Uuid, Making] = field(default_factory=dict)
    tombstones: Mapping[Uuid, Tombstone] = field(default_factory=dict)
    broker_config: Mapping[str, str] = field(default_factory=dict)  # of all brokers
    own_configs: Mapping[BrokerId, Mapping[str, str]] = field(
        default_factory=dict
    )  # of single ones
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    mod_revisions: KeyRevisions = field(default_factory=KeyRevisions)  # of every key
    folded_names: Mapping[str, str] = field(default_factory=dict)  # see `fold_name`
    partition_count: int = 0  # of all topics together
    # How `topics` came from those of the image before: see `topic_changes`.
    touched: "Touched | None" = field(default=None, compare=False, repr=False)

    @staticmethod
    def load(written: Iterable[tuple[Change, Revision]], revision: Revision) -> "ClusterImage":
        """The image of a whole store, in the order of its keys: partitions before topics."""
        draft = ImageDraft(ClusterImage())
        for change, mod_revision in written:
            draft.apply(change, mod_revision)
        return draft.at(revision)

    def apply(self, changes: Iterable[Change], revision: Revision) -> "ClusterImage":
        """The image after one commit; unchanged parts are shared with this one."""
        draft = ImageDraft(self)
        for change in sorted(changes, key=_rank):
            draft.apply(change, revision)
        return draft.at(revision)

    def mod_revision(self, key: str) -> Revision:
        """The revision that wrote `key`, as far as this image knows."""
        return self.mod_revisions.revision_of(key)

    def topic_by_id(self, topic_id: Uuid) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, tp: TopicPartition) -> PartitionImage | None:
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition]

    def config_of(self, broker: BrokerId | None) -> Mapping[str, str]:
        """The changed settings of one broker, or with None those of all brokers."""
        return self.broker_config if broker is None else self.own_configs.get(broker, {})

    @property
    def draining(self) -> frozenset[BrokerId]:
        """The brokers whose replicas are to be moved to others, dead ones included."""
        return frozenset(one.id for one in self.members.values() if one.is_draining)

    @property
    def controller_id(self) -> BrokerId | None:
        """The broker that acts as controller: the live one with the lowest id, without election."""
        return min(self.brokers, default=None)


@dataclass(frozen=True, slots=True)
class Touched:
    """Topics that differ from those before, each with its partitions that were written."""

    before: Mapping[str, TopicImage]
    indexes: Mapping[str, Mapping[int, None]]


class TopicChange(NamedTuple):
    """A topic that differs between two images, or is in one of them only.

    `indexes` are the partitions that differ, of those that the same topic has in both, in no
    particular order.
    """

    name: str
    old: TopicImage | None
    new: TopicImage | None
    indexes: Collection[int]

    @property
    def is_same(self) -> bool:
        """True if the topic is in both images; one of its name may have replaced it."""
        return self.old is not None and self.new is not None and self.old.id == self.new.id


def topic_changes(
    before: Mapping[str, TopicImage], after: Mapping[str, TopicImage], touched: Touched | None
) -> list[TopicChange]:
    """The topics in which two images differ. `touched` is that of the image with `after`.

    From one image to the next this looks at what the store has changed; if there were others in
    between, at all partitions of the topics that differ.
    """
    if before is after:
        return []
    if touched is not None and touched.before is before:
        return [
            _topic_change(name, before, after, indexes) for name, indexes in touched.indexes.items()
        ]
    names = dict.fromkeys((*before, *after))
    return [
        _topic_change(name, before, after, None)
        for name in names
        if before.get(name) is not after.get(name)
    ]


def _topic_change(
    name: str,
    before: Mapping[str, TopicImage],
    after: Mapping[str, TopicImage],
    written: Collection[int] | None,
) -> TopicChange:
    old, new = before.get(name), after.get(name)
    if old is None or new is None or old.id != new.id:
        return TopicChange(name, old, new, ())
    was, now = old.partitions, new.partitions
    both = range(min(len(was), len(now)))
    looked_at = both if written is None else [index for index in written if index in both]
    return TopicChange(name, old, new, [one for one in looked_at if was[one] is not now[one]])


def _rank(change: Change) -> int:
    """A topic comes after its partitions and goes before them, whatever order a store reports."""
    if change.key.startswith(TOPIC_PREFIX):
        return 0 if change.value is None else 2
    return 1


class PartitionMissing(Exception):
    """A topic's key counts a partition that has no key: the store has lost it."""

    def __init__(self, topic: StoredTopic, index: int) -> None:
        super().__init__(f"partition {index} of topic {topic.name!r} is missing")
        self.topic = topic
        self.index = index


class EpochWentBack(Exception):
    """A change gives a partition a lower epoch: the store was restored from an older copy."""


class ImageDraft:
    """A mutable copy of an image: each mapping is copied once, before its first write.

    So a thousand changes cost one copy. The image of `at` is valid until the next `apply`.
    """

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self.cluster_id = image.cluster_id
        self.broker_config = image.broker_config
        self.own_configs = image.own_configs
        self.group_configs = CopiedMapping(image.group_configs)
        self.partition_count = image.partition_count
        self.registered = CopiedMapping(image.registered)
        self.ready = CopiedMapping(image.ready)
        self.brokers = CopiedMapping(image.brokers)
        self.members = CopiedMapping(image.members)
        self.topics = CopiedMapping(image.topics)
        self.topic_names = CopiedMapping(image.topic_names)
        self.detached = CopiedMapping(image.detached)
        self.suspicions = CopiedMapping(image.suspicions)
        self.making = CopiedMapping(image.making)
        self.tombstones = CopiedMapping(image.tombstones)
        self.mod_revisions = image.mod_revisions.draft()
        self.folded_names = CopiedMapping(image.folded_names)
        self._copied: dict[Uuid, dict[int, PartitionImage]] = {}  # of `detached`
        self._touched: dict[str, dict[int, None]] = {}
        self._written: dict[str, list[PartitionImage]] = {}  # not in `topics` yet, see `_topic`

    def at(self, revision: Revision) -> ClusterImage:
        """The image with all changes applied so far."""
        assert revision >= self.image.revision, f"revision {revision} is older than the image's"
        for name in list(self._written):
            self._topic(name)
        return ClusterImage(
            revision=revision,
            cluster_id=self.cluster_id,
            registered=self.registered.now,
            ready=self.ready.now,
            brokers=self.brokers.now,
            members=self.members.now,
            topics=self.topics.now,
            topic_names=self.topic_names.now,
            detached=self.detached.now,
            suspicions=self.suspicions.now,
            making=self.making.now,
            tombstones=self.tombstones.now,
            broker_config=self.broker_config,
            own_configs=self.own_configs,
            group_configs=self.group_configs.now,
            mod_revisions=self.mod_revisions.now,
            folded_names=self.folded_names.now,
            partition_count=self.partition_count,
            touched=Touched(self.image.topics, self._touched),
        )

    def apply(self, change: Change, revision: Revision) -> None:
        """Apply one change, written by `revision`; a topic after its partitions."""
        if change.value is None:
            self.mod_revisions.remove(change.key)
            self._remove(change.key)
        else:
            self.mod_revisions.put(change.key, revision)
            self._put(change.key, change.value, revision)

    def _put(self, key: str, value: Value, revision: Revision) -> None:
        match value:
            case PartitionImage():
                self._put_partition(*parse_partition_key(key), value)
            case StoredTopic():
                self._put_topic(value)
            case Making() | Tombstone():
                self._put_mark(value)
            case BrokerImage() | Ready() | Member():
                self._put_broker(value, revision)
            case Suspicion():
                self.suspicions.writable()[value.id] = value
            case StoredSettings(values):
                self._put_settings(key, values)
            case ClusterIdentity(cluster_id):
                self.cluster_id = cluster_id
            case Catalog():
                pass
            case _ as never:
                assert_never(never)

    def _put_mark(self, value: Making | Tombstone) -> None:
        if isinstance(value, Making):
            self.making.writable()[value.id] = value
        else:
            self.tombstones.writable()[value.id] = value

    def _put_broker(self, value: BrokerImage | Ready | Member, revision: Revision) -> None:
        if isinstance(value, Member):
            self.members.writable()[value.id] = value
            return
        if isinstance(value, BrokerImage):
            self.registered.writable()[value.id] = replace(value, epoch=revision)
        else:
            self.ready.writable()[value.id] = value
        self._judge_alive(value.id)

    def _put_settings(self, key: str, values: Mapping[str, str]) -> None:
        if key == BROKER_SETTINGS_KEY:
            self.broker_config = values
        elif key.startswith(GROUP_SETTINGS_PREFIX):
            self.group_configs.writable()[key.removeprefix(GROUP_SETTINGS_PREFIX)] = values
        else:
            broker = BrokerId(int(key.removeprefix(BROKER_SETTINGS_PREFIX)))
            self.own_configs = {**self.own_configs, broker: values}

    def _judge_alive(self, broker: BrokerId) -> None:
        registered, ready = self.registered.now.get(broker), self.ready.now.get(broker)
        if registered is not None and ready is not None and registered.epoch == ready.epoch:
            self.brokers.writable()[broker] = registered
        elif broker in self.brokers.now:
            del self.brokers.writable()[broker]

    def _put_partition(self, topic_id: Uuid, index: int, partition: PartitionImage) -> None:
        name = self.topic_names.now.get(topic_id)
        topic = None if name is None else self.topics.now[name]
        if topic is None or index >= len(topic.partitions):
            self._held(topic_id)[index] = partition
            return
        written = self._written.get(topic.name)
        if written is None:
            written = self._written[topic.name] = list(topic.partitions)
        _check_epochs(topic.name, index, written[index], partition)
        written[index] = partition
        self._touched.setdefault(topic.name, {})[index] = None

    def _topic(self, name: str) -> TopicImage | None:
        """A topic with all its partitions as they were written: copied once for all of them."""
        topic = self.topics.now.get(name)
        if (written := self._written.pop(name, None)) is None:
            return topic
        assert topic is not None, f"partitions of {name} were written, which is not there"
        topic = self.topics.writable()[name] = replace(topic, partitions=tuple(written))
        return topic

    def _put_topic(self, stored: StoredTopic) -> None:
        old = self._topic(stored.name)
        known = () if old is None or old.id != stored.id else old.partitions
        assert len(known) <= stored.partition_count, f"{stored.name} would lose partitions"
        if old is not None and old.id != stored.id:
            self._drop_topic(stored.name)
        added = self._attach(stored, len(known))
        self.topics.writable()[stored.name] = TopicImage(
            stored.name,
            stored.id,
            (*known, *added),
            stored.config,
            stored.is_internal,
            stored.listed_count,
        )
        self.topic_names.writable()[stored.id] = stored.name
        if (folded := fold_name(stored.name)) is not None:
            self.folded_names.writable()[folded] = stored.name
        self.partition_count += len(added)
        self._touched.setdefault(stored.name, {})

    def _attach(self, stored: StoredTopic, first: int) -> list[PartitionImage]:
        """The detached partitions from `first` on that the topic's key now counts."""
        if first == stored.partition_count:
            return []
        held = self._held(stored.id)
        added = []
        for index in range(first, stored.partition_count):
            if index not in held:
                raise PartitionMissing(stored, index)
            added.append(held.pop(index))
        self._forget_empty(stored.id)
        return added

    def _drop_topic(self, name: str) -> None:
        old = self._topic(name)
        if old is None:
            return
        self._touched.setdefault(name, {})
        del self.topics.writable()[name]
        del self.topic_names.writable()[old.id]
        if (folded := fold_name(name)) is not None:
            self.folded_names.writable().pop(folded, None)
        self.partition_count -= len(old.partitions)
        self._held(old.id).update(enumerate(old.partitions))
        self._forget_empty(old.id)

    def _drop_partition(self, topic_id: Uuid, index: int) -> None:
        name = self.topic_names.now.get(topic_id)
        if name is not None and index < len(self.topics.now[name].partitions):
            topic = self.topics.now[name]
            stored = StoredTopic(topic.name, topic.id, len(topic.partitions))
            raise PartitionMissing(stored, index)
        self._held(topic_id).pop(index, None)
        self._forget_empty(topic_id)

    def _held(self, topic_id: Uuid) -> dict[int, PartitionImage]:
        """The detached partitions of a topic, to be changed: copied once, as the mappings are."""
        held = self._copied.get(topic_id)
        if held is None:
            held = self._copied[topic_id] = dict(self.detached.now.get(topic_id, {}))
            self.detached.writable()[topic_id] = held
        return held

    def _forget_empty(self, topic_id: Uuid) -> None:
        if not self.detached.now[topic_id]:
            del self.detached.writable()[topic_id]
            del self._copied[topic_id]

    def _remove(self, key: str) -> None:
        if key.startswith(TOPIC_PREFIX):
            self._drop_topic(key.removeprefix(TOPIC_PREFIX))
        elif key.startswith(PARTITION_PREFIX):
            self._drop_partition(*parse_partition_key(key))
        elif key.startswith(MAKING_PREFIX):
            self.making.writable().pop(parse_uuid(key.removeprefix(MAKING_PREFIX)), None)
        elif key.startswith(TOMBSTONE_PREFIX):
            self.tombstones.writable().pop(parse_uuid(key.removeprefix(TOMBSTONE_PREFIX)), None)
        elif key.startswith((BROKER_PREFIX, READY_PREFIX, MEMBER_PREFIX)):
            self._remove_broker(key)
        elif key.startswith(SUSPICION_PREFIX):
            suspected = BrokerId(int(key.removeprefix(SUSPICION_PREFIX)))
            self.suspicions.writable().pop(suspected, None)
        elif key == BROKER_SETTINGS_KEY:
            self.broker_config = {}
        elif key.startswith(GROUP_SETTINGS_PREFIX):
            self.group_configs.writable().pop(key.removeprefix(GROUP_SETTINGS_PREFIX), None)
        elif key.startswith(BROKER_SETTINGS_PREFIX):
            gone = BrokerId(int(key.removeprefix(BROKER_SETTINGS_PREFIX)))
            kept = ((one, values) for one, values in self.own_configs.items() if one != gone)
            self.own_configs = dict(kept)

    def _remove_broker(self, key: str) -> None:
        kind, _, number = key.rpartition("/")
        broker = BrokerId(int(number))
        if kind + "/" == MEMBER_PREFIX:
            self.members.writable().pop(broker, None)
            return
        keys = self.registered if kind + "/" == BROKER_PREFIX else self.ready
        keys.writable().pop(broker, None)
        self._judge_alive(broker)


def _check_epochs(topic: str, index: int, before: PartitionImage, after: PartitionImage) -> None:
    """Raise EpochWentBack if an epoch of a partition is lower than it was."""
    if after.leader_epoch < before.leader_epoch or after.partition_epoch < before.partition_epoch:
        was = f"{before.leader_epoch} and {before.partition_epoch}"
        raise EpochWentBack(
            f"{topic}-{index} is at leader epoch {after.leader_epoch} and partition epoch"
            f" {after.partition_epoch}, and was at {was}"
        )
