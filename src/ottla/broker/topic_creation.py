"""Making topics: for CreateTopics, and for a client that asks for one that is not there yet."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ottla.broker.commits import Commits
from ottla.broker.settings import Settings
from ottla.cluster import controller
from ottla.cluster.controller import NewTopic
from ottla.cluster.image import TopicImage
from ottla.cluster.state import ClusterState
from ottla.errors import ApiError, InvalidConfig, TopicAlreadyExists
from ottla.replication.replicas import Replicas

OFFSETS_TOPIC: Final = "__consumer_offsets"  # where groups are kept
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC})  # whose records only brokers write
_GROUP_BYTES_MAX: Final = 32 << 20  # a generation is one record, however many members it has


class TopicCreation:
    """Commits new topics and waits until this broker serves its part of them."""

    def __init__(
        self, state: ClusterState, commits: Commits, settings: Settings, replicas: Replicas
    ) -> None:
        self._state = state
        self._commits = commits
        self._replicas = replicas
        self._settings = settings

    async def create(
        self, wanted: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Sequence[TopicImage | ApiError]:
        """Each topic as it was made, or would be, or why not, in their order.

        A topic whose logs this broker could not make is taken back: who was told of a failure
        must be able to try again.
        """
        made = await self._commits.each(self._decides(wanted), validate_only=validate_only)
        if validate_only:
            return made
        failed = {
            topic.name: problem
            for topic in made
            if not isinstance(topic, ApiError)
            and (problem := self._replicas.failure_of(topic.name)) is not None
        }
        if not failed:
            return made
        await self._commits.each([self._undo(name) for name in failed])
        return [
            answer if isinstance(answer, ApiError) else failed.get(answer.name, answer)
            for answer in made
        ]

    def _undo(self, name: str) -> partial[controller.Decision[TopicImage]]:
        allowed = replace(self._settings.broker, delete_topic=True)
        return partial(controller.delete_topic, name=name, defaults=allowed)

    @property
    def is_automatic(self) -> bool:
        return self._settings.broker.auto_create_topics

    async def create_missing(self, names: Sequence[str]) -> dict[str, ApiError]:
        """Create topics that clients just use; the answer has those that could not be."""
        made = await self.create([self._missing(name) for name in dict.fromkeys(names)])
        return {
            name: answer
            for name, answer in zip(dict.fromkeys(names), made, strict=True)
            if isinstance(answer, ApiError) and not isinstance(answer, TopicAlreadyExists)
        }

    def _missing(self, name: str) -> NewTopic:
        if name != OFFSETS_TOPIC:
            return NewTopic(name=name)
        return NewTopic(
            name=name,
            partition_count=self._settings.broker.offsets_topic_partitions,
            config={
                **self._keeping_forever(),
                "compression.type": "producer",
                "max.message.bytes": str(_GROUP_BYTES_MAX),
                "segment.bytes": str(self._settings.broker.offsets_topic_segment_bytes),
            },
            is_internal=True,
        )

    def _keeping_forever(self) -> dict[str, str]:
        """Settings of a topic whose records count until newer ones replace them."""
        compact = {"cleanup.policy": "compact"}
        try:
            self._settings.broker.topic.override(compact)
        except InvalidConfig:
            return {"retention.ms": "-1", "retention.bytes": "-1"}
        return compact

    def _decides(
        self, wanted: Sequence[NewTopic]
    ) -> list[partial[controller.Decision[TopicImage]]]:
        return [
            partial(
                controller.create_topic,
                wanted=topic,
                defaults=self._settings.broker,
                new_id=self._state.draw_uuid,
                start=self._state.draw_start(),
            )
            for topic in wanted
        ]
