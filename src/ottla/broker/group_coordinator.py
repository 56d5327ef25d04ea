"""The groups of this broker: a shard for each partition of the groups' topic that it leads."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from ottla.broker.settings import Settings
from ottla.broker.topic_creation import OFFSETS_TOPIC, TopicCreation
from ottla.clock import Clock
from ottla.cluster.image import BrokerImage, ClusterImage
from ottla.cluster.state import ClusterState
from ottla.coordinator.classic_group import GroupLimits
from ottla.coordinator.groups import Groups
from ottla.coordinator.outcome import Outcome, Ticket
from ottla.coordinator.records import Record, to_bytes
from ottla.coordinator.shard import KeyAndValue, Shard
from ottla.errors import ApiError, CoordinatorNotAvailable, NotCoordinator, RequestTimedOut
from ottla.model import Offset, TimestampMs, TopicPartition
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
_MINUTE_MS: Final = 60_000

Decide = Callable[[Groups, Ticket, int], Outcome]


class GroupCoordinator:
    """Owner of the shards. Leadership of a partition makes one, losing it drops it."""

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
        self._note_defect = note_defect
        self._loop = asyncio.get_running_loop()
        self._state = state
        self._replicas = replicas
        self._settings = settings
        self._creation = creation
        self.clock = clock
        self._rng = rng
        self._shards: dict[int, _Led] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._making: asyncio.Task[dict[str, ApiError]] | None = None
        self._is_closed = False
        # Deadlines of sessions must not jump when somebody sets the machine's clock.
        self._origin_ms = clock.now_ms() - int(clock.monotonic_s() * 1000)

    def close(self) -> None:
        """The broker is stopping: members look for their next coordinator."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._making is not None:
            self._making.cancel()
        for led in list(self._shards.values()):
            led.shard.drop()

    # Finding

    async def find(self, group_id: str) -> BrokerImage:
        """The broker that coordinates a group; the first question makes the groups' topic."""
        if OFFSETS_TOPIC not in self._state.image.topics:
            await self._make_topic()
        image = self._state.image
        topic = image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise CoordinatorNotAvailable("the groups' topic is being made")
        index = shard_index(group_id, len(topic.partitions))
        partition = topic.partitions[index]
        tp = TopicPartition(OFFSETS_TOPIC, index)
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
            self._making = self._loop.create_task(self._creation.create_missing([OFFSETS_TOPIC]))
        making = self._making
        await asyncio.wait([making], timeout=_MAKE_S)
        if not making.done():
            raise CoordinatorNotAvailable("the groups' topic is being made")
        self._making = None
        refused = making.result()
        if OFFSETS_TOPIC in refused:
            raise CoordinatorNotAvailable(str(refused[OFFSETS_TOPIC]))
        self.follow()

    # Asking

    async def run(self, group_id: str, decide: Decide) -> Any:
        """What the group's shard answers, once what it rests on is committed."""
        topic = self._state.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise NotCoordinator("nobody coordinates groups yet: find the coordinator first")
        index = shard_index(group_id, len(topic.partitions))
        return await self._shard(index).run(decide)

    async def run_everywhere(self, decide: Decide) -> list[Any]:
        """The same for every shard here, one after the other; one that is lost has no say."""
        answers = []
        for led in list(self._shards.values()):
            with contextlib.suppress(NotCoordinator):
                answers.append(await led.shard.run(decide))
        return answers

    def loaded(self) -> list[Groups]:
        """The groups of every shard here that has read its log."""
        return [led.shard.groups for led in self._shards.values() if not led.shard.is_loading]

    def _shard(self, index: int) -> Shard:
        led = self._shards.get(index)
        if led is None or not self.is_led(led.partition):
            self.follow()
            led = self._shards.get(index)
        if led is None:
            raise NotCoordinator(f"this broker does not lead {OFFSETS_TOPIC}-{index}")
        return led.shard

    # Following

    def note_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """The cluster has changed: leadership follows in a moment, deleted topics are forgotten."""
        gone = {
            name
            for name, topic in old.topics.items()
            if name not in new.topics or new.topics[name].id != topic.id
        }
        if self._is_closed:
            return
        if gone or old.topics.get(OFFSETS_TOPIC) is not new.topics.get(OFFSETS_TOPIC):
            self._spawn(self._follow_image(new, gone))

    async def _follow_image(self, image: ClusterImage, gone: set[str]) -> None:
        await self._replicas.wait_applied(image.revision)
        self.follow()
        if gone:
            await self._forget_topics(lambda name: name in gone, list(self._shards.values()))

    def follow(self) -> None:
        """Have a shard for each partition that is led here, and none else."""
        if self._is_closed:
            return
        for led in list(self._shards.values()):
            if not self.is_led(led.partition):
                led.shard.drop()
        topic = self._state.image.topics.get(OFFSETS_TOPIC)
        for index in range(len(topic.partitions) if topic is not None else 0):
            partition = self._replicas.leaders.get((OFFSETS_TOPIC, index))
            if partition is not None and index not in self._shards:
                self._begin(index, partition)

    def is_led(self, partition: LeaderPartition) -> bool:
        return self._replicas.leaders.get(partition.tp) is partition

    def _begin(self, index: int, partition: LeaderPartition) -> None:
        led = _Led(partition, self)
        groups = Groups(self._limits, self._new_id, self._metadata_bytes_max)
        led.shard = Shard(groups, led.append, self.now_ms, self._loop, self._note_dropped)
        self._shards[index] = led
        self._spawn(self._load(led))

    async def _load(self, led: "_Led") -> None:
        start_s = self._loop.time()
        try:
            await led.shard.load(led.read())
        except ApiError as problem:
            log.warning("cannot load groups", extra={"tp": led.partition.tp, "reason": problem})
            await asyncio.sleep(_RETRY_S)
            led.shard.drop()
            return
        groups = led.shard.groups
        await self._forget_topics(lambda name: name not in self._state.image.topics, [led])
        if groups.groups:
            log.info(
                "loaded groups",
                extra={
                    "tp": led.partition.tp,
                    "groups": len(groups.groups),
                    "ms": int((self._loop.time() - start_s) * 1000),
                },
            )

    async def _forget_topics(self, is_gone: Callable[[str], bool], shards: list["_Led"]) -> None:
        """Offsets of topics that are no more."""
        for led in shards:
            try:
                await led.shard.run(
                    lambda groups, ticket, now_ms: groups.drop_topics(ticket, is_gone, now_ms)
                )
            except ApiError as problem:  # it is loading, and looks for itself, or is lost
                log.debug("offsets of deleted topics stay", extra={"reason": problem})

    def _note_dropped(self, shard: Shard) -> None:
        self._shards = {i: led for i, led in self._shards.items() if led.shard is not shard}
        if not self._is_closed:
            self._loop.call_soon(self.follow)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_task_over)

    def _note_task_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._note_defect(problem)

    # Chores

    async def expire(self) -> None:
        """Forget offsets whose time is over."""
        retention_ms = self._settings.broker.offsets_retention_minutes * _MINUTE_MS
        for led in list(self._shards.values()):
            try:
                count = await led.shard.run(
                    lambda groups, ticket, now_ms: groups.expire(ticket, retention_ms, now_ms)
                )
            except ApiError as problem:
                log.debug("offsets do not expire now", extra={"reason": problem})
                continue
            if count:
                log.info("offsets expired", extra={"tp": led.partition.tp, "count": count})

    # What shards get from the world

    def now_ms(self) -> int:
        """The time of day when this broker started, and from then on without jumps."""
        return self._origin_ms + int(self.clock.monotonic_s() * 1000)

    def _limits(self) -> GroupLimits:
        config = self._settings.broker
        return GroupLimits(
            initial_delay_ms=config.group_initial_rebalance_delay_ms,
            members_max=config.group_size_max,
            session_timeout_min_ms=config.group_session_timeout_min_ms,
            session_timeout_max_ms=config.group_session_timeout_max_ms,
        )

    def _metadata_bytes_max(self) -> int:
        return self._settings.broker.offset_metadata_bytes_max

    def _new_id(self) -> str:
        digits = f"{self._rng.getrandbits(128):032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class _Led:
    """A partition of the groups' topic that is led here, as its shard sees it."""

    __slots__ = ("_coordinator", "partition", "shard")

    shard: Shard

    def __init__(self, partition: LeaderPartition, coordinator: GroupCoordinator) -> None:
        self.partition = partition
        self._coordinator = coordinator

    def append(self, records: Sequence[Record]) -> "asyncio.Future[None]":
        """Write now; the future is done when it is committed, or failed if it will not be."""
        coordinator, partition = self._coordinator, self.partition
        if not coordinator.is_led(partition):
            raise NotCoordinator(f"this broker no longer leads {partition.tp}")
        loop = asyncio.get_running_loop()
        now_ms = coordinator.clock.now_ms()
        end = partition.log.end_offset
        for batch in _batches(records, now_ms):
            appended = partition.append(memoryview(batch), ACKS_ALL, now_ms)
            end = Offset(appended.last_offset + 1)
        committed: asyncio.Future[None] = loop.create_future()
        if partition.is_settled(end, ACKS_ALL):
            committed.set_result(None)
            return committed
        _settle(partition, end, committed, _COMMIT_S)
        return committed

    async def read(self) -> AsyncIterator[Iterable[KeyAndValue]]:
        """All that was ever committed, a chunk at a time."""
        partition = self.partition
        end = partition.log.end_offset
        if not partition.is_settled(end, ACKS_ALL):
            committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            _settle(partition, end, committed, _LOAD_S)
            await committed
        bytes_max = batches.decompressed_bytes_max(partition.log.config.max_message_bytes)
        position = partition.log.start_offset
        while position < end:
            if not self._coordinator.is_led(partition):
                raise NotCoordinator(f"this broker no longer leads {partition.tp}")
            found = partition.log.read(position, end, _CHUNK_BYTES, at_least_one=True)
            if found is None:
                return
            chunk: list[KeyAndValue] = []
            for header, view in batches.batches(partition.log.read_bytes(found)):
                position = header.next_offset
                if not header.is_control:
                    letters = batches.records(view, decompressed_bytes_max=bytes_max)
                    chunk += [(letter.key, letter.value) for letter in letters]
            yield chunk
            await asyncio.sleep(0)


def _settle(
    partition: LeaderPartition, end: Offset, committed: "asyncio.Future[None]", patience_s: float
) -> None:
    """Finish `committed` when the partition is committed up to `end`, or never will be."""

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


def _batches(records: Sequence[Record], now_ms: TimestampMs) -> Iterable[bytearray]:
    letters: list[batches.Record] = []
    size_bytes = 0
    for record in records:
        key, value = to_bytes(record)
        letters.append(batches.Record(timestamp_ms=now_ms, key=key, value=value))
        size_bytes += len(key) + len(value or b"")
        if size_bytes > _BATCH_BYTES:
            yield batches.build_batch(letters)
            letters, size_bytes = [], 0
    if letters:
        yield batches.build_batch(letters)


def shard_index(key: str, count: int) -> int:
    """Which partition a group belongs to: Java's hash of a string, as Kafka does it."""
    code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % count
