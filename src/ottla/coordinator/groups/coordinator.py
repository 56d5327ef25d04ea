"""The group coordinator: groups and committed offsets, in partitions of `__consumer_offsets`."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from ottla.clock import Clock
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.state import ClusterState
from ottla.coordinator.groups.all_groups import AllGroups
from ottla.coordinator.groups.classic_protocol import GroupLimits
from ottla.coordinator.groups.consumer_group import ConsumerLimits
from ottla.coordinator.groups.metrics import collect_groups
from ottla.coordinator.groups.offset_expiry import ExpiredCounts
from ottla.coordinator.groups.records import GroupEvent, OffsetPending, read_entry, to_bytes
from ottla.coordinator.groups.share_group import ShareGroupLimits
from ottla.coordinator.runtime.coordinator import Coordinator
from ottla.coordinator.runtime.internal_topics import OFFSETS_TOPIC, TopicCreator
from ottla.coordinator.runtime.log_entries import Entry, ProducerIdentity, TransactionEnded
from ottla.coordinator.runtime.shard import Shard
from ottla.errors import ApiError
from ottla.model import TopicPartition
from ottla.records.batch import Marker, MarkerKind
from ottla.replication.replicas import Replicas
from ottla.settings import Settings
from ottla.telemetry import Metric

log = logging.getLogger("ottla.coordinator")

_MINUTE_MS: Final = 60_000

GroupShard = Shard[AllGroups, GroupEvent]


class GroupCoordinator(Coordinator[AllGroups, GroupEvent]):
    """Groups by their ids; drops offsets of deleted topics and those that expire."""

    topic = OFFSETS_TOPIC

    def __init__(
        self,
        state: ClusterState,
        replicas: Replicas,
        topics: TopicCreator,
        clock: Clock,
        note_defect: Callable[[BaseException], None],
        *,
        settings: Settings,
        rng: random.Random,
    ) -> None:
        super().__init__(state, replicas, topics, clock, note_defect)
        self._settings = settings
        self._rng = rng

    def new_machine(self, index: int) -> AllGroups:
        return AllGroups(
            self._limits,
            self._new_id,
            self._metadata_bytes_max,
            self._consumer_limits,
            lambda: self._state.image,
            self._has_room,
            self._share_limits,
        )

    def encode(self, record: GroupEvent) -> Entry:
        assert not isinstance(record, TransactionEnded), (
            "a marker is appended by `append_marker`, not as a record"
        )
        producer = record.producer if isinstance(record, OffsetPending) else None
        return Entry(*to_bytes(record), producer)

    def decode(self, entry: Entry | TransactionEnded) -> GroupEvent | None:
        return read_entry(entry)

    def append_marker(
        self, index: int, marker: Marker, producer: ProducerIdentity
    ) -> "asyncio.Future[None]":
        """End a producer's transaction in a partition of the offsets topic.

        Raises an ApiError, and nothing was written, or returns a future of the commit.
        """
        ended = TransactionEnded(producer, marker.kind is MarkerKind.COMMIT)
        return self.shard(index).append_marker(ended, marker, producer)

    def collect(self) -> Iterable[Metric]:
        """Metrics of the groups that are coordinated here."""
        config = self._settings.broker
        return collect_groups(
            self.machines(),
            self._replicas,
            series_max=config.group_metrics_series_max,
            with_partitions=config.group_metrics_partitions,
        )

    # Partitions that are gone

    def note_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """Follow leadership, and drop offsets of partitions that the new image does not list."""
        super().note_image(old, new)
        kept = {name: _listed_still(topic, new) for name, topic in _shrunk_topics(old, new)}
        if kept and not self._is_closed:
            self.spawn(
                self._drop_partitions(
                    lambda tp: tp.partition >= kept.get(tp.topic, tp.partition + 1),
                    list(self._shards.values()),
                )
            )

    async def note_loaded(self, shard: GroupShard) -> None:
        def is_gone(tp: TopicPartition) -> bool:
            topic = self._state.image.topics.get(tp.topic)
            return topic is None or tp.partition >= topic.listed_count

        await self._drop_partitions(is_gone, [shard])

    async def _drop_partitions(
        self, is_gone: Callable[[TopicPartition], bool], shards: Sequence[GroupShard]
    ) -> None:
        for shard in shards:
            try:
                await shard.run(
                    lambda groups, ticket, now_ms: groups.drop_partitions(ticket, is_gone, now_ms)
                )
            except ApiError as problem:  # a shard that loads drops them itself afterwards
                log.debug(
                    "offsets of partitions that are gone kept",
                    extra={"tp": shard.log.partition.tp, "reason": problem},
                )

    # Expiry

    async def expire(self) -> None:
        """Drop offsets whose retention time is over."""
        retention_ms = self._settings.broker.offsets_retention_minutes * _MINUTE_MS
        for shard in list(self._shards.values()):
            tp = shard.log.partition.tp
            try:
                expired: ExpiredCounts = await shard.run(
                    lambda groups, ticket, now_ms: groups.expire(ticket, retention_ms, now_ms)
                )
            except ApiError as problem:
                log.debug("offset expiry postponed", extra={"tp": tp, "reason": problem})
                continue
            if expired.offsets:
                log.info("offsets expired", extra={"tp": tp, "count": expired.offsets})
            if expired.groups:
                log.info(
                    "groups without offsets dropped", extra={"tp": tp, "count": expired.groups}
                )

    # Settings of the machines

    def _has_room(self) -> bool:
        machines = [shard.machine for shard in self._shards.values()]
        count = sum(len(machine.groups) + len(machine.share) for machine in machines)
        return count < self._settings.broker.groups_max

    def _limits(self) -> GroupLimits:
        config = self._settings.broker
        return GroupLimits(
            initial_delay_ms=config.group_initial_rebalance_delay_ms,
            members_max=config.group_size_max,
            session_timeout_min_ms=config.group_session_timeout_min_ms,
            session_timeout_max_ms=config.group_session_timeout_max_ms,
        )

    def _consumer_limits(self, group_id: str) -> ConsumerLimits:
        config = self._settings.broker
        session_ms = config.consumer_group_session_timeout_ms
        interval_ms = config.consumer_group_heartbeat_interval_ms
        own = self._state.image.group_configs.get(group_id)
        if own is not None:
            group = self._settings.group(own)
            session_ms = group.consumer_session_timeout_ms
            interval_ms = group.consumer_heartbeat_interval_ms
        policy = config.consumer_group_migration_policy
        return ConsumerLimits(
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=interval_ms,
            members_max=config.consumer_group_size_max,
            assignors=config.consumer_group_assignors,
            allows_upgrade=policy in {"bidirectional", "upgrade"},
            allows_downgrade=policy in {"bidirectional", "downgrade"},
            classic=self._limits(),
        )

    def _share_limits(self, group_id: str) -> ShareGroupLimits:
        group = self._settings.group(self._state.image.group_configs.get(group_id, {}))
        return ShareGroupLimits(
            session_timeout_ms=group.share_session_timeout_ms,
            heartbeat_interval_ms=group.share_heartbeat_interval_ms,
            members_max=self._settings.broker.share_group_size_max,
        )

    def _metadata_bytes_max(self) -> int:
        return self._settings.broker.offset_metadata_bytes_max

    def _new_id(self) -> str:
        digits = f"{self._rng.getrandbits(128):032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _shrunk_topics(old: ClusterImage, new: ClusterImage) -> Iterator[tuple[str, TopicImage]]:
    """The topics that are deleted, or of which fewer partitions are listed."""
    if old.topics is new.topics:
        return
    for name, topic in old.topics.items():
        if new.topics.get(name) is not topic and _listed_still(topic, new) < topic.listed_count:
            yield name, topic


def _listed_still(topic: TopicImage, new: ClusterImage) -> int:
    """The number of a topic's partitions that the new image lists."""
    now = new.topics.get(topic.name)
    return 0 if now is None or now.id != topic.id else now.listed_count
