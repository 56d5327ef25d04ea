"""What the owner of all partitions leaves to the worker."""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from fakes import build
from fakes.cluster_images import after, broker, cluster, put_topic
from fakes.memory_files import MemoryFiles
from fakes.workers import LaterWorker
from ottla.clock import Clock, SystemClock
from ottla.cluster.controller.topics import delete_topic
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.store import Revision
from ottla.cluster.values import Change, PartitionImage, Ready, broker_key, partition_key, ready_key
from ottla.config import BrokerConfig, TopicConfig
from ottla.model import BrokerId, LeaderEpoch, Offset, TopicPartition, Uuid
from ottla.replication.cutting import BegunCut, Cutting
from ottla.replication.following import Following
from ottla.replication.replicas import Replicas
from ottla.storage.cleaner import Cleaner
from ottla.storage.delete_records import Deletions
from ottla.storage.flusher import InlineFlusher
from ottla.storage.log_dir import MANY, LogDir
from ottla.storage.scrub import Scrubber

ORDERS = TopicPartition("orders", 0)
POINTS = Path("/data/recovery-point-offset-checkpoint")


class ManualClock(SystemClock):
    """Intervals are as long as the test says."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


class ScriptedClock(SystemClock):
    """Each look at it gives the next of the times."""

    def __init__(self, times_s: Iterable[float]) -> None:
        self._times_s = iter(times_s)

    def monotonic_s(self) -> float:
        return next(self._times_s)


async def _report_nobody(broker: BrokerId, epoch: int, by: BrokerId, stale: Revision) -> None:
    raise AssertionError("nobody is followed here")


def _replicas(
    files: MemoryFiles, worker: LaterWorker, log_dir: LogDir, clock: Clock | None = None
) -> Replicas:
    flusher = InlineFlusher(files, on_failed=log_dir.take_offline)
    following = Following(
        BrokerId(0),
        clock or SystemClock(),
        Random(2),
        config=BrokerConfig,
        flusher=flusher,
        watch=lambda task: None,
        report_dead=_report_nobody,
        want_repair=lambda: None,
        cutting=Cutting(log_dir, worker),
    )
    return Replicas(
        log_dir,
        lambda settings: TopicConfig(),
        clock or SystemClock(),
        Random(1),
        broker_id=BrokerId(0),
        flusher=flusher,
        cleaner=Cleaner(files, worker),
        worker=worker,
        deletions=Deletions(log_dir, worker),
        scrubber=Scrubber(files, worker, log_dir.path),
        following=following,
        want_isr_change=lambda: None,
        soon=lambda callback: callback(),
        remember=lambda revision: None,
    )


def test_the_files_of_old_segments_are_removed_by_the_worker() -> None:
    files, worker = MemoryFiles(), LaterWorker()
    log_dir = LogDir(files, Path("/data"))
    replicas = _replicas(files, worker, log_dir)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS, listener=replicas)
    config = TopicConfig(retention_bytes=0)
    log = log_dir.create_log(ORDERS, Uuid(bytes(range(16))), config, build.NOW_MS)
    build.append(log)
    log.roll(build.NOW_MS)
    log.flush()
    assert log.retention.delete_old_segments(build.NOW_MS, log.end_offset) == 1

    def left() -> list[str]:
        names = [entry.name for entry in files.list(log.directory)]
        return [name for name in names if name.endswith(".deleted")]

    assert left() == [f"{0:020d}.log.deleted"]
    worker.work()
    assert left() == []
    assert log_dir.offline_reason is None


def test_a_start_of_many_seconds_says_at_most_every_second_how_far_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    image, files = _image(6), MemoryFiles()
    topic_id = image.topics["orders"].id
    before = LogDir(files, Path("/data"))
    before.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    for number in range(6):
        tp = TopicPartition("orders", number)
        before.create_log(tp, topic_id, TopicConfig(), build.NOW_MS)
    before.close()
    clock = ScriptedClock([0.0, 0.9, 10.0, 10.1, 10.9, 11.1, 11.2])

    async def scenario() -> None:
        replicas = _replicas(files, LaterWorker(), LogDir(files, Path("/data")), clock)
        with caplog.at_level("INFO", logger="ottla.replication"):
            replicas.open(image)
        await replicas.close()

    asyncio.run(scenario())
    said = [vars(line) for line in caplog.records if line.message == "logs being opened"]
    assert [(line["done"], line["total"]) for line in said] == [(2, 6), (5, 6)]


def test_a_topic_is_unfinished_until_its_logs_are_made_also_while_that_is_tried_again() -> None:
    files, worker = MemoryFiles(), LaterWorker()
    log_dir = LogDir(files, Path("/data"))

    async def scenario() -> None:
        replicas = _replicas(files, worker, log_dir)
        replicas.open(ClusterImage())
        files.fail_next("create", errno.EMFILE)
        replicas.note_image(_image())
        await _turn()
        await _settle(worker)
        assert replicas.failure_of("orders") is not None
        replicas.retry_unfinished()
        await _turn()
        assert worker.steps, "the log is being made"
        assert replicas.failure_of("orders") is not None
        await _settle(worker)
        assert replicas.failure_of("orders") is None
        assert ORDERS in replicas.leaders
        await replicas.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("number", "is_offline"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_a_disk_that_fails_while_many_logs_are_made_is_offline_and_a_full_one_is_not(
    number: int, is_offline: bool
) -> None:
    files, worker = MemoryFiles(), LaterWorker()
    log_dir = LogDir(files, Path("/data"))

    async def scenario() -> None:
        replicas = _replicas(files, worker, log_dir)
        replicas.open(ClusterImage())
        files.fail_next("sync_all", number)
        replicas.note_image(_image(MANY))
        await _turn()
        await _settle(worker)
        assert not files.has_faults
        assert replicas.is_offline is is_offline
        assert len(replicas.leaders) == (0 if is_offline else MANY)
        await replicas.close()

    asyncio.run(scenario())


def _image(partition_count: int = 1) -> ClusterImage:
    partition = PartitionImage(BrokerId(0), LeaderEpoch(0), (BrokerId(0),), (BrokerId(0),), 0)
    topic = TopicImage("orders", Uuid(bytes(range(16))), (partition,) * partition_count)
    return cluster(0).apply(put_topic(topic), Revision(1))


async def _settle(worker: LaterWorker) -> None:
    """Let the worker do what there is to do, and what follows from it."""
    while worker.steps:
        worker.work()
        await _turn()


async def _turn() -> None:
    """Let everything run that can run now."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_changed_settings_reach_partitions_that_are_led_and_that_are_followed() -> None:
    files, worker = MemoryFiles(), LaterWorker()
    log_dir = LogDir(files, Path("/data"))
    here, there = BrokerId(0), BrokerId(1)
    both = (here, there)
    led = PartitionImage(here, LeaderEpoch(0), both, both, 0)
    followed = PartitionImage(there, LeaderEpoch(0), both, both, 0)
    topic = TopicImage("orders", Uuid(bytes(range(16))), (led, followed))

    async def scenario() -> None:
        replicas = _replicas(files, worker, log_dir)
        replicas.open(ClusterImage())
        replicas.note_image(cluster(0, 1).apply(put_topic(topic), Revision(9)))
        await _turn()
        await _settle(worker)
        assert list(replicas.leaders) == [TopicPartition("orders", 0)]
        assert list(replicas.following.partitions) == [TopicPartition("orders", 1)]
        changed = TopicConfig(retention_ms=5)
        replicas._topic_config = lambda settings: changed
        replicas.note_settings()
        assert [log.config for log in replicas.logs.values()] == [changed, changed]
        await replicas.close()

    asyncio.run(scenario())


