"""The topics that dead letters are written to, whichever broker leads their partitions.

The only calls that leave a share partition for another partition: straight to its log if it is led
here, else an idempotent Produce and a Fetch.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.clock import Clock
from ottla.cluster.state import ClusterState
from ottla.errors import InvalidConfig, NotLeader, RequestTimedOut, UnknownTopicOrPartition
from ottla.model import BrokerId, TimestampMs, TopicPartition, Uuid
from ottla.queues.share_state import Sender
from ottla.records.batch import batches
from ottla.replication.partition import ACKS_ALL
from ottla.replication.replicas import Replicas
from ottla.replication.waiting import wait_called
from ottla.settings import Settings

if TYPE_CHECKING:  # a broker without peers does not need what a client needs
    from ottla.broker.peer_dead_letters import PeerDeadLetters
    from ottla.replication.peers import Peers

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
        self,
        state: ClusterState,
        replicas: Replicas,
        settings: Settings,
        clock: Clock,
        peers: "Callable[[], Peers]",
    ) -> None:
        self._state = state
        self._replicas = replicas
        self._settings = settings
        self._clock = clock
        self._peers = peers

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
        """How large a batch may be for the destination."""
        topic = self._state.image.topics[self._tp(sender).topic]
        return self._settings.topic(topic.config).max_message_bytes

    async def append(self, sender: Sender, batch: bytearray) -> None:
        """Append a batch, or find it appended already; it is durable when this returns."""
        leader = self._leader_elsewhere(sender)
        if leader is not None:
            await self._elsewhere().append(leader, sender, batch)
            return
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
        since_ms = TimestampMs(max(sender.begun_ms - _CLOCK_STEP_MS, 0))
        if self._leader_elsewhere(sender) is not None:
            return await self._elsewhere().has_batch(self._tp(sender), sender, since_ms)
        partition = self._replicas.locate(sender.topic_id, sender.partition)
        found_at = partition.log.times.first_since(since_ms)
        at = partition.high_watermark if found_at is None else found_at.offset
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

    def _tp(self, sender: Sender) -> TopicPartition:
        name = self._state.image.topic_names.get(sender.topic_id)
        if name is None:
            raise UnknownTopicOrPartition("the topic of dead letters was deleted")
        return TopicPartition(name, sender.partition)

    def _leader_elsewhere(self, sender: Sender) -> BrokerId | None:
        """The broker that leads the destination; None if it is this one."""
        tp = self._tp(sender)
        if tp in self._replicas.leaders:
            return None
        partition = self._state.image.partition(tp)
        if partition is None or partition.leader is None:
            raise NotLeader(f"{tp} has no leader")
        return partition.leader

    def _elsewhere(self) -> "PeerDeadLetters":
        from ottla.broker.peer_dead_letters import PeerDeadLetters  # noqa: PLC0415

        return PeerDeadLetters(self._peers())
