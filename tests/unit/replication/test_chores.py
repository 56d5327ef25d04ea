"""Chores: each log gets its turn, whatever becomes of the others."""

import asyncio
import errno
from dataclasses import replace
from random import Random
from weakref import ref

import pytest

from fakes import build
from fakes.led import led_partition
from fakes.log_dirs import CLICKS, ORDERS, ROOT, TOPIC_ID
from fakes.memory_files import MemoryFiles
from fakes.workers import LaterWorker
from ottla.clock import SystemClock
from ottla.config import Durability, TopicConfig
from ottla.model import BrokerId, Offset, ProducerId, TimestampMs, TopicPartition
from ottla.replication.chores import Chores
from ottla.replication.partition import LeaderPartition
from ottla.storage.checkpoint_commits import CheckpointCommits
from ottla.storage.cleaner import Cleaner
from ottla.storage.flusher import InlineFlusher
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.scrub import Scrubber

CONFIG = TopicConfig(durability=Durability.REPLICATED)
DAY_MS = 86_400_000


class FixedClock(SystemClock):
    """A clock that stands still."""

    def now_ms(self) -> TimestampMs:
        return build.NOW_MS


class Broker:
    """The chores of a few logs, with a worker that works when the test says so."""

    def __init__(self) -> None:
        self.files, self.worker = MemoryFiles(), LaterWorker()
        self.log_dir = LogDir(self.files, ROOT)
        self.log_dir.open_logs(lambda tp: CONFIG, build.NOW_MS)
        self.flusher = InlineFlusher(self.files, on_failed=self.log_dir.take_offline)
        self.leaders: dict[tuple[str, int], LeaderPartition] = {}
        self.chores = Chores(
            self.log_dir,
            FixedClock(),
            committed_end=lambda tp: (
                self.leaders[tp].high_watermark if tp in self.leaders else Offset(0)
            ),
            flusher=self.flusher,
            cleaner=Cleaner(self.files, self.worker),
            scrubber=Scrubber(self.files, self.worker, ROOT),
            checkpoints=CheckpointCommits(self.log_dir, self.worker),
            soon=lambda callback: callback(),
        )

    def _committed_end(self, tp: TopicPartition) -> Offset:
        return self.leaders[tp].high_watermark if tp in self.leaders else Offset(0)

    def lead(self, tp: TopicPartition, config: TopicConfig = CONFIG) -> Log:
        log = self.log_dir.create_log(tp, TOPIC_ID, config, build.NOW_MS)
        self.leaders[tp] = led_partition(
            tp,
            log,
            broker_id=BrokerId(0),
            leader_epoch=build.EPOCH,
            replicas=(BrokerId(0),),
            isr=frozenset({BrokerId(0)}),
            flusher=self.flusher,
            soon=lambda callback: callback(),
        )
        return log

    def commit(self) -> None:
        """Have everything in the logs on disk, and so committed."""
        for tp, log in self.log_dir.logs.items():
            log.flush()
            self.leaders[tp].note_progress()

    async def checkpoint(self) -> None:
        checkpoint = asyncio.create_task(self.chores.checkpoint())
        while not checkpoint.done():
            await asyncio.sleep(0)
            self.worker.work()
        await checkpoint

    def work(self) -> None:
        while self.worker.steps:
            self.worker.work()


@pytest.fixture
def broker() -> Broker:
    return Broker()


def sealed(log: Log) -> None:
    build.append(log)
    log.roll(build.NOW_MS)
    log.flush()


def test_a_checkpoint_flushes_what_no_producer_waits_for(broker: Broker) -> None:
    log = broker.lead(ORDERS)
    build.append(log, 3)
    asyncio.run(broker.checkpoint())
    assert log.durable_offset == log.flushing.checkpointed_offset == 3
    again = LogDir(broker.files.kill(), ROOT)
    again.open_logs(lambda tp: CONFIG, build.NOW_MS)
    assert again.logs[ORDERS].flushing.checkpointed_offset == 3