def test_partitions_are_behind_while_an_image_waits_and_none_is_applied() -> None:
    files, worker, clock = MemoryFiles(), LaterWorker(), ManualClock()
    log_dir = LogDir(files, Path("/data"))

    async def scenario() -> None:
        replicas = _replicas(files, worker, log_dir, clock)
        replicas.open(ClusterImage())
        assert replicas.behind_s == 0
        replicas.note_image(_image())
        await _turn()
        clock.now_s += 7
        assert replicas.behind_s == 7, "the log is being made"
        newer = _image().apply([], Revision(2))
        replicas.note_image(newer)
        await _settle(worker)
        assert replicas.behind_s == 0
        clock.now_s += 7
        assert replicas.behind_s == 0
        await replicas.close()

    asyncio.run(scenario())


def test_partitions_are_behind_while_a_newer_image_waits_for_the_disk() -> None:
    files, worker, clock = MemoryFiles(), LaterWorker(), ManualClock()
    log_dir = LogDir(files, Path("/data"))
    alone = BrokerId(0)
    partition = PartitionImage(alone, LeaderEpoch(0), (alone,), (alone,), 0)
    second = TopicImage("payments", Uuid(bytes(range(1, 17))), (partition,))

    async def scenario() -> None:
        replicas = _replicas(files, worker, log_dir, clock)
        replicas.open(ClusterImage())
        replicas.note_image(_image())
        await _turn()
        clock.now_s += 7
        replicas.note_image(_image().apply(put_topic(second), Revision(_image().revision + 1)))
        while replicas.behind_s:
            worker.work()
            await _turn()
        assert [topic for topic, _ in replicas.leaders] == ["orders"]
        clock.now_s += 3
        assert replicas.behind_s == 3, "the second log is being made"
        await _settle(worker)
        assert (len(replicas.leaders), replicas.behind_s) == (2, 0)
        await replicas.close()

    asyncio.run(scenario())


