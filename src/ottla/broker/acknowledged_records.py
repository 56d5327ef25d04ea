"""Deletes the records of topics with `delete.acknowledged` that every share group has finished.

A group counts if it subscribes to the topic or has a state of one of its partitions. Nothing is
deleted while a coordinator cannot be asked, a state has no start offset yet, or no group reads a
partition. What a coordinator says is committed: what was acknowledged is deleted after that.
"""

import logging
from typing import Final

from ottla.broker.shard_queries import ShardQueries, Starts
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.state import ClusterState
from ottla.coordinator.runtime.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from ottla.errors import ApiError
from ottla.model import Offset, TopicPartition
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
        shards: ShardQueries,
    ) -> None:
        self._state = state
        self._replicas = replicas
        self._settings = settings
        self._shards = shards

    async def delete(self) -> None:
        """Delete what is finished, in all topics."""
        image = self._state.image
        if OFFSETS_TOPIC not in image.topics or SHARE_STATE_TOPIC not in image.topics:
            return
        is_any = False
        for topic in queue_topics(image, self._settings):
            try:
                if not self._is_led_here(topic):
                    continue
                readers = await self._shards.readers(topic)
                starts = await self._shards.starts(topic)
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

    def _is_led_here(self, topic: TopicImage) -> bool:
        """True if this broker leads one of the topic's partitions."""
        leaders = self._replicas.leaders
        return any((topic.name, index) in leaders for index in range(len(topic.partitions)))

    def _advance(self, topic: TopicImage, readers: set[str], starts: Starts) -> bool:
        is_any = False
        by_partition: dict[int, dict[str, Offset]] = {}
        for (group_id, index), start in starts.items():
            by_partition.setdefault(index, {})[group_id] = start
        for index, by_group in by_partition.items():
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
