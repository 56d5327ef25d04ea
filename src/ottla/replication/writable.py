"""The partitions led here that producers write to directly."""

from collections.abc import Callable, Iterable, Mapping

from ottla.cluster.image import TopicChange, TopicImage
from ottla.cluster.routes import is_direct
from ottla.errors import ApiError, UnknownTopicId
from ottla.model import TopicPartition
from ottla.protocol.hot_fields import TopicKey
from ottla.replication.partition import LeaderPartition, PartitionForwarded


class WritablePartitions:
    """Partitions of `leaders` whose batches are in their own logs, and always were.

    `locate` is called for every batch: it costs the same whether any partition is sealed or not.
    """

    __slots__ = ("_absence", "_leaders", "_partitions", "_topic_names")

    def __init__(
        self,
        leaders: Mapping[tuple[str, int], LeaderPartition],
        topic_names: Mapping[bytes, str],
        absence: Callable[[str, int], ApiError],
    ) -> None:
        self._leaders = leaders
        self._topic_names = topic_names
        self._absence = absence
        self._partitions: dict[tuple[str, int], LeaderPartition] = {}

    def __contains__(self, tp: tuple[str, int]) -> bool:
        return tp in self._partitions

    def locate(self, key: TopicKey, index: int) -> LeaderPartition:
        """The partition, for a topic's name or id; or PartitionForwarded, or another error."""
        if isinstance(key, bytes):
            name = self._topic_names.get(key)
            if name is None:
                raise UnknownTopicId("no topic has this id")
            key = name
        partition = self._partitions.get((key, index))
        if partition is None:
            if (key, index) in self._leaders:
                raise PartitionForwarded(TopicPartition(key, index))
            raise self._absence(key, index)
        return partition

    def add(self, leader: LeaderPartition, topic: TopicImage) -> None:
        """Note that this broker leads a partition from now on."""
        if is_direct(topic, leader.tp.partition):
            self._partitions[leader.tp] = leader

    def remove(self, tp: TopicPartition) -> None:
        self._partitions.pop(tp, None)

    def note_image(self, changes: Iterable[TopicChange]) -> None:
        """Partitions may have been sealed, or are so no more."""
        for change in changes:
            topic = change.new
            if topic is None:
                continue
            indexes: Iterable[int] = change.indexes
            if not change.is_same or change.old is None or change.old.config != topic.config:
                indexes = range(len(topic.partitions))
            for index in indexes:
                if not is_direct(topic, index):
                    self._partitions.pop((change.name, index), None)
