"""A coordinator: one shard for each partition of its topic that this broker leads.

A subclass says which topic, which machine a shard drives and how its records are written, and
gets the rest from here: finding the broker that coordinates a key, creating the topic at the first
request, reading the log, following leadership.

How transactions and groups meet: the group coordinator's partitions hold offsets that belong to
producers' transactions. Such a record is an `Entry` with a `producer`, written in a batch of that
producer and read back as one; the marker that ends the transaction is read as a
`TransactionEnded`. A marker for a partition that has a shard is appended by the shard
(`Shard.append_marker`), behind everything that it has decided.
"""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, Final, Generic

from ottla.clock import Clock
from ottla.cluster.image import ClusterImage
from ottla.cluster.state import ClusterState
from ottla.cluster.values import BrokerImage
from ottla.coordinator.runtime.confirmation import Confirmations
from ottla.coordinator.runtime.decision import A, RecordT, Ticket
from ottla.coordinator.runtime.internal_topics import TopicCreator
from ottla.coordinator.runtime.log_entries import Entry, TransactionEnded
from ottla.coordinator.runtime.shard import Decide, MachineT, Shard
from ottla.coordinator.runtime.shard_log import ShardLog
from ottla.errors import ApiError, CoordinatorNotAvailable, NotCoordinator
from ottla.model import TopicPartition
from ottla.replication.partition import LeaderPartition
from ottla.replication.replicas import Replicas

log = logging.getLogger("ottla.coordinator")

_CREATE_S: Final = 2.0  # timeout of a request that waits for the topic's creation
_RETRY_S: Final = 1.0  # before a log that could not be read or written is read again
_KEYS_MAX: Final = 4096  # groups and transactional ids whose partition is remembered


