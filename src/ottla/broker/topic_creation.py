"""Making topics: for CreateTopics, and for a client that asks for one that is not there yet."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ottla.broker.metadata_changes import Commits
from ottla.broker.rate_limit import RateLimit
from ottla.broker.settings import Settings
from ottla.clock import Clock
from ottla.cluster.controller.decision import Decision
from ottla.cluster.controller.topics import NewTopic, create_topic, delete_topic
from ottla.cluster.image import TopicImage
from ottla.cluster.state import ClusterState
from ottla.config import BrokerConfig
from ottla.errors import ApiError, InvalidConfig, LeaderNotAvailable, TopicAlreadyExists
from ottla.replication.replicas import Replicas

OFFSETS_TOPIC: Final = "__consumer_offsets"  # where groups are kept
TRANSACTIONS_TOPIC: Final = "__transaction_state"  # where transactional ids are kept
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})  # only brokers write them
_RECORD_BYTES_MAX: Final = 32 << 20  # a generation, or a transaction, is one record at any size


class TopicCreation:
    """Commits new topics and waits until this broker serves its part of them."""

    def __init__(
        self,
        state: ClusterState,
        commits: Commits,
        settings: Settings,
        replicas: Replicas,
        clock: Clock,
    ) -> None:
        self._state = state
        self._clock = clock
        self._automatic = RateLimit(clock.monotonic_s())
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
        sizes = (len(topic.assignment) + len(topic.config) for topic in wanted)
        made = await self._commits.each(
            self._decides(wanted), sizes=sizes, validate_only=validate_only
        )
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

    def _undo(self, name: str) -> partial[Decision[TopicImage]]:
        allowed = replace(self._settings.broker, delete_topic=True)
        return partial(delete_topic, name=name, defaults=allowed)

    @property
    def is_automatic(self) -> bool:
        return self._settings.broker.auto_create_topics

    async def create_automatically(self, names: Sequence[str]) -> dict[str, ApiError]:
        """Create topics that clients just use; the answer has those that were not, and why.

        Only so many for one request, and for all in a second: a client is told to ask again for
        the others, as for a topic whose leader is not elected yet.
        """
        broker = self._settings.broker
        wanted = list(dict.fromkeys(names))
        allowed = self._automatic.take(
            min(len(wanted), broker.auto_created_per_request_max),
            per_second=broker.auto_created_per_second_max,
            now_s=self._clock.monotonic_s(),
        )
        later = LeaderNotAvailable("too many topics are being created at once: ask again")
        refused = await self.create_missing(wanted[:allowed])
        return refused | dict.fromkeys(wanted[allowed:], later)

    async def create_missing(self, names: Sequence[str]) -> dict[str, ApiError]:
        """Create topics that do not exist; the answer has those that could not be, and why."""
        made = await self.create([self._missing(name) for name in names])
        return {
            name: answer
            for name, answer in zip(names, made, strict=True)
            if isinstance(answer, ApiError) and not isinstance(answer, TopicAlreadyExists)
        }

    def _missing(self, name: str) -> NewTopic:
        broker = self._settings.broker
        counts = {
            OFFSETS_TOPIC: broker.offsets_topic_partitions,
            TRANSACTIONS_TOPIC: broker.transactions_topic_partitions,
        }
        if name not in counts:
            return NewTopic(name=name)
        return NewTopic(
            name=name,
            partition_count=counts[name],
            config=internal_config(broker),
            is_internal=True,
        )

    def _decides(self, wanted: Sequence[NewTopic]) -> Iterator[partial[Decision[TopicImage]]]:
        return (
            partial(
                create_topic,
                wanted=topic,
                defaults=self._settings.broker,
                new_id=self._state.draw_uuid,
                start=self._state.draw_start(),
            )
            for topic in wanted
        )


def internal_config(broker: BrokerConfig) -> dict[str, str]:
    """Settings of a topic that brokers write for themselves."""
    return {
        **_keeping_forever(broker),
        "compression.type": "producer",
        "max.message.bytes": str(_RECORD_BYTES_MAX),
        "segment.bytes": str(broker.offsets_topic_segment_bytes),
    }


def _keeping_forever(broker: BrokerConfig) -> dict[str, str]:
    """Settings of a topic whose records count until newer ones replace them."""
    compact = {"cleanup.policy": "compact"}
    try:
        broker.topic.override(compact)
    except InvalidConfig:
        return {"retention.ms": "-1", "retention.bytes": "-1"}
    return compact
