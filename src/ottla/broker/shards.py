"""What every coordinator does: a shard for each partition of its topic that this broker leads.

A coordinator says which topic, what machine a shard drives and how its records are written, and
gets the rest from here: finding the broker of a key, making the topic at the first question,
reading the log, following leadership.

Where transactions meet groups. The group coordinator's partitions hold offsets that belong to
producers' transactions. Such a record is an `Entry` with a `producer`, written in a batch of that
producer and read back as one; the marker that ends the transaction is read as a
`TransactionEnded`. While a shard lives, whoever writes a marker into one of its partitions does
it through `note_marker`, which puts the marker behind everything that the shard has decided and
then has the machine replay it.
"""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, Generic

from ottla.broker.topic_creation import TopicCreation
from ottla.clock import Clock
from ottla.cluster.image import BrokerImage, ClusterImage
from ottla.cluster.state import ClusterState
from ottla.coordinator.decision import Decision, Ticket
from ottla.coordinator.log_entries import Entry, ProducerIdentity, TransactionEnded
from ottla.coordinator.shard import MachineT, Shard
from ottla.errors import ApiError, CoordinatorNotAvailable, NotCoordinator, RequestTimedOut
from ottla.model import Offset, ProducerEpoch, ProducerId, TimestampMs, TopicPartition
from ottla.model import Sequence as SequenceNumber
from ottla.records import batch as batches
from ottla.replication.partition import ACKS_ALL, LeaderPartition
from ottla.replication.replicas import Replicas

log = logging.getLogger("ottla.broker")

_CHUNK_BYTES: Final = 1 << 20  # read of a log in one turn of the loop
_BATCH_BYTES: Final = 1 << 20  # beyond, records of one turn go into further batches
_MAKE_S: Final = 2.0  # so long the first question for a coordinator may wait
_COMMIT_S: Final = 30.0  # a commit that takes longer is taken for lost
_LOAD_S: Final = 30.0  # so long a load may wait for what is in the log to be committed
_RETRY_S: Final = 1.0  # before a log that could not be read is tried again


