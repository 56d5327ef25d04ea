"""Records of a machine in a partition: written in batches, read back as they were."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest

from fakes import build
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from ottla.clock import SystemClock
from ottla.config import Durability, TopicConfig
from ottla.coordinator.runtime.log_entries import (
    Entry,
    ProducerIdentity,
    TransactionEnded,
    UnreadableRecord,
)
from ottla.coordinator.runtime.shard_log import ShardLog, committed
from ottla.errors import ApiError, NotCoordinator, RequestTimedOut
from ottla.model import BrokerId, LeaderEpoch, Offset, ProducerEpoch, ProducerId, TopicPartition
from ottla.records.batch import Marker, MarkerKind
from ottla.replication.replicas import Replicas
from ottla.storage.log import Log

TP = TopicPartition("__state", 0)
PRODUCER = ProducerIdentity(ProducerId(9), ProducerEpoch(1))


class Texts:
    """Records are texts; one that begins with a number is its producer's, `#` is unreadable."""

    def encode(self, record: str | TransactionEnded) -> Entry:
        assert isinstance(record, str)
        producer = PRODUCER if record.startswith("9") else None
        return Entry(b"key", record.encode(), producer)

    def decode(self, entry: Entry | TransactionEnded) -> str | TransactionEnded | None:
        if isinstance(entry, TransactionEnded):
            return entry
        if entry.value is None:
            return None
        if entry.value.startswith(b"#"):
            raise UnreadableRecord("a comment")
        return entry.value.decode()


class NoDisk:
    """A flusher that never gets anything onto the disk."""

    def request(self, log: Log) -> None:
        pass


class Scene:
    def __init__(self, durability: Durability = Durability.REPLICATED) -> None:
        self.partition = led_partition(
            TP,
            build.log(
                MemoryFiles(), TopicConfig(durability=durability, max_message_bytes=32 << 20)
            ),
            broker_id=BrokerId(0),
            leader_epoch=LeaderEpoch(3),
            replicas=(BrokerId(0),),
            isr=frozenset({BrokerId(0)}),
            flusher=NoDisk(),
            soon=lambda callback: callback(),
        )
        self.leaders = {TP: self.partition}
        replicas = cast("Replicas", SimpleNamespace(leaders=self.leaders))
        self.log = ShardLog[str | TransactionEnded](
            self.partition, Texts(), replicas, SystemClock()
        )
        self.commits: list[ApiError | None] = []

    def append(self, *records: str) -> None:
        if self.log.append(records, self.commits.append):
            self.commits.append(None)

    async def read(self) -> list[str | TransactionEnded]:
        return [record async for chunk in self.log.read() for record in chunk]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(main())


def test_records_read_back_in_order_with_their_producers_markers() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.append("a", "9 pending", "b")
        marker = Marker(MarkerKind.COMMIT, 3)
        scene.log.append_marker(marker, PRODUCER, scene.commits.append)
        assert scene.commits == [None, None]
        ended = TransactionEnded(PRODUCER, is_committed=True)
        assert await scene.read() == ["a", "9 pending", "b", ended]

    run(scenario)


def test_unreadable_records_are_skipped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.append("a", "# one", "b", "# two")
        assert await scene.read() == ["a", "b"]

    run(scenario)
    (line,) = caplog.records
    assert line.getMessage() == "unreadable records skipped"
    assert line.__dict__["tp"] == TP
    assert line.__dict__["count"] == 2


def test_a_large_turn_is_written_in_several_batches() -> None:
    async def scenario() -> None:
        scene = Scene()
        texts = [letter * (1 << 19) for letter in "abcdef"]
        scene.append(*texts)
        assert scene.commits == [None], "one call for all batches"
        assert await scene.read() == texts

    run(scenario)


def test_a_partition_that_is_led_elsewhere_is_neither_written_nor_read() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.append("a")
        assert scene.log.is_led
        scene.leaders.clear()
        assert not scene.log.is_led
        with pytest.raises(NotCoordinator):
            scene.append("b")
        with pytest.raises(NotCoordinator):
            await scene.read()
        assert scene.partition.log.end_offset == 1

    run(scenario)


def test_a_commit_that_does_not_come_times_out() -> None:
    async def scenario() -> None:
        scene = Scene(Durability.FSYNC)
        scene.append("a")
        assert scene.commits == []
        with pytest.raises(RequestTimedOut, match="did not commit"):
            await committed(scene.partition, Offset(1), timeout_s=0.01)

    run(scenario)