def test_a_broker_that_is_not_ready_leads_nothing() -> None:
    """An earlier process of its id led, in the epoch that the image still has."""
    files, worker = MemoryFiles(), LaterWorker()
    log_dir = LogDir(files, Path("/data"))

    async def scenario() -> None:
        replicas = _replicas(files, worker, log_dir)
        replicas.open(ClusterImage())
        started = _image().apply([Change(broker_key(BrokerId(0)), broker(0))], Revision(2))
        assert not started.brokers
        replicas.note_image(started)
        await _turn()
        await _settle(worker)
        assert (replicas.leaders, dict(replicas.logs)) == ({}, {})
        ready = Change(ready_key(BrokerId(0)), Ready(BrokerId(0), 2))
        led = replace(_image().topics["orders"].partitions[0], leader_epoch=LeaderEpoch(2))
        again = Change(partition_key(started.topics["orders"].id, 0), led)
        replicas.note_image(started.apply([ready, again], Revision(3)))
        await _turn()
        await _settle(worker)
        assert [one.leader_epoch for one in replicas.leaders.values()] == [2]
        await replicas.close()

    asyncio.run(scenario())


HERE, THERE = BrokerId(0), BrokerId(1)


def _moved(replicas: tuple[BrokerId, ...], epoch: int, revision: int) -> ClusterImage:
    """Broker 1 leads; these are the replicas so many leader epochs later."""
    leader_epoch = LeaderEpoch(build.EPOCH + epoch)
    partition = PartitionImage(THERE, leader_epoch, replicas, (THERE,), revision)
    topic = TopicImage("orders", Uuid(bytes(range(16))), (partition,))
    return cluster(0, 1).apply(put_topic(topic), Revision(revision))


class Followed(NamedTuple):
    """The replicas of a broker that follows the partition, and what they are kept in."""

    files: MemoryFiles
    worker: LaterWorker
    log_dir: LogDir
    replicas: Replicas

    async def note(self, image: ClusterImage) -> None:
        """The image comes, and everything that follows from it is done."""
        self.replicas.note_image(image)
        await self.settle()

    async def settle(self) -> None:
        await _turn()
        await _settle(self.worker)


def with_follower(scenario: Callable[[Followed], Awaitable[None]]) -> None:
    files, worker = MemoryFiles(), LaterWorker()
    log_dir = LogDir(files, Path("/data"))

    async def main() -> None:
        replicas = _replicas(files, worker, log_dir)
        replicas.open(ClusterImage())
        followed = Followed(files, worker, log_dir, replicas)
        await followed.note(_moved((THERE, HERE), 0, 2))
        await scenario(followed)
        await replicas.close()

    asyncio.run(main())


def _led_by(leader: BrokerId, epoch: int, revision: int) -> ClusterImage:
    leader_epoch = LeaderEpoch(build.EPOCH + epoch)
    partition = PartitionImage(leader, leader_epoch, (THERE, HERE), (THERE, HERE), revision)
    topic = TopicImage("orders", Uuid(bytes(range(16))), (partition,))
    return cluster(0, 1).apply(put_topic(topic), Revision(revision))


def _cut(followed: Followed) -> list[str]:
    """Begin to cut the log; the list gets an entry when that is over."""
    log, over = followed.replicas.logs[ORDERS], list[str]()
    for _ in range(5):
        build.append(log)
    log.flush()
    followed.log_dir.checkpoint()
    cut = log.truncation.begin(Offset(2), build.NOW_MS)
    assert cut is not None
    begun = BegunCut(log, cut, lambda: over.append("over"))
    followed.replicas.following.cutting.run([begun])
    return over


