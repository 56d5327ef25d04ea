"""Topics as consumer groups see them: ids, names, and numbers of partitions."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from ottla.model import Uuid


class Topic(Protocol):
    """A topic of the cluster's image."""

    @property
    def id(self) -> Uuid: ...
    @property
    def listed_count(self) -> int: ...
    @property
    def is_internal(self) -> bool: ...


class Topics(Protocol):
    """All topics of one image; `topics` is the same object as long as nothing has changed."""

    @property
    def topics(self) -> Mapping[str, Topic]: ...
    @property
    def topic_names(self) -> Mapping[Uuid, str]: ...


@dataclass(frozen=True, slots=True)
class NoTopics:
    """A cluster without topics."""

    topics: Mapping[str, Topic] = field(default_factory=dict)
    topic_names: Mapping[Uuid, str] = field(default_factory=dict)


NO_TOPICS: Final = NoTopics()


class IdPartition(NamedTuple):
    """A partition by its topic's id: a topic that is created again is another one."""

    topic_id: Uuid
    partition: int


Partitions = frozenset[IdPartition]
NOTHING: Partitions = frozenset()


def by_topic(partitions: Iterable[IdPartition]) -> dict[Uuid, list[int]]:
    """Partition indexes by topic id, sorted, as messages and records have them."""
    grouped: dict[Uuid, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        grouped.setdefault(topic_id, []).append(partition)
    return grouped


def of_names(named: Mapping[str, Iterable[int]], topics: Topics) -> Partitions:
    """Partitions with topic ids instead of names; those of deleted topics are left out."""
    return frozenset(
        IdPartition(topics.topics[name].id, partition)
        for name, partitions in named.items()
        if name in topics.topics
        for partition in partitions
    )


def to_names(partitions: Iterable[IdPartition], topics: Topics) -> dict[str, list[int]]:
    """The inverse of `of_names`."""
    return {
        topics.topic_names[topic_id]: found
        for topic_id, found in by_topic(partitions).items()
        if topic_id in topics.topic_names
    }


def topics_fingerprint(names: Collection[str], topics: Topics) -> int:
    """A hash that changes when one of these topics is created, deleted, extended or shortened.

    Only ever compared with one that was computed here, so any good hash will do.
    """
    known = sorted(name for name in names if name in topics.topics)
    if not known:
        return 0
    digest = blake2b(digest_size=8)
    for name in known:
        topic = topics.topics[name]
        digest.update(b"%b\0%b%d\0" % (name.encode(), topic.id, topic.listed_count))
    return int.from_bytes(digest.digest(), "big", signed=True)
