"""A damaged replica: cut before its damage by the worker, and followed behind that."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random

import pytest

from fakes import build
from fakes.cluster_images import cluster, put_topic
from fakes.log_dirs import ORDERS, ROOT, TOPIC_ID
from fakes.logs import SMALL, fill
from fakes.memory_files import MemoryFiles
from fakes.memory_store import MemoryStore
from fakes.workers import LaterWorker
from ottla.clock import SystemClock
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.state import ClusterState
from ottla.cluster.store import Revision
from ottla.cluster.values import PartitionImage
from ottla.config import BrokerConfig
from ottla.model import BrokerId, LeaderEpoch, Offset, Position
from ottla.replication.cutting import BegunCut, Cutting
from ottla.replication.following import Following
from ottla.replication.repair import Repairs
from ottla.storage.damages import Damage
from ottla.storage.flusher import InlineFlusher
from ottla.storage.log_dir import LogDir

HERE, ELSEWHERE = BrokerId(0), BrokerId(1)


LED_ELSEWHERE = PartitionImage(ELSEWHERE, LeaderEpoch(9), (ELSEWHERE, HERE), (ELSEWHERE,), 2)


def image(partition: PartitionImage = LED_ELSEWHERE, *, is_registered: bool = True) -> ClusterImage:
    """Another broker leads, and is alone in sync. It is not registered now: nobody fetches."""
    topic = TopicImage("orders", TOPIC_ID, (partition,))
    known = cluster(0) if is_registered else ClusterImage()
    return known.apply(put_topic(topic), Revision(2))


class Broker:
    """A broker with a replica of three segments, the second of which is damaged."""

    def __init__(self, known: ClusterImage, *, has_store: bool) -> None:
        self.files, self.worker = MemoryFiles(), LaterWorker()
        self.log_dir = LogDir(self.files, ROOT)
        self.log_dir.open_logs(lambda tp: SMALL, build.NOW_MS)
        self.log = self.log_dir.create_log(ORDERS, TOPIC_ID, SMALL, build.NOW_MS)
        fill(self.log, 2)
        self.log.flush()
        self.log_dir.checkpoint()
        self.damage()
        clock, self.wanted = SystemClock(), asyncio.Event()
        self.store = MemoryStore(clock)
        self.store.is_reachable = has_store
        on_lost = _raise if has_store else _ignore
        state = ClusterState(self.store, Random(1), known, BrokerConfig(), on_lost=on_lost)
        self.cutting = Cutting(self.log_dir, self.worker)
        self.following = Following(
            HERE,
            clock,
            Random(2),
            config=BrokerConfig,
            flusher=InlineFlusher(self.files, on_failed=self.log_dir.take_offline),
            watch=lambda task: None,
            report_dead=_report_nobody,
            want_repair=self.wanted.set,
            cutting=self.cutting,
        )
        self.following.note_image(known, [])
        self.following.hold(ORDERS)
        repairs = Repairs(state, self.following, self.log_dir, clock, HERE, self.wanted)
        self.task = asyncio.create_task(repairs.run())

    def damage(self) -> None:
        segment = self.log.sealed_segments[1]
        start = segment.base_offset
        damage = Damage(start, Offset(start + 2), Position(0), None)
        assert self.log.repair.note_damages(segment, [damage])

    async def turn(self) -> None:
        """Let everything run that can run now."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def settle(self) -> None:
        await self.turn()
        while self.worker.steps:
            self.worker.work()
            await self.turn()


def _raise(problem: BaseException) -> None:
    raise problem


def _ignore(problem: BaseException) -> None:
    return


async def _report_nobody(broker: BrokerId, epoch: int, by: BrokerId, stale: Revision) -> None:
    raise AssertionError("nobody is followed")


