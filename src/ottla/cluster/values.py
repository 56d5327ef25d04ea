"""Keys of the coordination store, and the values that they have."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NewType

from ottla.model import (
    NO_EPOCH,
    BrokerId,
    Endpoint,
    LeaderEpoch,
    Uuid,
    format_uuid,
    parse_uuid,
)

ClusterId = NewType("ClusterId", str)

NO_CLUSTER: Final = ClusterId("")  # of a store that no broker has used yet

CLIENT_LISTENER: Final = "PLAINTEXT"  # Kafka's name for a listener without TLS and authentication
NEVER_RETIRED: Final = -1
UNREGISTERED: Final = -1  # the epoch of a broker that the store does not know yet

DELAY_FEATURE: Final = "delay"  # hides records that wait, and delivers them
FEATURES: Final = frozenset({DELAY_FEATURE})  # those of this program that all brokers have to know

CLUSTER_KEY: Final = "cluster"
CATALOG_KEY: Final = "catalog"
BEAT_KEY: Final = "beat"  # written at fixed times, so that a watch that is silent is noticed
BROKER_SETTINGS_KEY: Final = "settings/brokers"
BROKER_SETTINGS_PREFIX: Final = "settings/brokers/"
GROUP_SETTINGS_PREFIX: Final = "settings/groups/"
BROKER_PREFIX: Final = "brokers/"
READY_PREFIX: Final = "ready/"
MEMBER_PREFIX: Final = "members/"
SUSPICION_PREFIX: Final = "suspected/"
TOPIC_PREFIX: Final = "topics/"
PARTITION_PREFIX: Final = "partitions/"
MAKING_PREFIX: Final = "making/"
TOMBSTONE_PREFIX: Final = "deleted/"


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker. Its epoch is the revision of its registration: a later one is larger.

    `listeners` are the addresses for clients, by name. `token` is known only to this
    process and those that read the store: it proves to its peers who fetches from them.
    `features` are those that its program knows; programs before them have registered none.
    """

    id: BrokerId
    listeners: Mapping[str, Endpoint]
    rack: str | None = None
    machine: str | None = None
    token: bytes = b""
    epoch: int = UNREGISTERED
    features: frozenset[str] = FEATURES

    @property
    def endpoint(self) -> Endpoint:
        return self.listeners[CLIENT_LISTENER]


@dataclass(frozen=True, slots=True)
class Ready:
    """A registered broker has opened its logs: from now on it may lead and be in sync."""

    id: BrokerId
    epoch: int  # of the registration that it is about


@dataclass(frozen=True, slots=True)
class Member:
    """A broker that has been part of the cluster; this key outlives its lease."""

    id: BrokerId
    epoch: int  # of its last registration that became ready
    rack: str | None = None
    machine: str | None = None
    is_draining: bool = False  # an operator wants its replicas to be moved to other brokers
    generation: int = 0  # of its disk, raised now and then: a lower one there is an older copy


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A broker at which nothing listens any more, as far as some of its peers can tell."""

    id: BrokerId
    epoch: int  # of the registration that it is about
    by: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """Replicas, ISR and leader of one partition; None while no replica can safely lead.

    `leader_epoch` counts changes of the leader, `partition_epoch` every change of this value.
    `elr` are the eligible leader replicas of KIP-966: outside the ISR, and with everything that
    was committed, because they left it when it had fewer members than `min.insync.replicas`.

    While the partition moves, `replicas` are its target and then those in `removing`, which go when
    the whole target is in sync. `adding` are those that were no replicas when the move began: they
    go if it is cancelled. A replica is both if the target changed on the way.
    """

    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    partition_epoch: int
    elr: tuple[BrokerId, ...] = ()
    unclean_epoch: LeaderEpoch = NO_EPOCH  # of the last leader that was elected uncleanly
    is_new: bool = False  # its leader has not begun: nothing was committed, so no log is missing
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    # Partitions of the topic that batches for this one were forwarded to, the last one last: that
    # is where they go while the partition is sealed.
    forwarded_to: tuple[int, ...] = ()
    reopened_epoch: LeaderEpoch = NO_EPOCH  # of the leader when it was last sealed no more
    retired_ms: int = NEVER_RETIRED  # when it was found to have no records to read, while sealed

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas after the move that is under way, or as they are."""
        if not self.removing:
            return self.replicas
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def original(self) -> tuple[BrokerId, ...]:
        """The replicas before the move that is under way, or as they are."""
        if not self.adding:
            return self.replicas
        return tuple(broker for broker in self.replicas if broker not in self.adding)


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic's own key. Each of its partitions has another, so that they change independently.

    `listed_count` says how many of them clients see; None means all.
    """

    name: str
    id: Uuid
    partition_count: int
    config: Mapping[str, str] = field(default_factory=dict)
    is_internal: bool = False
    listed_count: int | None = None


@dataclass(frozen=True, slots=True)
class Making:
    """A topic of which so many partitions are being written, too many for one commit.

    The commit that writes the topic's key removes this one. Until then the partitions do not count,
    and a commit that removes this key first stops the creation.
    """

    id: Uuid
    topic: str
    partition_count: int


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
class StoredSettings:
    """Settings changed at run time: of all brokers, of one or of a group, depending on the key."""

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


Value = (
    StoredTopic
    | PartitionImage
    | Making
    | Tombstone
    | BrokerImage
    | Ready
    | Member
    | Suspicion
    | StoredSettings
    | Catalog
    | ClusterIdentity
)


@dataclass(frozen=True, slots=True)
class Change:
    """The new value of one key of the store; None when it is removed."""

    key: str
    value: Value | None


def topic_key(name: str) -> str:
    return TOPIC_PREFIX + name


def partition_key(topic_id: Uuid, index: int) -> str:
    return f"{_partitions_of(topic_id)}{index}"


@lru_cache(maxsize=4096)
def _partitions_of(topic_id: Uuid) -> str:
    """The beginning of the keys of a topic's partitions: there may be thousands."""
    return f"{PARTITION_PREFIX}{format_uuid(topic_id)}/"


def parse_partition_key(key: str) -> tuple[Uuid, int]:
    """The inverse of `partition_key`."""
    topic_id, _, index = key.removeprefix(PARTITION_PREFIX).partition("/")
    return _parse_topic_id(topic_id), int(index)


@lru_cache(maxsize=4096)
def _parse_topic_id(text: str) -> Uuid:
    """Remembered, as `_partitions_of`."""
    return parse_uuid(text)


def making_key(topic_id: Uuid) -> str:
    return MAKING_PREFIX + format_uuid(topic_id)


def tombstone_key(topic_id: Uuid) -> str:
    return TOMBSTONE_PREFIX + format_uuid(topic_id)


def broker_key(broker: BrokerId) -> str:
    return f"{BROKER_PREFIX}{broker}"


def ready_key(broker: BrokerId) -> str:
    return f"{READY_PREFIX}{broker}"


def member_key(broker: BrokerId) -> str:
    return f"{MEMBER_PREFIX}{broker}"


def suspicion_key(broker: BrokerId) -> str:
    return f"{SUSPICION_PREFIX}{broker}"


def broker_settings_key(broker: BrokerId | None) -> str:
    """The key of one broker's settings, or with None of those of all brokers."""
    return BROKER_SETTINGS_KEY if broker is None else f"{BROKER_SETTINGS_PREFIX}{broker}"


def group_settings_key(group_id: str) -> str:
    return GROUP_SETTINGS_PREFIX + group_id
