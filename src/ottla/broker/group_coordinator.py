"""The groups of this broker: a shard for each partition of the groups' topic that it leads."""

import logging
import random
from collections.abc import Callable, Sequence
from typing import Final

from ottla.broker.settings import Settings
from ottla.broker.shards import Led, Shards
from ottla.broker.topic_creation import OFFSETS_TOPIC, TopicCreation
from ottla.clock import Clock
from ottla.cluster.image import ClusterImage
from ottla.cluster.state import ClusterState
from ottla.coordinator.classic_group import GroupLimits
from ottla.coordinator.consumer_group import ConsumerLimits
from ottla.coordinator.decision import Outcome, Ticket
from ottla.coordinator.groups import Groups
from ottla.coordinator.log_entries import Entry, TransactionEnded
from ottla.coordinator.records import OffsetPending, Record, read_entry, to_bytes
from ottla.errors import ApiError
from ottla.replication.replicas import Replicas

log = logging.getLogger("ottla.broker")

_MINUTE_MS: Final = 60_000

Decide = Callable[[Groups, Ticket, int], Outcome]


class GroupCoordinator(Shards[Groups]):
    """Groups by their ids, and what becomes of them when topics and time go."""

    topic = OFFSETS_TOPIC

    def __init__(
        self,
        state: ClusterState,
        replicas: Replicas,
        settings: Settings,
        creation: TopicCreation,
        clock: Clock,
        rng: random.Random,
        note_defect: Callable[[BaseException], None],
    ) -> None:
        super().__init__(state, replicas, creation, clock, note_defect)
        self._settings = settings
        self._rng = rng

    def new_machine(self) -> Groups:
        return Groups(
            self._limits,
            self._new_id,
            self._metadata_bytes_max,
            self._consumer_limits,
            lambda: self._state.image,
            self._has_room,
        )

    def encode(self, record: Record) -> Entry:
        producer = record.producer if isinstance(record, OffsetPending) else None
        return Entry(*to_bytes(record), producer)

    def decode(self, entry: Entry | TransactionEnded) -> Record | TransactionEnded | None:
        return read_entry(entry)

    # Topics that go

    def note_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """The cluster has changed: leadership follows in a moment, deleted topics are forgotten."""
        super().note_image(old, new)
        gone = {
            name
            for name, topic in old.topics.items()
            if name not in new.topics or new.topics[name].id != topic.id
        }
        if gone and not self._is_closed:
            self.spawn(self._forget_topics(gone.__contains__, list(self._shards.values())))

    async def note_loaded(self, led: Led[Groups]) -> None:
        await self._forget_topics(lambda name: name not in self._state.image.topics, [led])

    async def _forget_topics(
        self, is_gone: Callable[[str], bool], shards: Sequence[Led[Groups]]
    ) -> None:
        """Offsets of topics that are no more."""
        for led in shards:
            try:
                await led.shard.run(
                    lambda groups, ticket, now_ms: groups.drop_topics(ticket, is_gone, now_ms)
                )
            except ApiError as problem:  # it is loading, and looks for itself, or is lost
                log.debug("offsets of deleted topics stay", extra={"reason": problem})

    # Chores

    async def expire(self) -> None:
        """Forget offsets whose time is over."""
        retention_ms = self._settings.broker.offsets_retention_minutes * _MINUTE_MS
        for led in list(self._shards.values()):
            try:
                count = await led.shard.run(
                    lambda groups, ticket, now_ms: groups.expire(ticket, retention_ms, now_ms)
                )
            except ApiError as problem:
                log.debug("offsets do not expire now", extra={"reason": problem})
                continue
            if count:
                log.info("offsets expired", extra={"tp": led.partition.tp, "count": count})

    # What shards get from the world

    def _has_room(self) -> bool:
        count = sum(len(led.shard.machine.groups) for led in self._shards.values())
        return count < self._settings.broker.groups_max

    def _limits(self) -> GroupLimits:
        config = self._settings.broker
        return GroupLimits(
            initial_delay_ms=config.group_initial_rebalance_delay_ms,
            members_max=config.group_size_max,
            session_timeout_min_ms=config.group_session_timeout_min_ms,
            session_timeout_max_ms=config.group_session_timeout_max_ms,
        )

    def _consumer_limits(self) -> ConsumerLimits:
        config = self._settings.broker
        policy = config.consumer_group_migration_policy
        return ConsumerLimits(
            session_timeout_ms=config.consumer_group_session_timeout_ms,
            heartbeat_interval_ms=config.consumer_group_heartbeat_interval_ms,
            members_max=config.consumer_group_size_max,
            assignors=config.consumer_group_assignors,
            allows_upgrade=policy in {"bidirectional", "upgrade"},
            allows_downgrade=policy in {"bidirectional", "downgrade"},
            classic=self._limits(),
        )

    def _metadata_bytes_max(self) -> int:
        return self._settings.broker.offset_metadata_bytes_max

    def _new_id(self) -> str:
        digits = f"{self._rng.getrandbits(128):032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
