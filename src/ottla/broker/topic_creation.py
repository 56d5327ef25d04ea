"""Creation of topics: for CreateTopics, and for clients that use one that does not exist yet."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from ottla.broker.metadata_changes import MetadataChanges
from ottla.broker.rate_limit import RateLimit
from ottla.clock import Clock
from ottla.cluster.controller.decision import Decision
from ottla.cluster.controller.topics import (
    NewTopic,
    create_topic,
    delete_topic,
    new_topic_id,
)
from ottla.cluster.image import TopicImage
from ottla.cluster.state import ClusterState
from ottla.coordinator.runtime.internal_topics import INTERNAL_TOPICS, new_internal_topic
from ottla.errors import ApiError, LeaderNotAvailable, TopicAlreadyExists
from ottla.replication.replicas import Replicas
from ottla.settings import Settings


class TopicCreation:
    """Commits new topics and waits until this broker serves its replicas of them."""

    def __init__(
        self,
        state: ClusterState,
        changes: MetadataChanges,
        settings: Settings,
        replicas: Replicas,
        clock: Clock,
    ) -> None:
        self._state = state
        self._clock = clock
        self._automatic = RateLimit(clock.monotonic_s())
        self._changes = changes
        self._replicas = replicas
        self._settings = settings

    async def create(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Sequence[TopicImage | ApiError]:
        """Each topic as it was created, or would be, or its error, in their order.

        A topic whose logs this broker could not create is deleted again: a client that got an
        error must be able to try again.
        """
        sizes = (len(topic.assignment) + len(topic.config) for topic in topics)
        created = await self._changes.each(
            self._decides(topics), sizes=sizes, validate_only=validate_only
        )
        if validate_only:
            return created
        failed = {
            topic.name: problem
            for topic in created
            if not isinstance(topic, ApiError)
            and (problem := self._replicas.failure_of(topic.name)) is not None
        }
        if not failed:
            return created
        await self._changes.each([self._undo(name) for name in failed])
        return [
            result if isinstance(result, ApiError) else failed.get(result.name, result)
            for result in created
        ]

    def _undo(self, name: str) -> partial[Decision[TopicImage]]:
        allowed = replace(self._settings.broker, delete_topic=True)
        return partial(delete_topic, name=name, defaults=allowed)

    @property
    def is_automatic(self) -> bool:
        return self._settings.broker.auto_create_topics

    async def create_automatically(self, names: Sequence[str]) -> dict[str, ApiError]:
        """Create topics that clients use without creating them; returns the errors by name.

        The number is limited per request and per second: the others get a retriable error, as for
        a topic whose leader is not elected yet.
        """
        broker = self._settings.broker
        unique = list(dict.fromkeys(names))
        allowed = self._automatic.take(
            min(len(unique), broker.auto_created_per_request_max),
            per_second=broker.auto_created_per_second_max,
            now_s=self._clock.monotonic_s(),
        )
        later = LeaderNotAvailable("too many topics are being created at once: try again")
        refused = await self.create_missing(unique[:allowed])
        return refused | dict.fromkeys(unique[allowed:], later)

    async def create_missing(self, names: Sequence[str]) -> dict[str, ApiError]:
        """Create topics that do not exist; returns the errors by name."""
        created = await self.create([self._missing(name) for name in names])
        return {
            name: result
            for name, result in zip(names, created, strict=True)
            if isinstance(result, ApiError) and not isinstance(result, TopicAlreadyExists)
        }

    def _missing(self, name: str) -> NewTopic:
        if name in INTERNAL_TOPICS:
            return new_internal_topic(name, self._settings.broker)
        return NewTopic(name=name)

    def _decides(self, topics: Sequence[NewTopic]) -> Iterator[partial[Decision[TopicImage]]]:
        return (
            partial(
                create_topic,
                wanted=topic,
                defaults=self._settings.broker,
                topic_id=new_topic_id(self._state.image, self._state.draw_uuid),
                start=self._state.draw_start(),
            )
            for topic in topics
        )