@pytest.mark.parametrize("leader", [HERE, THERE])
def test_a_log_that_is_being_cut_is_served_in_the_next_epoch_when_that_is_over(
    leader: BrokerId,
) -> None:
    async def scenario(followed: Followed) -> None:
        replicas, over = followed.replicas, _cut(followed)
        replicas.note_image(_led_by(leader, 1, 3))
        for _ in range(2):  # the checkpoint, then the cut
            await _turn()
            assert (replicas.leaders, replicas.following.partitions, over) == ({}, {}, [])
            followed.worker.work()
        await _turn()
        assert over == ["over"]
        assert list(replicas.leaders) == ([ORDERS] if leader == HERE else [])
        assert list(replicas.following.partitions) == ([ORDERS] if leader == THERE else [])
        assert replicas.logs[ORDERS].end_offset == 2
        assert replicas.committed_end(ORDERS) <= 2

    with_follower(scenario)


def test_a_log_whose_disk_fails_while_it_is_cut_is_served_by_nobody() -> None:
    async def scenario(followed: Followed) -> None:
        replicas, over = followed.replicas, _cut(followed)
        replicas.note_image(_led_by(HERE, 1, 3))
        await _turn()
        followed.worker.work()
        followed.files.fail_next("truncate")
        await followed.settle()
        assert replicas.is_offline
        assert over == ["over"]
        assert (replicas.leaders, replicas.following.partitions) == ({}, {})
        assert replicas.failure_of("orders") is not None

    with_follower(scenario)


@pytest.mark.parametrize("turns", range(3), ids=["checkpoint", "cut", "over"])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_log_that_goes_while_it_is_cut_leaves_nothing(turns: int, is_deleted: bool) -> None:
    """The worker removes its files behind the cut, or they are not cut at all."""

    async def scenario(followed: Followed) -> None:
        replicas, over = followed.replicas, _cut(followed)
        for _ in range(turns):
            followed.worker.work()
        image = _moved((THERE,), 1, 3)
        if is_deleted:
            image = after(image, delete_topic(image, "orders", BrokerConfig()))
        replicas.note_image(image)
        await followed.settle()
        assert over == ["over"]
        assert not replicas.is_offline
        assert ORDERS not in replicas.logs
        assert not any("orders" in name for name in followed.files.names(Path("/data")))

    with_follower(scenario)


def test_the_log_of_a_replica_that_has_moved_is_removed_and_made_anew_if_it_comes_back() -> None:
    async def scenario(followed: Followed) -> None:
        files, replicas = followed.files, followed.replicas
        build.append(replicas.logs[ORDERS])
        followed.log_dir.checkpoint()
        assert b"orders" in files.read_whole(POINTS)
        replicas.note_image(_moved((THERE,), 1, 3))
        assert not replicas.following.partitions, "it is no longer fetched at once"
        await _turn()
        assert ORDERS not in replicas.logs
        await _settle(followed.worker)
        assert not any("orders" in name for name in files.names(Path("/data")))
        assert b"orders" not in files.read_whole(POINTS), "the old one's end is not the new one's"
        await followed.note(_moved((THERE, HERE), 1, 4))
        assert replicas.logs[ORDERS].end_offset == 0
        assert list(replicas.following.partitions) == [ORDERS]

    with_follower(scenario)


def test_a_replica_that_is_dropped_and_added_at_once_keeps_its_log() -> None:
    async def scenario(followed: Followed) -> None:
        replicas = followed.replicas
        build.append(replicas.logs[ORDERS])
        replicas.note_image(_moved((THERE,), 1, 3))
        await followed.note(_moved((THERE, HERE), 1, 4))
        assert replicas.logs[ORDERS].end_offset == 1, "its leader says what of it is right"
        assert list(replicas.following.partitions) == [ORDERS]

    with_follower(scenario)


def test_a_log_that_is_newer_than_the_store_is_not_removed() -> None:
    async def scenario(followed: Followed) -> None:
        followed.replicas.logs[ORDERS].epochs.note(LeaderEpoch(build.EPOCH + 9), Offset(0))
        await followed.note(_moved((THERE,), 1, 3))
        assert ORDERS in followed.replicas.logs

    with_follower(scenario)


def test_a_broker_that_is_not_ready_removes_no_log() -> None:
    async def scenario(followed: Followed) -> None:
        gone = [Change(ready_key(HERE), None)]
        await followed.note(_moved((THERE,), 1, 3).apply(gone, Revision(4)))
        assert ORDERS in followed.replicas.logs
        await followed.note(_moved((THERE,), 1, 5))
        assert ORDERS not in followed.replicas.logs

    with_follower(scenario)
