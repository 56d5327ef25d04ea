"""The cluster as a client sees it: which brokers there are, and who leads which partition."""

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.errors import ErrorCode
from ottla.model import BrokerId, Endpoint, LeaderEpoch, TopicPartition, Uuid
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition; `leader` is None while nobody leads it."""

    index: int
    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic with its partitions in order; `error` is why there are none."""

    name: str
    id: Uuid
    is_internal: bool
    partitions: tuple[PartitionView, ...]
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class ClusterView:
    """An answer to a metadata request; topics that were not asked for are not in it."""

    brokers: Mapping[BrokerId, Endpoint]
    topics: Mapping[str, TopicView]

    def leader_of(self, tp: TopicPartition) -> BrokerId | None:
        """Who leads a partition, as far as this view knows."""
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition].leader


def view_of(answer: MetadataResponse) -> ClusterView:
    """Read an answer."""
    return ClusterView(
        {BrokerId(item.node_id): Endpoint(item.host, item.port) for item in answer.brokers},
        {item.name: _topic(item.name, item) for item in answer.topics if item.name is not None},
    )


def _topic(name: str, answer: MetadataResponseTopic) -> TopicView:
    partitions = sorted(answer.partitions, key=lambda item: item.partition_index)
    return TopicView(
        name=name,
        id=answer.topic_id,
        is_internal=answer.is_internal,
        partitions=tuple(map(_partition, partitions)),
        error=ErrorCode(answer.error_code),
    )


def _partition(answer: MetadataResponsePartition) -> PartitionView:
    return PartitionView(
        index=answer.partition_index,
        leader=None if answer.leader_id < 0 else BrokerId(answer.leader_id),
        leader_epoch=LeaderEpoch(answer.leader_epoch),
        replicas=tuple(map(BrokerId, answer.replica_nodes)),
        isr=tuple(map(BrokerId, answer.isr_nodes)),
    )
