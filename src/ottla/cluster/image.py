"""The cluster as one immutable value: brokers, topics, partition leaders, settings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NewType, Self, assert_never

from ottla.cluster.store import NEVER, Revision
from ottla.model import (
    BrokerId,
    Endpoint,
    LeaderEpoch,
    TopicPartition,
    Uuid,
    format_uuid,
    parse_uuid,
)

ClusterId = NewType("ClusterId", str)

UNREGISTERED: Final = -1  # the epoch of a broker that the store does not know yet

CLUSTER_KEY: Final = "cluster"
CATALOG_KEY: Final = "catalog"
BROKER_SETTINGS_KEY: Final = "settings/brokers"
BROKER_SETTINGS_PREFIX: Final = "settings/brokers/"
BROKER_PREFIX: Final = "brokers/"
TOPIC_PREFIX: Final = "topics/"
TOMBSTONE_PREFIX: Final = "deleted/"


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A live broker. Its epoch is the revision of its registration: a later one is larger."""

    id: BrokerId
    endpoint: Endpoint
    rack: str | None = None
    epoch: int = UNREGISTERED


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """Replicas, ISR and leader of one partition; None while no replica can safely lead.

    `leader_epoch` counts changes of the leader, `partition_epoch` every change of this value.
    """

    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; `config` has only the settings made for it, by Kafka's dotted names."""

    name: str
    id: Uuid
    partitions: tuple[PartitionImage, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A topic that was deleted: the only permission to remove logs that carry its id.

    `brokers` are those that may still have such logs. Each removes itself once its logs are
    gone, and the last one removes the tombstone.
    """

    id: Uuid
    topic: str
    partition_count: int
    brokers: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Settings changed at run time, of all brokers or of one, depending on the key."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Catalog:
    """Rewritten by every commit that adds topics or partitions.

    Rules over all topics together (names that collide, the limit on partitions) would otherwise
    be broken by two commits that each keep them, because they write different keys.
    """


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The cluster id, generated at the first start."""

    id: ClusterId


Value = TopicImage | Tombstone | BrokerImage | BrokerSettings | Catalog | ClusterIdentity


@dataclass(frozen=True, slots=True)
class Change:
    """The new value of one key of the store; None when it is removed."""

    key: str
    value: Value | None


def topic_key(name: str) -> str:
    return TOPIC_PREFIX + name


def tombstone_key(topic_id: Uuid) -> str:
    return TOMBSTONE_PREFIX + format_uuid(topic_id)


def broker_key(broker: BrokerId) -> str:
    return f"{BROKER_PREFIX}{broker}"


def broker_settings_key(broker: BrokerId | None) -> str:
    """The key of one broker's settings, or with None of those of all brokers."""
    return BROKER_SETTINGS_KEY if broker is None else f"{BROKER_SETTINGS_PREFIX}{broker}"


def fold_name(topic: str) -> str | None:
    """A topic's name in metrics, where "." and "_" are the same; None without either."""
    return topic.replace(".", "_") if "." in topic or "_" in topic else None


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The content of the store at one revision. Never changed, only replaced."""

    revision: Revision = NEVER
    cluster_id: ClusterId = ClusterId("")
    brokers: Mapping[BrokerId, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[Uuid, str] = field(default_factory=dict)
    tombstones: Mapping[Uuid, Tombstone] = field(default_factory=dict)
    broker_config: Mapping[str, str] = field(default_factory=dict)  # of all brokers
    own_configs: Mapping[BrokerId, Mapping[str, str]] = field(
        default_factory=dict
    )  # of single ones
    mod_revisions: Mapping[str, Revision] = field(default_factory=dict)  # of every key
    folded_names: Mapping[str, str] = field(default_factory=dict)  # see `fold_name`
    partition_count: int = 0  # of all topics together

    @classmethod
    def load(cls, written: Iterable[tuple[Change, Revision]], revision: Revision) -> Self:
        """The image of a whole store: each value with the revision that wrote it."""
        draft = ImageDraft(ClusterImage())
        for change, mod_revision in written:
            draft.apply(change, mod_revision)
        return cls(revision, *draft.parts())

    def apply(self, changes: Iterable[Change], revision: Revision) -> "ClusterImage":
        """The image after one commit; unchanged parts are shared with this one."""
        draft = ImageDraft(self)
        for change in changes:
            draft.apply(change, revision)
        return draft.at(revision)

    def mod_revision(self, key: str) -> Revision:
        """The revision that wrote `key`, as far as this image knows."""
        return self.mod_revisions.get(key, NEVER)

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
    def controller_id(self) -> BrokerId | None:
        """The broker that acts as controller: the live one with the lowest id, without election."""
        return min(self.brokers, default=None)


class ImageDraft:
    """A mutable copy of an image: each mapping is copied once, before its first write.

    So a thousand changes cost one copy. The image of `at` is valid until the next `apply`.
    """

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self.cluster_id = image.cluster_id
        self.tombstones: dict[Uuid, Tombstone] | None = None
        self.broker_config = image.broker_config
        self.own_configs = image.own_configs
        self.brokers: dict[BrokerId, BrokerImage] | None = None
        self.topics: dict[str, TopicImage] | None = None
        self.topic_names: dict[Uuid, str] | None = None
        self.folded_names: dict[str, str] | None = None
        self.partition_count = image.partition_count
        self.mod_revisions: dict[str, Revision] | None = None

    def at(self, revision: Revision) -> ClusterImage:
        """The image with all changes applied so far."""
        assert revision >= self.image.revision, f"revision {revision} is older than the image's"
        return ClusterImage(revision, *self.parts())

    def apply(self, change: Change, revision: Revision) -> None:
        """Apply one change, written by `revision`."""
        if self.mod_revisions is None:
            self.mod_revisions = dict(self.image.mod_revisions)
        if change.value is None:
            self.mod_revisions.pop(change.key, None)
        else:
            self.mod_revisions[change.key] = revision
        match change.value:
            case TopicImage() as topic:
                self._put_topic(topic)
            case Tombstone() as tombstone:
                self._writable_tombstones()[tombstone.id] = tombstone
            case BrokerImage() as broker:
                registered = BrokerImage(broker.id, broker.endpoint, broker.rack, revision)
                self._writable_brokers()[broker.id] = registered
            case BrokerSettings(values):
                self._put_settings(change.key, values)
            case ClusterIdentity(cluster_id):
                self.cluster_id = cluster_id
            case Catalog():
                pass
            case None:
                self._remove(change.key)
            case _ as never:
                assert_never(never)

    def parts(
        self,
    ) -> tuple[
        ClusterId,
        Mapping[BrokerId, BrokerImage],
        Mapping[str, TopicImage],
        Mapping[Uuid, str],
        Mapping[Uuid, Tombstone],
        Mapping[str, str],
        Mapping[BrokerId, Mapping[str, str]],
        Mapping[str, Revision],
        Mapping[str, str],
        int,
    ]:
        """All fields of an image but its revision, in order."""
        image = self.image
        return (
            self.cluster_id,
            image.brokers if self.brokers is None else self.brokers,
            image.topics if self.topics is None else self.topics,
            image.topic_names if self.topic_names is None else self.topic_names,
            image.tombstones if self.tombstones is None else self.tombstones,
            self.broker_config,
            self.own_configs,
            image.mod_revisions if self.mod_revisions is None else self.mod_revisions,
            image.folded_names if self.folded_names is None else self.folded_names,
            self.partition_count,
        )

    def _put_settings(self, key: str, values: Mapping[str, str]) -> None:
        if key == BROKER_SETTINGS_KEY:
            self.broker_config = values
        else:
            broker = BrokerId(int(key.removeprefix(BROKER_SETTINGS_PREFIX)))
            self.own_configs = {**self.own_configs, broker: values}

    def _writable_brokers(self) -> dict[BrokerId, BrokerImage]:
        if self.brokers is None:
            self.brokers = dict(self.image.brokers)
        return self.brokers

    def _writable_tombstones(self) -> dict[Uuid, Tombstone]:
        if self.tombstones is None:
            self.tombstones = dict(self.image.tombstones)
        return self.tombstones

    def _writable_topics(self) -> tuple[dict[str, TopicImage], dict[Uuid, str], dict[str, str]]:
        if self.topics is None or self.topic_names is None or self.folded_names is None:
            self.topics = dict(self.image.topics)
            self.topic_names = dict(self.image.topic_names)
            self.folded_names = dict(self.image.folded_names)
        return self.topics, self.topic_names, self.folded_names

    def _put_topic(self, topic: TopicImage) -> None:
        topics, names, folded_names = self._writable_topics()
        if (old := topics.get(topic.name)) is not None:
            _check_epochs(old, topic)
            del names[old.id]
            self.partition_count -= len(old.partitions)
        topics[topic.name] = topic
        names[topic.id] = topic.name
        if (folded := fold_name(topic.name)) is not None:
            folded_names[folded] = topic.name
        self.partition_count += len(topic.partitions)

    def _drop_topic(self, name: str) -> None:
        topics, names, folded_names = self._writable_topics()
        if (old := topics.pop(name, None)) is not None:
            del names[old.id]
            if (folded := fold_name(name)) is not None:
                folded_names.pop(folded, None)
            self.partition_count -= len(old.partitions)

    def _remove(self, key: str) -> None:
        if key.startswith(TOPIC_PREFIX):
            self._drop_topic(key.removeprefix(TOPIC_PREFIX))
        elif key.startswith(TOMBSTONE_PREFIX):
            removed = parse_uuid(key.removeprefix(TOMBSTONE_PREFIX))
            self._writable_tombstones().pop(removed, None)
        elif key.startswith(BROKER_PREFIX):
            broker = BrokerId(int(key.removeprefix(BROKER_PREFIX)))
            self._writable_brokers().pop(broker, None)
        elif key == BROKER_SETTINGS_KEY:
            self.broker_config = {}
        elif key.startswith(BROKER_SETTINGS_PREFIX):
            gone = BrokerId(int(key.removeprefix(BROKER_SETTINGS_PREFIX)))
            kept = ((one, values) for one, values in self.own_configs.items() if one != gone)
            self.own_configs = dict(kept)


def _check_epochs(old: TopicImage, new: TopicImage) -> None:
    """Assert that neither partitions nor their epochs of the same topic go back."""
    if old.id != new.id:
        return
    assert len(new.partitions) >= len(old.partitions), f"{new.name} would lose partitions"
    for before, after in zip(old.partitions, new.partitions, strict=False):
        assert after.leader_epoch >= before.leader_epoch, f"{new.name}: {before} to {after}"
        assert after.partition_epoch >= before.partition_epoch, f"{new.name}: {before} to {after}"
