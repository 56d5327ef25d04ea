"""A coordinator whose machine keeps words, and the cluster that it is in."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import cast

from fakes import build
from fakes.cluster_images import cluster, put_topic
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from fakes.virtual_loop import VirtualLoop
from ottla.cluster.image import TopicImage
from ottla.cluster.state import ClusterState
from ottla.cluster.store import Revision
from ottla.cluster.values import PartitionImage
from ottla.config import Durability, TopicConfig
from ottla.coordinator.runtime.coordinator import Coordinator
from ottla.coordinator.runtime.decision import Decision, Ticket
from ottla.coordinator.runtime.log_entries import Entry, TransactionEnded
from ottla.coordinator.runtime.shard import Shard
from ottla.errors import ApiError
from ottla.model import BrokerId, LeaderEpoch, TopicPartition, Uuid
from ottla.replication.partition import LeaderPartition
from ottla.replication.replicas import Replicas
from ottla.storage.log import Log

TOPIC = "__words"
HERE, THERE = BrokerId(0), BrokerId(1)


class Words:
    """A machine that keeps words."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def replay(self, record: str, now_ms: int, /) -> None:
        self.words.append(record)

    def end_load(self) -> None:
        return

    def next_deadline_ms(self) -> int | None:
        return None

    def pass_time(self, now_ms: int) -> Decision[str]:
        return Decision()


class WordCoordinator(Coordinator[Words, str]):
    """Coordinates words; `loaded` are the partitions whose logs were read, in their order."""

    topic = TOPIC

    @cached_property
    def loaded(self) -> list[int]:
        return []

    def new_machine(self, index: int) -> Words:
        return Words()

    def encode(self, record: str) -> Entry:
        return Entry(b"word", record.encode())

    def decode(self, entry: Entry | TransactionEnded) -> str | None:
        assert isinstance(entry, Entry)
        return (entry.value or b"").decode()

    async def expire(self) -> None:
        raise AssertionError("no word expires")

    async def note_loaded(self, shard: Shard[Words, str]) -> None:
        assert shard.machine in self.machines(), "it serves already"
        self.loaded.append(shard.log.partition.tp.partition)


class NoDisk:
    """A flusher that is not needed: the topic does not wait for the disk."""

    def request(self, log: Log) -> None:
        raise AssertionError("the topic does not wait for the disk")


class FakeCluster:
    """The image, the partitions that are led here, and the creator of the topic, in one."""

    def __init__(self, partition_count: int) -> None:
        self.image = cluster(HERE, THERE)
        self.partition_count = partition_count
        self.leaders: dict[tuple[str, int], LeaderPartition] = {}
        self.creations = 0
        self.creation_s = 0.0
        self.refusals: dict[str, ApiError] = {}
        self.applied = asyncio.Event()
        self.applied.set()

    async def create_missing(self, names: Sequence[str]) -> dict[str, ApiError]:
        assert list(names) == [TOPIC]
        self.creations += 1
        await asyncio.sleep(self.creation_s)
        if not self.refusals:
            self.lead(range(self.partition_count))
        return self.refusals

    def is_ready(self, tp: TopicPartition, partition: PartitionImage) -> bool:
        return partition.leader != HERE or tp in self.leaders

    async def wait_applied(self, revision: Revision) -> None:
        await self.applied.wait()

    def lead(self, indexes: Sequence[int], elsewhere: BrokerId | None = THERE) -> None:
        """Have this broker lead these partitions, and `elsewhere` all others."""
        self.put([HERE if index in indexes else elsewhere for index in range(self.partition_count)])
        for index in range(self.partition_count):
            if index not in indexes:
                self.leaders.pop((TOPIC, index), None)
            elif (TOPIC, index) not in self.leaders:
                self.leaders[TOPIC, index] = self._partition(index)

    def put(self, leaders: Sequence[BrokerId | None]) -> None:
        """Replace the topic in the image."""
        partitions = tuple(
            PartitionImage(leader, LeaderEpoch(0), (HERE, THERE), (HERE, THERE), 0)
            for leader in leaders
        )
        topic = TopicImage(TOPIC, Uuid(bytes(16)), partitions)
        revision = Revision(self.image.revision + 1)
        self.image = self.image.apply(put_topic(topic), revision)

    def _partition(self, index: int) -> LeaderPartition:
        config = TopicConfig(durability=Durability.REPLICATED)
        return led_partition(
            TopicPartition(TOPIC, index),
            build.log(MemoryFiles(), config),
            broker_id=HERE,
            leader_epoch=LeaderEpoch(3),
            replicas=(HERE,),
            isr=frozenset({HERE}),
            flusher=NoDisk(),
            soon=lambda wake: wake(),
        )


class WordBench:
    """A coordinator on a virtual loop, and the defects that it has reported."""

    def __init__(
        self,
        partition_count: int = 1,
        coordinator_class: type[WordCoordinator] = WordCoordinator,
    ) -> None:
        self.cluster = FakeCluster(partition_count)
        self.loop = cast("VirtualLoop", asyncio.get_running_loop())
        self.defects: list[BaseException] = []
        self.coordinator = coordinator_class(
            cast("ClusterState", self.cluster),
            cast("Replicas", self.cluster),
            self.cluster,
            self.loop,
            self.defects.append,
        )

    async def say(self, key: str, word: str = "word") -> str:
        return await self.coordinator.run(key, say(word))

    def words(self) -> list[list[str]]:
        return [machine.words for machine in self.coordinator.machines()]


def say(word: str) -> Callable[[Words, Ticket[str], int], Decision[str]]:
    """Decides to keep a word."""

    def decide(machine: Words, ticket: Ticket[str], now_ms: int) -> Decision[str]:
        machine.replay(word, now_ms)
        return Decision((word,), (ticket.respond(f"said {word}"),))

    return decide