def run(
    scenario: Callable[[Broker], Awaitable[None]],
    *,
    partition: PartitionImage = LED_ELSEWHERE,
    has_store: bool = True,
    is_registered: bool = True,
) -> None:
    async def main() -> None:
        known = image(partition, is_registered=is_registered)
        broker = Broker(known, has_store=has_store)
        try:
            async with asyncio.timeout(30):
                await scenario(broker)
            assert not broker.task.done(), "a task that ends is a defect"
        finally:
            broker.task.cancel()
            await broker.following.close()

    asyncio.run(main())


def test_a_damaged_replica_is_cut_by_the_worker_and_followed_behind_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(broker: Broker) -> None:
        log, end = broker.log, broker.log.end_offset
        base = log.sealed_segments[1].base_offset
        await broker.turn()
        assert log.truncation.is_under_way
        broker.wanted.set()  # damage elsewhere, meanwhile
        await broker.turn()
        assert (broker.following.partitions, broker.following.counts.repairs) == ({}, 0)
        await broker.settle()
        assert (log.corrupt, log.end_offset) == ([], base)
        assert list(broker.following.partitions) == [ORDERS]
        assert (broker.following.held, broker.following.counts.repairs) == ({}, 1)
        (line,) = [vars(one) for one in caplog.records if one.message.startswith("damaged replica")]
        assert (line["end"], line["cut_at"]) == (end, base)
        assert line["kept"].split(", ")[-1] == f"{base:020d}.log.stray"

    run(scenario)


@pytest.mark.parametrize("turns", [0, 1])
def test_a_replica_that_goes_while_it_is_cut_is_not_followed(turns: int) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.turn()
        for _ in range(turns):
            broker.worker.work()
        broker.following.forget(ORDERS)
        forgotten = broker.log_dir.forget_log(ORDERS, Random(1))
        await broker.settle()
        broker.log_dir.directories.remove(forgotten)
        assert (broker.following.partitions, broker.following.counts.repairs) == ({}, 0)
        assert broker.log_dir.offline_reason is None

    run(scenario)


def test_a_replica_whose_disk_fails_while_it_is_cut_is_not_followed() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.turn()
        broker.files.fail_next("rename", suffix=".log")
        await broker.settle()
        assert broker.log_dir.offline_reason is not None
        assert (broker.following.partitions, broker.following.counts.repairs) == ({}, 0)

    run(scenario)


def test_a_replica_that_is_being_cut_for_its_leader_is_cut_before_its_damage_behind_that() -> None:
    async def scenario(broker: Broker) -> None:
        log = broker.log
        await broker.settle()  # repaired
        build.append(log)
        log.flush()
        cut = log.truncation.begin(Offset(log.end_offset - 1), build.NOW_MS)
        assert cut is not None
        broker.cutting.run([BegunCut(log, cut, lambda: None)])
        broker.following.hold(ORDERS)
        await broker.turn()
        assert list(broker.following.held) == [ORDERS], "not while it is cut"
        await broker.settle()
        broker.wanted.set()
        await broker.settle()
        assert (list(broker.following.partitions), broker.following.held) == ([ORDERS], {})

    run(scenario)


@pytest.mark.parametrize(
    "partition",
    [
        replace(LED_ELSEWHERE, isr=(ELSEWHERE, HERE)),
        replace(LED_ELSEWHERE, elr=(HERE,)),
    ],
    ids=["in sync", "eligible"],
)
def test_a_replica_that_may_be_elected_is_not_cut_until_it_has_been_given_up(
    partition: PartitionImage,
) -> None:
    async def scenario(broker: Broker) -> None:
        end = broker.log.end_offset
        await broker.settle()
        assert not broker.log.truncation.is_under_way
        assert (broker.log.end_offset, list(broker.following.held)) == (end, [ORDERS])

    run(scenario, partition=partition, has_store=False)


def test_a_broker_that_is_not_registered_follows_nothing_that_was_repaired() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.settle()
        assert (broker.log.corrupt, broker.following.counts.repairs) == ([], 1)
        assert (broker.following.partitions, broker.following.held) == ({}, {})

    run(scenario, is_registered=False)
