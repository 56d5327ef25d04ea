"""A cluster's topics, as a coordinator sees them, that a test can change."""

from dataclasses import dataclass, field
from itertools import count

from ottla.coordinator.groups.topics import IdPartition
from ottla.model import Uuid


@dataclass(frozen=True, slots=True)
class FakeTopic:
    id: Uuid
    partitions: range
    is_internal: bool = False

    @property
    def listed_count(self) -> int:
        return len(self.partitions)


@dataclass(frozen=True, slots=True)
class FakeTopics:
    topics: dict[str, FakeTopic] = field(default_factory=dict)
    topic_names: dict[Uuid, str] = field(default_factory=dict)


class TopicCatalog:
    """Its `image` is replaced, never changed, when a topic comes, grows or goes."""

    def __init__(self, **counts: int) -> None:
        self.image = FakeTopics()
        self._numbers = count(1)
        for name, partitions in counts.items():
            self.create(name, partitions)

    def create(self, name: str, partitions: int, *, is_internal: bool = False) -> Uuid:
        topic_id = Uuid(next(self._numbers).to_bytes(16, "big"))
        self._put(name, FakeTopic(topic_id, range(partitions), is_internal))
        return topic_id

    def grow(self, name: str, partitions: int) -> None:
        topic = self.image.topics[name]
        self._put(name, FakeTopic(topic.id, range(partitions), topic.is_internal))

    def delete(self, name: str) -> None:
        topics = {other: topic for other, topic in self.image.topics.items() if other != name}
        self.image = FakeTopics(topics, {topic.id: other for other, topic in topics.items()})

    def partition(self, name: str, partition: int) -> IdPartition:
        return IdPartition(self.image.topics[name].id, partition)

    def all_of(self, *names: str) -> frozenset[IdPartition]:
        """Every partition of those topics that there are."""
        return frozenset(
            IdPartition(self.image.topics[name].id, partition)
            for name in names
            if name in self.image.topics
            for partition in self.image.topics[name].partitions
        )

    def _put(self, name: str, topic: FakeTopic) -> None:
        topics = {**self.image.topics, name: topic}
        self.image = FakeTopics(topics, {one.id: other for other, one in topics.items()})
