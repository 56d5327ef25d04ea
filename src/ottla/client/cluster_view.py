"""The cluster as seen by a client: brokers, topics and partition leaders."""

from collections import Counter
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
    """A partition; `leader` is None while there is none."""

    index: int
    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """A topic with its partitions in order; `error` is the reason if there are none."""

    name: str
    id: Uuid
    is_internal: bool
    partitions: tuple[PartitionView, ...]
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A decoded Metadata response; it has only the requested topics."""

    brokers: Mapping[BrokerId, Endpoint]
    topics: Mapping[str, TopicView]

    def leader_of(self, tp: TopicPartition) -> BrokerId | None:
        """The leader of a partition, as far as this view knows."""
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition].leader


def view_of(response: MetadataResponse) -> ClusterView:
    """The view in a Metadata response."""
    return ClusterView(
        {BrokerId(item.node_id): Endpoint(item.host, item.port) for item in response.brokers},
        {item.name: _topic(item.name, item) for item in response.topics if item.name is not None},
    )


def _topic(name: str, response: MetadataResponseTopic) -> TopicView:
    partitions = sorted(response.partitions, key=lambda item: item.partition_index)
    return TopicView(
        name=name,
        id=response.topic_id,
        is_internal=response.is_internal,
        partitions=tuple(map(_partition, partitions)),
        error=ErrorCode(response.error_code),
    )


def _partition(response: MetadataResponsePartition) -> PartitionView:
    return PartitionView(
        index=response.partition_index,
        leader=None if response.leader_id < 0 else BrokerId(response.leader_id),
        leader_epoch=LeaderEpoch(response.leader_epoch),
        replicas=tuple(map(BrokerId, response.replica_nodes)),
        isr=tuple(map(BrokerId, response.isr_nodes)),
    )


def count_leaders(view: ClusterView) -> Counter[BrokerId]:
    """The partitions that each broker leads."""
    return Counter(
        partition.leader
        for topic in view.topics.values()
        for partition in topic.partitions
        if partition.leader is not None
    )


def count_replicas(view: ClusterView) -> Counter[BrokerId]:
    """The partitions that each broker has a replica of."""
    return Counter(
        broker
        for topic in view.topics.values()
        for partition in topic.partitions
        for broker in partition.replicas
    )
