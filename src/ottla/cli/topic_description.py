"""The data of `ottla topic describe`, collected from the brokers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ottla.client.admin import sizes_on_leaders
from ottla.client.client import Client
from ottla.client.cluster_view import TopicView
from ottla.client.configs import ShownSetting, Source, settings_of, topic_resource
from ottla.client.partitions import list_offsets
from ottla.model import BrokerId, LeaderEpoch, Offset, TopicPartition, format_uuid
from ottla.protocol.messages.offsets import EARLIEST, LATEST


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """A partition; offsets and size are None while it has no leader."""

    index: int
    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    start_offset: Offset | None
    end_offset: Offset | None
    size_bytes: int | None

    def as_json(self) -> dict[str, Any]:
        """The fields of the JSON output."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic with its partitions in order, and its own settings."""

    name: str
    id: str
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]
    own_settings: tuple[ShownSetting, ...]

    def as_json(self) -> dict[str, Any]:
        """The fields of the JSON output."""
        return {
            "name": self.name,
            "id": self.id,
            "internal": self.is_internal,
            "settings": {item.name: item.value for item in self.own_settings},
            "partitions": [partition.as_json() for partition in self.partitions],
        }


async def describe_topics(client: Client, names: Sequence[str]) -> list[TopicDescription]:
    """Descriptions of the named topics in order, or of all that are not internal."""
    view = await client.describe(list(names) or None)
    topics = [view.topics[name] for name in dict.fromkeys(names)] or [
        view.topics[name] for name in sorted(view.topics) if not view.topics[name].is_internal
    ]
    if not topics:
        return []
    led = [
        TopicPartition(topic.name, partition.index)
        for topic in topics
        for partition in topic.partitions
        if partition.leader is not None
    ]
    starts = await list_offsets(client, dict.fromkeys(led, EARLIEST))
    ends = await list_offsets(client, dict.fromkeys(led, LATEST))
    sizes = await sizes_on_leaders(client, led)
    resources = {topic.name: topic_resource(topic.name) for topic in topics}
    settings = await settings_of(client, list(resources.values()))
    return [
        TopicDescription(
            name=topic.name,
            id=format_uuid(topic.id),
            is_internal=topic.is_internal,
            partitions=_partitions(topic, starts, ends, sizes),
            own_settings=tuple(
                item for item in settings[resources[topic.name]] if item.source is Source.TOPIC
            ),
        )
        for topic in topics
    ]


def _partitions(
    topic: TopicView,
    starts: dict[TopicPartition, Offset | None],
    ends: dict[TopicPartition, Offset | None],
    sizes: dict[TopicPartition, int],
) -> tuple[PartitionDescription, ...]:
    described = []
    for partition in topic.partitions:
        tp = TopicPartition(topic.name, partition.index)
        described.append(
            PartitionDescription(
                index=partition.index,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                replicas=partition.replicas,
                isr=partition.isr,
                start_offset=starts.get(tp),
                end_offset=ends.get(tp),
                size_bytes=sizes.get(tp),
            )
        )
    return tuple(described)
