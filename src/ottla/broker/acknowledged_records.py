"""Deletes the records of topics with `delete.acknowledged` that every share group has finished.

A group counts if it subscribes to the topic or has a state of one of its partitions. Nothing is
deleted while a coordinator cannot be asked, a state has no start offset yet, or no group reads a
partition. What a coordinator says is committed: what was acknowledged is deleted after that.
"""

import logging
from typing import Final

from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.state import ClusterState
from ottla.coordinator.groups.coordinator import GroupCoordinator
from ottla.coordinator.runtime.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from ottla.coordinator.share.coordinator import ShareCoordinator
from ottla.errors import ApiError
from ottla.model import Offset, TopicPartition, Uuid
from ottla.queues.share_state import NO_START
from ottla.replication.replicas import Replicas
from ottla.settings import Settings

log = logging.getLogger("ottla.broker")

_SETTING: Final = "delete.acknowledged"


class AcknowledgedRecords:
    """Asks coordinators, and raises the start of logs that are led here."""

    def __init__(
        self,
        state: ClusterState,
        replicas: Replicas,
        settings: Settings,
        groups: GroupCoordinator,
        share: ShareCoordinator,
    ) -> None:
        self._state = state
        self._replicas = replicas
        self._settings = settings
        self._groups = groups
        self._share = share

    async def delete(self) -> None:
        """Delete what is finished, in all topics."""
        image = self._state.image
        if OFFSETS_TOPIC not in image.topics or SHARE_STATE_TOPIC not in image.topics:
            return
        is_any = False
        for topic in queue_topics(image, self._settings):
            try:
                readers = await self._readers(image, topic)
                starts = await self._starts(image, topic.id)
                is_any |= self._advance(topic, readers, starts)
            except ApiError as problem:
                log.debug(
                    "acknowledged records kept", extra={"topic": topic.name, "reason": problem}
                )
        if is_any:
            try:
                await self._replicas.commit_deletions()
            except ApiError as problem:  # the next start may have them again, finished
                log.warning("acknowledged records may come back", extra={"reason": problem})

    async def _readers(self, image: ClusterImage, topic: TopicImage) -> set[str]:
        """The share groups that subscribe to a topic or are to have a state of it."""
        readers: set[str] = set()
        for index in range(len(image.topics[OFFSETS_TOPIC].partitions)):
            found: list[str] = await self._groups.shard(index).run(
                lambda groups, ticket, _: groups.share_readers(ticket, topic.name, topic.id)
            )
            readers.update(found)
        return readers

    async def _starts(self, image: ClusterImage, topic_id: Uuid) -> dict[int, dict[str, Offset]]:
        """Start offsets of share groups, by partition."""
        starts: dict[int, dict[str, Offset]] = {}
        for index in range(len(image.topics[SHARE_STATE_TOPIC].partitions)):
            found: dict[tuple[str, int], Offset] = await self._share.shard(index).run(
                lambda states, ticket, _: states.starts_of(ticket, topic_id)
            )
            for (group_id, partition), start in found.items():
                starts.setdefault(partition, {})[group_id] = start
        return starts

    def _advance(
        self, topic: TopicImage, readers: set[str], starts: dict[int, dict[str, Offset]]
    ) -> bool:
        is_any = False
        for index, by_group in starts.items():
            below = finished_below(readers, by_group)
            partition = self._replicas.leaders.get(TopicPartition(topic.name, index))
            if partition is None or below is None:
                continue
            below = min(below, partition.high_watermark)
            if partition.waiting is not None:
                below = partition.waiting.clear_if_worth(below)
            if below > partition.log.start_offset:
                partition.log.advance_start(below)
                is_any = True
                log.debug(
                    "acknowledged records deleted",
                    extra={"tp": partition.tp, "start_offset": below},
                )
        return is_any


def queue_topics(image: ClusterImage, settings: Settings) -> list[TopicImage]:
    """The topics whose acknowledged records are deleted."""
    found = []
    for topic in image.topics.values():
        if _SETTING in topic.config:
            config = settings.topic(topic.config)
            if config.deletes_acknowledged and "compact" not in config.cleanup_policy:
                found.append(topic)
    return found


def finished_below(readers: set[str], starts: dict[str, Offset]) -> Offset | None:
    """The offset below which all groups have finished a partition; None if that is not known."""
    if not starts or not readers <= starts.keys() or NO_START in starts.values():
        return None
    return min(starts.values())
