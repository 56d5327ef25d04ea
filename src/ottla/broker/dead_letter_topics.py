"""The topics that dead letters are written to; here those that this broker leads.

The only calls that leave a share partition for another partition: a broker with peers would send
them as an idempotent Produce and a Fetch.
"""

import asyncio
from typing import Final, NamedTuple

from ottla.clock import Clock
from ottla.cluster.state import ClusterState
from ottla.errors import InvalidConfig, RequestTimedOut, UnknownTopicOrPartition
from ottla.model import Offset, TimestampMs, Uuid
from ottla.queues.share_state import Sender
from ottla.records.batch import batches
from ottla.replication.partition import ACKS_ALL, LeaderPartition
from ottla.replication.replicas import Replicas
from ottla.replication.waiting import wait_called
from ottla.settings import Settings

_APPEND_S: Final = 30.0  # timeout of an append that waits for the disk
_CHUNK_BYTES: Final = 1 << 20
_CLOCK_STEP_MS: Final = 600_000  # by how much a clock may have been set back


class DeadLetterTopic(NamedTuple):
    """A topic that may be written to."""

    topic_id: Uuid
    partition_count: int
    batch_bytes_max: int


class DeadLetterTopics:
    """Finds topics by the settings of groups, appends to them and searches them."""

    def __init__(
        self, state: ClusterState, replicas: Replicas, settings: Settings, clock: Clock
    ) -> None:
        self._state = state
        self._replicas = replicas
        self._settings = settings
        self._clock = clock

    def find(self, name: str) -> DeadLetterTopic:
        """The topic of this name; raises what an operator must do before it can be written to."""
        prefix = self._settings.broker.dead_letter_topic_prefix
        if not name.startswith(prefix):
            raise InvalidConfig(
                f"{name} does not begin with {prefix!r}: see errors.deadletterqueue.topic.name"
                ".prefix of the brokers"
            )
        topic = self._state.image.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name}: create it")
        config = self._settings.topic(topic.config)
        if not config.takes_dead_letters:
            raise InvalidConfig(
                f"{name} takes no dead letters: set errors.deadletterqueue.group.enable=true for it"
            )
        if "compact" in config.cleanup_policy:
            raise InvalidConfig(f"{name} is compacted: set cleanup.policy=delete for it")
        return DeadLetterTopic(topic.id, len(topic.partitions), config.max_message_bytes)

    def exists(self, topic_id: Uuid) -> bool:
        return topic_id in self._state.image.topic_names

    def batch_bytes_max(self, sender: Sender) -> int:
        partition = self._replicas.locate(sender.topic_id, sender.partition)
        return partition.log.config.max_message_bytes

    async def append(self, sender: Sender, batch: bytearray) -> None:
        """Append a batch, or find it appended already; it is durable when this returns."""
        partition = self._replicas.locate(sender.topic_id, sender.partition)
        receipt = partition.append(memoryview(batch), ACKS_ALL, self._clock.now_ms())
        if receipt.is_settled:
            return
        try:
            async with asyncio.timeout(_APPEND_S):
                await wait_called(
                    lambda done: partition.wait_settled(receipt.end_offset, ACKS_ALL, done)
                )
        except TimeoutError:
            raise RequestTimedOut(f"{partition.tp} is not durable after {_APPEND_S} s") from None

    async def has_batch(self, sender: Sender) -> bool:
        """True if the batch that was begun is in its partition, by a search from its time on."""
        partition = self._replicas.locate(sender.topic_id, sender.partition)
        at = self._search_start(partition, sender)
        while at < partition.high_watermark:
            found = partition.log.read(
                at, partition.high_watermark, _CHUNK_BYTES, at_least_one=True
            )
            if found is None:
                return False
            for header, _ in batches(partition.log.read_bytes(found)):
                if (header.producer_id, header.base_sequence) == (
                    sender.producer_id,
                    sender.sequence,
                ):
                    return True
            at = found.end_offset
            await asyncio.sleep(0)  # others have their turn
        return False

    def _search_start(self, partition: LeaderPartition, sender: Sender) -> Offset:
        since_ms = TimestampMs(max(sender.begun_ms - _CLOCK_STEP_MS, 0))
        found = partition.log.offset_for_time(since_ms)
        return partition.high_watermark if found is None else found.offset