@pytest.mark.parametrize(("number", "is_offline"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_a_checkpoint_that_fails_is_offline_unless_the_disk_is_full(
    broker: Broker, number: int, is_offline: bool
) -> None:
    broker.lead(ORDERS)
    broker.files.fail_next("create", number, suffix="checkpoint.tmp")
    build.append(broker.log_dir.logs[ORDERS])
    asyncio.run(broker.checkpoint())
    assert not broker.files.has_faults
    assert (broker.log_dir.offline_reason is not None) is is_offline


def test_a_checkpoint_does_not_keep_a_deleted_log_open(broker: Broker) -> None:
    """Or what its files took would not be free when the topic is gone."""

    async def scenario() -> None:
        broker.log_dir.create_log(ORDERS, TOPIC_ID, CONFIG, build.NOW_MS)
        build.append(broker.log_dir.logs[ORDERS])
        checkpoint = asyncio.create_task(broker.chores.checkpoint())
        for _ in range(10):
            await asyncio.sleep(0)
        assert broker.worker.steps
        log = ref(broker.log_dir.logs[ORDERS])
        broker.log_dir.delete_log(ORDERS, Random(1))
        assert log() is None
        broker.work()
        await checkpoint
        assert broker.log_dir.offline_reason is None

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_retention_goes_on_with_other_logs_when_one_finds_no_room(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The reserve is used up: an old active segment cannot be sealed."""
    old = replace(CONFIG, retention_ms=1)
    first, second = broker.lead(ORDERS, old), broker.lead(CLICKS, old)
    for log in (first, second):
        log.append_as_leader(
            build.batch(timestamp_ms=build.NOW_MS - 1000), build.EPOCH, build.NOW_MS
        )
    broker.commit()
    for _ in range(2):  # the second time with the room of the reserve
        broker.files.fail_next("create", errno.ENOSPC, suffix=".log")
    asyncio.run(broker.chores.delete_old_segments())
    assert (first.start_offset, second.start_offset) == (0, 1)
    (said,) = [line for line in caplog.records if line.message == "retention failed"]
    assert vars(said)["tp"] == ORDERS
    assert broker.log_dir.offline_reason is None


def test_a_disk_that_fails_at_retention_is_offline(broker: Broker) -> None:
    log = broker.lead(ORDERS, replace(CONFIG, retention_bytes=0))
    sealed(log)
    broker.commit()
    broker.files.fail_next("rename", errno.EIO)
    asyncio.run(broker.chores.delete_old_segments())
    assert broker.log_dir.offline_reason is not None


def test_retention_deletes_nothing_above_the_high_watermark(broker: Broker) -> None:
    log = broker.lead(ORDERS, replace(CONFIG, retention_bytes=0))
    sealed(log)
    broker.commit()
    sealed(log)
    assert (broker.leaders[ORDERS].high_watermark, log.end_offset) == (1, 2)
    asyncio.run(broker.chores.delete_old_segments())
    assert log.start_offset == 1
    broker.commit()
    asyncio.run(broker.chores.delete_old_segments())
    assert log.start_offset == 2


def test_a_log_that_is_not_led_here_is_looked_after_and_keeps_its_records(broker: Broker) -> None:
    log = broker.lead(ORDERS, replace(CONFIG, retention_bytes=0))
    batch = build.batch(producer_id=1, producer_epoch=0, base_sequence=0)
    log.append_as_leader(batch, build.EPOCH, TimestampMs(build.NOW_MS - 10_000))
    sealed(log)
    broker.commit()
    del broker.leaders[ORDERS]
    asyncio.run(broker.chores.delete_old_segments())
    assert log.start_offset == 0, "nothing is known to be committed"
    assert log.producers.get(ProducerId(1)) is not None
    asyncio.run(broker.chores.expire_producers(5000))
    assert log.producers.get(ProducerId(1)) is None
    log.config = replace(CONFIG, cleanup_policy=("compact",))
    assert list(broker.chores.compacted()) == [(log, 0)]


def test_producers_that_went_silent_are_forgotten(broker: Broker) -> None:
    log = broker.lead(ORDERS)
    batch = build.batch(producer_id=1, producer_epoch=0, base_sequence=0)
    log.append_as_leader(batch, build.EPOCH, TimestampMs(build.NOW_MS - 1000))
    asyncio.run(broker.chores.expire_producers(1001))
    assert len(log.producers) == 1
    asyncio.run(broker.chores.expire_producers(999))
    assert len(log.producers) == 0


def test_compacted_topics_are_compacted_below_the_last_stable_offset(broker: Broker) -> None:
    broker.lead(ORDERS)
    log = broker.lead(CLICKS, replace(CONFIG, cleanup_policy=("compact",)))
    assert list(broker.chores.compacted()) == [(log, Offset(0))]


def test_scrubbing_counts_what_is_damaged(broker: Broker) -> None:
    log = broker.lead(ORDERS)
    sealed(log)
    broker.files.flip(log.directory / f"{0:020d}.log", 70)
    for _ in range(4):
        broker.chores.scrub(DAY_MS)
        broker.work()
    assert broker.chores.damaged_range_count == 1
    assert broker.chores.scrubber.damage_count == 1


def test_nothing_is_done_on_a_disk_that_has_failed(broker: Broker) -> None:
    broker.lead(ORDERS)
    broker.log_dir.take_offline(OSError(errno.EIO, "broken"))
    broker.chores.scrub(DAY_MS)
    asyncio.run(broker.chores.checkpoint())
    assert not broker.worker.steps
