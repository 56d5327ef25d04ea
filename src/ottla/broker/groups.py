"""The handlers of groups, and what they rest on, imported when the first group shows up.

A broker that only moves records starts without them.
"""

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.routes import RequestContext
from ottla.broker.settings import Settings
from ottla.broker.topic_creation import OFFSETS_TOPIC, TopicCreation
from ottla.clock import Clock
from ottla.cluster.image import ClusterImage
from ottla.cluster.state import ClusterState
from ottla.protocol.api import ApiKey
from ottla.replication.replicas import Replicas
from ottla.telemetry import Metric

if TYPE_CHECKING:
    from ottla.broker.group_coordinator import GroupCoordinator

GROUP_KEYS: Final = (
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_DELETE,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.DELETE_GROUPS,
)

Answering = Callable[[Any, RequestContext], Any]


class GroupApis:
    """Makes the coordinator and all handlers at the first request, or when there are groups."""

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
        self._state = state
        self._replicas = replicas
        self._settings = settings
        self._creation = creation
        self._clock = clock
        self._rng = rng
        self._note_defect = note_defect
        self._coordinator: GroupCoordinator | None = None
        self._handlers: dict[ApiKey, Answering] = {}

    def answer(self, key: ApiKey, request: Any, context: RequestContext) -> Any:
        if not self._handlers:
            self._make()
        return self._handlers[key](request, context)

    def open(self) -> None:
        """The broker begins to serve: members of its groups count from now on."""
        if OFFSETS_TOPIC in self._state.image.topics and self._coordinator is None:
            self._make()

    def close(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()

    def note_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if self._coordinator is not None:
            self._coordinator.note_image(old, new)

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

    async def expire(self) -> None:
        if self._coordinator is not None:
            await self._coordinator.expire()

    def _make(self) -> None:
        from ottla.broker.group_coordinator import GroupCoordinator  # noqa: PLC0415
        from ottla.broker.handlers import (  # noqa: PLC0415
            classic_groups,
            coordination,
            group_admin,
            group_offsets,
        )

        state = self._state
        coordinator = self._coordinator = GroupCoordinator(
            state,
            self._replicas,
            self._settings,
            self._creation,
            self._clock,
            self._rng,
            self._note_defect,
        )
        self._handlers = {
            ApiKey.FIND_COORDINATOR: coordination.FindCoordinator(coordinator),
            ApiKey.JOIN_GROUP: classic_groups.JoinGroup(coordinator),
            ApiKey.SYNC_GROUP: classic_groups.SyncGroup(coordinator),
            ApiKey.HEARTBEAT: classic_groups.Heartbeat(coordinator),
            ApiKey.LEAVE_GROUP: classic_groups.LeaveGroup(coordinator),
            ApiKey.OFFSET_COMMIT: group_offsets.OffsetCommit(coordinator, state),
            ApiKey.OFFSET_FETCH: group_offsets.OffsetFetch(coordinator, state),
            ApiKey.OFFSET_DELETE: group_offsets.OffsetDelete(coordinator),
            ApiKey.DESCRIBE_GROUPS: group_admin.DescribeGroups(coordinator),
            ApiKey.LIST_GROUPS: group_admin.ListGroups(coordinator),
            ApiKey.DELETE_GROUPS: group_admin.DeleteGroups(coordinator),
        }
        coordinator.follow()