class Shards(ABC, Generic[MachineT]):
    """Owner of the shards. Leadership of a partition makes one, losing it drops it."""

    topic: str  # whose partitions the shards are

    def __init__(
        self,
        state: ClusterState,
        replicas: Replicas,
        creation: TopicCreation,
        clock: Clock,
        note_defect: Callable[[BaseException], None],
    ) -> None:
        self._note_defect = note_defect
        self._loop = asyncio.get_running_loop()
        self._state = state
        self._replicas = replicas
        self._creation = creation
        self.clock = clock
        self._shards: dict[int, Led[MachineT]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._making: asyncio.Task[dict[str, ApiError]] | None = None
        self._is_closed = False
        # Deadlines must not jump when somebody sets the machine's clock.
        self._origin_ms = clock.now_ms() - int(clock.monotonic_s() * 1000)

    # What a coordinator adds

    @abstractmethod
    def new_machine(self) -> MachineT:
        """A machine that has read nothing yet."""

    @abstractmethod
    def encode(self, record: Any) -> Entry:
        """A record of the machine for the log."""

    @abstractmethod
    def decode(self, entry: Entry | TransactionEnded) -> Any | None:
        """The inverse; None for what the machine does not need to know."""

    @abstractmethod
    async def expire(self) -> None:
        """Forget what nobody has used for too long."""

    async def note_loaded(self, led: "Led[MachineT]") -> None:
        """A shard has read its log and serves."""

    def note_told(self, led: "Led[MachineT]", answer: Any) -> None:
        """The machine addressed an answer to its owner, and what it rests on is committed."""

    def close(self) -> None:
        """The broker is stopping: clients look for their next coordinator."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._making is not None:
            self._making.cancel()
        for led in list(self._shards.values()):
            led.shard.drop()

    # Finding

    async def find(self, key: str) -> BrokerImage:
        """The broker that coordinates this key; the first question makes the topic."""
        if self._is_closed:
            # Sent here again at once, librdkafka would come back as fast as it can be answered.
            raise CoordinatorNotAvailable("this broker is stopping")
        if self.topic not in self._state.image.topics:
            await self._make_topic()
        image = self._state.image
        topic = image.topics.get(self.topic)
        if topic is None:
            raise CoordinatorNotAvailable(f"{self.topic} is being made")
        index = shard_index(key, len(topic.partitions))
        partition = topic.partitions[index]
        tp = TopicPartition(self.topic, index)
        if partition.leader is None or not self._replicas.is_ready(tp, partition):
            raise CoordinatorNotAvailable(f"nobody leads {tp} at the moment")
        broker = image.brokers.get(partition.leader)
        if broker is None:
            raise CoordinatorNotAvailable(f"the leader of {tp} is away")
        return broker

    async def _make_topic(self) -> None:
        """Made once, whoever asks meanwhile. Nobody waits long: what a client asks behind this
        question on its connection waits with it, and a full disk can hold up the store."""
        if self._making is None:
            self._making = self._loop.create_task(self._creation.create_missing([self.topic]))
        making = self._making
        await asyncio.wait([making], timeout=_MAKE_S)
        if not making.done():
            raise CoordinatorNotAvailable(f"{self.topic} is being made")
        self._making = None
        refused = making.result()
        if self.topic in refused:
            raise CoordinatorNotAvailable(str(refused[self.topic]))
        self.follow()

    def partition_of(self, key: str) -> TopicPartition:
        """The partition that a key's records are in."""
        topic = self._state.image.topics.get(self.topic)
        if topic is None:
            raise NotCoordinator("nobody coordinates yet: find the coordinator first")
        return TopicPartition(self.topic, shard_index(key, len(topic.partitions)))

    # Asking

    async def run(self, key: str, decide: Callable[[MachineT, Ticket, int], Decision[Any]]) -> Any:
        """What the key's shard answers, once what it rests on is committed."""
        return await self.led(self.partition_of(key).partition).shard.run(decide)

    async def run_everywhere(
        self, decide: Callable[[MachineT, Ticket, int], Decision[Any]]
    ) -> list[Any]:
        """The same for every shard here, one after the other; one that is lost has no say."""
        answers = []
        for led in list(self._shards.values()):
            with contextlib.suppress(NotCoordinator):
                answers.append(await led.shard.run(decide))
        return answers

    def loaded(self) -> list[MachineT]:
        """The machine of every shard here that has read its log."""
        return [led.shard.machine for led in self._shards.values() if not led.shard.is_loading]

    def led(self, index: int) -> "Led[MachineT]":
        """The partition of this index, if it is led here."""
        led = self._shards.get(index)
        if led is None or not self.is_led(led.partition):
            self.follow()
            led = self._shards.get(index)
        if led is None:
            raise NotCoordinator(f"this broker does not lead {self.topic}-{index}")
        return led

    def note_marker(
        self, index: int, ended: TransactionEnded, write: Callable[[], "asyncio.Future[None]"]
    ) -> "asyncio.Future[None]":
        """A marker goes into a partition of this topic; the shard must learn of it in its order.

        `write` appends it and resolves on commit. Raises what `write` raises, or that the shard
        is not there to be told, and then nothing was written: try again.
        """
        record = self.decode(ended)
        if record is None:
            return write()
        return self.led(index).shard.note_written(record, write)

    # Following

    def note_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """The cluster has changed: leadership follows in a moment."""
        if not self._is_closed and old.topics.get(self.topic) is not new.topics.get(self.topic):
            self.spawn(self._follow_image(new))

    async def _follow_image(self, image: ClusterImage) -> None:
        await self._replicas.wait_applied(image.revision)
        self.follow()

    def follow(self) -> None:
        """Have a shard for each partition that is led here, and none else."""
        if self._is_closed:
            return
        for led in list(self._shards.values()):
            if not self.is_led(led.partition):
                led.shard.drop()
        topic = self._state.image.topics.get(self.topic)
        for index in range(len(topic.partitions) if topic is not None else 0):
            partition = self._replicas.leaders.get((self.topic, index))
            if partition is not None and index not in self._shards:
                self._begin(index, partition)

    def is_led(self, partition: LeaderPartition) -> bool:
        return self._replicas.leaders.get(partition.tp) is partition

    def _begin(self, index: int, partition: LeaderPartition) -> None:
        led = self._shards[index] = Led(partition, self)
        self.spawn(self._load(led))

    async def _load(self, led: "Led[MachineT]") -> None:
        start_s = self._loop.time()
        try:
            await led.shard.load(led.read())
        except ApiError as problem:
            log.warning("cannot load a shard", extra={"tp": led.partition.tp, "reason": problem})
            await asyncio.sleep(_RETRY_S)
            led.shard.drop()
            return
        if led.partition.log.end_offset > led.partition.log.start_offset:
            duration_ms = int((self._loop.time() - start_s) * 1000)
            log.info("loaded a shard", extra={"tp": led.partition.tp, "ms": duration_ms})
        await self.note_loaded(led)

    def note_dropped(self, shard: Shard[MachineT]) -> None:
        self._shards = {i: led for i, led in self._shards.items() if led.shard is not shard}
        if not self._is_closed:
            self._loop.call_soon(self.follow)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that ends when the coordinator does."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_task_over)

    def _note_task_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._note_defect(problem)

    def now_ms(self) -> int:
        """The time of day when this broker started, and from then on without jumps."""
        return self._origin_ms + int(self.clock.monotonic_s() * 1000)


class Led(Generic[MachineT]):
    """A partition of a coordinator's topic that is led here, as its shard sees it."""

    __slots__ = ("_coordinator", "partition", "shard")

    def __init__(self, partition: LeaderPartition, coordinator: Shards[MachineT]) -> None:
        self.partition = partition
        self._coordinator = coordinator
        self.shard = Shard(
            coordinator.new_machine(),
            self.append,
            coordinator.decode,
            coordinator.now_ms,
            asyncio.get_running_loop(),
            coordinator.note_dropped,
            lambda answer: coordinator.note_told(self, answer),
        )

    def append(self, records: Sequence[Any]) -> "asyncio.Future[None]":
        """Write now; the future is done when it is committed, or failed if it will not be."""
        coordinator, partition = self._coordinator, self.partition
        if not coordinator.is_led(partition):
            raise NotCoordinator(f"this broker no longer leads {partition.tp}")
        now_ms = coordinator.clock.now_ms()
        end = partition.log.end_offset
        for producer, entries in groupby(map(coordinator.encode, records), _producer):
            for letters in _parts(entries, now_ms):
                batch = _batch(letters, producer, partition)
                appended = partition.append(memoryview(batch), ACKS_ALL, now_ms)
                end = Offset(appended.last_offset + 1)
        return commit_of(partition, end, _COMMIT_S)

    async def read(self) -> AsyncIterator[Iterable[Entry | TransactionEnded]]:
        """All that was ever committed, a chunk at a time."""
        partition = self.partition
        end = partition.log.end_offset
        await commit_of(partition, end, _LOAD_S)
        bytes_max = batches.decompressed_bytes_max(partition.log.config.max_message_bytes)
        position = partition.log.start_offset
        while position < end:
            if not self._coordinator.is_led(partition):
                raise NotCoordinator(f"this broker no longer leads {partition.tp}")
            found = partition.log.read(position, end, _CHUNK_BYTES, at_least_one=True)
            if found is None:
                return
            chunk: list[Entry | TransactionEnded] = []
            for header, view in batches.batches(partition.log.read_bytes(found)):
                position = header.next_offset
                chunk += _entries(header, view, bytes_max)
            yield chunk
            await asyncio.sleep(0)


def commit_of(
    partition: LeaderPartition, end: Offset, patience_s: float = _COMMIT_S
) -> "asyncio.Future[None]":
    """Done when the partition is committed up to `end`, failed when it never will be."""
    committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if partition.is_settled(end, ACKS_ALL):
        committed.set_result(None)
        return committed

    def settled(error: ApiError | None) -> None:
        timer.cancel()
        if committed.done():
            return
        if error is None:
            committed.set_result(None)
        else:
            committed.set_exception(error)

    timer = committed.get_loop().call_later(
        patience_s, settled, RequestTimedOut(f"{partition.tp} did not commit in time")
    )
    partition.wait_settled(end, ACKS_ALL, settled)
    return committed


def _producer(entry: Entry) -> ProducerIdentity | None:
    return entry.producer


def _parts(entries: Iterable[Entry], now_ms: TimestampMs) -> Iterator[list[batches.Record]]:
    """Records for one batch each."""
    letters: list[batches.Record] = []
    size_bytes = 0
    for key, value, _ in entries:
        letters.append(batches.Record(timestamp_ms=now_ms, key=key, value=value))
        size_bytes += len(key or b"") + len(value or b"")
        if size_bytes > _BATCH_BYTES:
            yield letters
            letters, size_bytes = [], 0
    if letters:
        yield letters


def _batch(
    letters: list[batches.Record], producer: ProducerIdentity | None, partition: LeaderPartition
) -> bytearray:
    if producer is None:
        return batches.build_batch(letters)
    # Nobody else writes for this producer here, so its next sequence is whatever the log expects.
    known = partition.log.producers.get(producer.id)
    sequence = known.next_sequence if known is not None and known.epoch == producer.epoch else 0
    return batches.build_batch(
        letters,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=SequenceNumber(sequence),
        is_transactional=True,
    )


def _entries(
    header: batches.BatchHeader, view: memoryview, bytes_max: int
) -> Iterator[Entry | TransactionEnded]:
    producer = None
    if header.is_transactional:
        producer = ProducerIdentity(
            ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch)
        )
    if not header.is_control:
        for letter in batches.records(view, decompressed_bytes_max=bytes_max):
            yield Entry(letter.key, letter.value, producer)
    elif producer is not None and (marker := batches.read_marker(view)) is not None:
        yield TransactionEnded(producer, marker.kind is batches.MarkerKind.COMMIT)


def shard_index(key: str, count: int) -> int:
    """Which partition a key belongs to: Java's hash of a string, as Kafka does it."""
    code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % count