class Coordinator(ABC, Generic[MachineT, RecordT]):
    """Owner of the shards. Leadership of a partition makes one, losing it drops it."""

    topic: str  # whose partitions the shards are

    def __init__(
        self,
        state: ClusterState,
        replicas: Replicas,
        topics: TopicCreator,
        clock: Clock,
        note_defect: Callable[[BaseException], None],
    ) -> None:
        self._note_defect = note_defect
        self._loop = asyncio.get_running_loop()
        self._state = state
        self._replicas = replicas
        self._topics = topics
        self._clock = clock
        self._shards: dict[int, Shard[MachineT, RecordT]] = {}
        self._unwritable: dict[int, LeaderPartition] = {}  # the shard before wrote nothing
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._creating: asyncio.Task[dict[str, ApiError]] | None = None
        self._is_closed = False
        # Deadlines must not jump when the machine's clock is set.
        self._origin_ms = clock.now_ms() - int(clock.monotonic_s() * 1000)

    # Overridden by each coordinator

    @abstractmethod
    def new_machine(self, index: int) -> MachineT:
        """A machine that has replayed nothing yet, for the partition of this index."""

    @abstractmethod
    def encode(self, record: RecordT) -> Entry:
        """A record of the machine for the log."""

    @abstractmethod
    def decode(self, entry: Entry | TransactionEnded) -> RecordT | None:
        """The inverse of `encode`; None for an entry that the machine does not need."""

    @abstractmethod
    async def expire(self) -> None:
        """Drop state that has not been used for too long."""

    async def note_loaded(self, shard: Shard[MachineT, RecordT]) -> None:
        """Called when a shard has read its log and serves."""

    def close(self) -> None:
        """Stop: clients have to look for their next coordinator."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._creating is not None:
            self._creating.cancel()
        for shard in list(self._shards.values()):
            shard.drop()

    # Finding the coordinator of a key

    async def find(self, key: str) -> BrokerImage:
        """The broker that coordinates this key; the first request creates the topic."""
        if self._is_closed:
            # Sent here again at once, librdkafka would come back as fast as it gets responses.
            raise CoordinatorNotAvailable("this broker is stopping")
        if self.topic not in self._state.image.topics:
            await self._create_topic()
        image = self._state.image
        topic = image.topics.get(self.topic)
        if topic is None:
            raise CoordinatorNotAvailable(f"{self.topic} is being created")
        index = shard_index(key, len(topic.partitions))
        partition = topic.partitions[index]
        tp = TopicPartition(self.topic, index)
        if partition.leader is None or not self._replicas.is_ready(tp, partition):
            raise CoordinatorNotAvailable(f"{tp} currently has no leader")
        broker = image.brokers.get(partition.leader)
        if broker is None:
            raise CoordinatorNotAvailable(f"the leader of {tp} is not registered")
        return broker

    async def _create_topic(self) -> None:
        """Create it once for all requests that wait. None of them waits long: requests behind it
        on its connection wait too, and a full disk can hold up the store."""
        if self._creating is None:
            self._creating = self._loop.create_task(self._topics.create_missing([self.topic]))
        creating = self._creating
        await asyncio.wait([creating], timeout=_CREATE_S)
        if not creating.done():
            raise CoordinatorNotAvailable(f"{self.topic} is being created")
        if creating.cancelled():
            raise CoordinatorNotAvailable("this broker is stopping")
        self._creating = None
        refused = creating.result()
        if self.topic in refused:
            raise CoordinatorNotAvailable(str(refused[self.topic]))
        self.follow()

    def partition_of(self, key: str) -> TopicPartition:
        """The partition that has a key's records."""
        topic = self._state.image.topics.get(self.topic)
        if topic is None:
            raise NotCoordinator(f"{self.topic} does not exist yet: find the coordinator first")
        index = shard_index(key, len(topic.partitions))
        return tuple.__new__(TopicPartition, (self.topic, index))

    def leads(self, tp: TopicPartition) -> bool:
        """True if this broker leads a partition of the topic."""
        return tp in self._replicas.leaders

    # Requests

    def submit(self, key: str, ticket: Ticket[A], decide: Decide[MachineT, A, RecordT]) -> None:
        """Have the key's shard decide; the response goes to `ticket` once it is committed."""
        self.shard(self.partition_of(key).partition).submit(ticket, decide)

    async def run(self, key: str, decide: Decide[MachineT, A, RecordT]) -> A:
        """The response of the key's shard, once everything that it rests on is committed."""
        return await self.shard(self.partition_of(key).partition).run(decide)

    async def run_everywhere(self, decide: Decide[MachineT, A, RecordT]) -> list[A]:
        """Responses of all shards here, one after the other; a shard that is lost gives none."""
        responses = []
        for shard in list(self._shards.values()):
            with contextlib.suppress(NotCoordinator):
                responses.append(await shard.run(decide))
        return responses

    def machines(self) -> list[MachineT]:
        """The machine of every shard here that has read its log."""
        return [shard.machine for shard in self._shards.values() if not shard.is_loading]

    def shard(self, index: int) -> Shard[MachineT, RecordT]:
        """The shard of the partition of this index, if it is led here."""
        shard = self._shards.get(index)
        if shard is None or not shard.log.is_led:
            self.follow()
            shard = self._shards.get(index)
        if shard is None:
            raise NotCoordinator(f"this broker does not lead {self.topic}-{index}")
        return shard

    # Following leadership

    def note_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """The cluster has changed: shards follow once the replicas have."""
        if not self._is_closed and old.topics.get(self.topic) is not new.topics.get(self.topic):
            self.spawn(self._follow_image(new))

    async def _follow_image(self, image: ClusterImage) -> None:
        await self._replicas.wait_applied(image.revision)
        self.follow()

    def follow(self) -> None:
        """Have a shard for each partition that is led here, and no other."""
        if self._is_closed:
            return
        for shard in list(self._shards.values()):
            if not shard.log.is_led:
                shard.drop()
        topic = self._state.image.topics.get(self.topic)
        for index in range(len(topic.partitions) if topic is not None else 0):
            partition = self._replicas.leaders.get((self.topic, index))
            if partition is not None and index not in self._shards:
                self._begin(index, partition)

    def _begin(self, index: int, partition: LeaderPartition) -> None:
        shard = self._shards[index] = Shard(
            self.new_machine(index),
            ShardLog(partition, self, self._replicas, self._clock),
            self.now_ms,
            self._loop,
            self._note_dropped,
            Confirmations(partition, self._state, self.spawn),
        )
        self.spawn(self._load(shard))

    async def _load(self, shard: Shard[MachineT, RecordT]) -> None:
        partition = shard.log.partition
        if self._unwritable.pop(partition.tp.partition, None) is partition:
            await asyncio.sleep(_RETRY_S)
        start_s = self._loop.time()
        try:
            await shard.load(shard.log.read())
        except ApiError as problem:
            log.warning("shard load failed", extra={"tp": partition.tp, "reason": problem})
            await asyncio.sleep(_RETRY_S)
            shard.drop()
            return
        if partition.log.end_offset > partition.log.start_offset:
            duration_ms = int((self._loop.time() - start_s) * 1000)
            log.info("shard loaded", extra={"tp": partition.tp, "ms": duration_ms})
        await self.note_loaded(shard)

    def _note_dropped(self, dropped: Shard[MachineT, RecordT]) -> None:
        if not (dropped.is_loading or dropped.has_committed):
            # Its log cannot be written, and a deadline that is due would fail again at once.
            partition = dropped.log.partition
            self._unwritable[partition.tp.partition] = partition
        self._shards = {i: shard for i, shard in self._shards.items() if shard is not dropped}
        if not self._is_closed:
            self._loop.call_soon(self.follow)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that is cancelled when the coordinator closes."""
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._note_task_done)

    def _note_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._note_defect(problem)

    def now_ms(self) -> int:
        """The time of day when this broker started, and from then on without jumps."""
        return self._origin_ms + int(self._clock.monotonic_s() * 1000)


@lru_cache(maxsize=_KEYS_MAX)
def shard_index(key: str, count: int) -> int:
    """The partition that a key belongs to: Java's hash of a string, as Kafka does it."""
    code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % count
