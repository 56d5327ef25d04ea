"""The handlers of a coordinator, and what they rest on, imported when somebody first needs them.

A broker that only moves records starts without them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ottla.broker.late_handlers import Answering
from ottla.broker.routes import RequestContext
from ottla.broker.settings import Settings
from ottla.broker.topic_creation import TopicCreation
from ottla.clock import Clock
from ottla.cluster.image import BrokerImage, ClusterImage
from ottla.cluster.state import ClusterState
from ottla.protocol.api import ApiKey
from ottla.replication.replicas import Replicas

if TYPE_CHECKING:
    from ottla.broker.shards import Shards

CoordinatorT = TypeVar("CoordinatorT", bound="Shards[Any]")


class CoordinatorApis(ABC, Generic[CoordinatorT]):
    """Makes the coordinator and its handlers at the first request, or when its topic is there."""

    topic: str  # of which the coordinator leads partitions

    def __init__(
        self,
        state: ClusterState,
        replicas: Replicas,
        settings: Settings,
        creation: TopicCreation,
        clock: Clock,
        note_defect: Callable[[BaseException], None],
    ) -> None:
        self._state = state
        self._replicas = replicas
        self._settings = settings
        self._creation = creation
        self._clock = clock
        self._note_defect = note_defect
        self._coordinator: CoordinatorT | None = None
        self._handlers: Mapping[ApiKey, Answering] = {}

    @abstractmethod
    def _make(self) -> CoordinatorT:
        """The coordinator; imports what it needs."""

    @abstractmethod
    def _make_handlers(self, coordinator: CoordinatorT) -> Mapping[ApiKey, Answering]:
        """Who answers which request, once there is a coordinator."""

    @property
    def coordinator(self) -> CoordinatorT:
        return self._ensure_made()

    def _ensure_made(self) -> CoordinatorT:
        if self._coordinator is None:
            self._coordinator = self._make()
            self._handlers = self._make_handlers(self._coordinator)
            self._coordinator.follow()
        return self._coordinator

    def answer(self, key: ApiKey, request: Any, context: RequestContext) -> Any:
        self._ensure_made()
        return self._handlers[key](request, context)

    async def find(self, key: str) -> BrokerImage:
        """The broker that coordinates this key."""
        return await self.coordinator.find(key)

    def open(self) -> None:
        """The broker begins to serve: from now on time counts for whoever is coordinated here."""
        if self.topic in self._state.image.topics:
            self._ensure_made()

    def close(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()

    def note_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if self._coordinator is not None:
            self._coordinator.note_image(old, new)

    async def expire(self) -> None:
        if self._coordinator is not None:
            await self._coordinator.expire()
