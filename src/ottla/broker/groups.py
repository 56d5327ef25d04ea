"""What can be asked about groups, from when the first one shows up."""

import random
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.broker.coordinator_apis import CoordinatorApis
from ottla.broker.late_handlers import Answering
from ottla.broker.settings import Settings
from ottla.broker.topic_creation import OFFSETS_TOPIC, TopicCreation
from ottla.clock import Clock
from ottla.cluster.state import ClusterState
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.replication.replicas import Replicas
from ottla.telemetry import Metric

if TYPE_CHECKING:
    from ottla.broker.group_coordinator import GroupCoordinator

GROUP_KEYS: Final = (
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_DELETE,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.DELETE_GROUPS,
)


class GroupApis(CoordinatorApis["GroupCoordinator"]):
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
        super().__init__(state, replicas, settings, creation, clock, note_defect)
        self._rng = rng

    def partition_of(self, group_id: str) -> TopicPartition:
        """Where a group's offsets are."""
        return self.coordinator.partition_of(group_id)

    def collect(self) -> Iterable[Metric]:
        """Figures of the groups that are coordinated here."""
        if self._coordinator is None:
            return ()
        from ottla.broker.group_metrics import collect_groups  # noqa: PLC0415

        config = self._settings.broker
        return collect_groups(
            self._coordinator.loaded(),
            self._replicas,
            series_max=config.group_metrics_series_max,
            with_partitions=config.group_metrics_partitions,
        )

    def _make(self) -> "GroupCoordinator":
        from ottla.broker.group_coordinator import GroupCoordinator  # noqa: PLC0415

        return GroupCoordinator(
            self._state,
            self._replicas,
            self._settings,
            self._creation,
            self._clock,
            self._rng,
            self._note_defect,
        )

    def _make_handlers(self, coordinator: "GroupCoordinator") -> Mapping[ApiKey, Answering]:
        from ottla.broker.handlers import (  # noqa: PLC0415
            classic_groups,
            consumer_groups,
            group_admin,
            group_offsets,
        )

        state = self._state
        return {
            ApiKey.JOIN_GROUP: classic_groups.JoinGroup(coordinator),
            ApiKey.SYNC_GROUP: classic_groups.SyncGroup(coordinator),
            ApiKey.HEARTBEAT: classic_groups.Heartbeat(coordinator),
            ApiKey.LEAVE_GROUP: classic_groups.LeaveGroup(coordinator),
            ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_groups.ConsumerGroupHeartbeat(coordinator),
            ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_groups.ConsumerGroupDescribe(
                coordinator, state
            ),
            ApiKey.OFFSET_COMMIT: group_offsets.OffsetCommit(coordinator, state),
            ApiKey.OFFSET_FETCH: group_offsets.OffsetFetch(coordinator, state),
            ApiKey.OFFSET_DELETE: group_offsets.OffsetDelete(coordinator),
            ApiKey.DESCRIBE_GROUPS: group_admin.DescribeGroups(coordinator),
            ApiKey.LIST_GROUPS: group_admin.ListGroups(coordinator),
            ApiKey.DELETE_GROUPS: group_admin.DeleteGroups(coordinator),
        }
