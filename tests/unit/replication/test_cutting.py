"""Many logs are cut: behind one checkpoint, by the worker, some at a time."""

import asyncio
import errno
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from weakref import ref

import pytest

from fakes import build
from fakes.log_dirs import ROOT, TOPIC_ID
from fakes.memory_files import MemoryFiles
from fakes.workers import LaterWorker
from ottla.config import TopicConfig
from ottla.model import BrokerId, LeaderEpoch, Offset, TopicPartition
from ottla.protocol.messages.fetch import EpochEndOffset, FetchPartitionResponse
from ottla.replication.cutting import BegunCut, Cutting
from ottla.replication.follower import FollowerPartition
from ottla.storage.disk_worker import ThreadWorker, Worker
from ottla.storage.files import StrPath
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir

COUNT = 100  # logs that are cut together
POINTS = ROOT / "recovery-point-offset-checkpoint"


class Broker:
    """The logs of a broker, of five records each, and a worker that works when the test says so."""

    def __init__(
        self, files: MemoryFiles | None = None, worker: Worker | None = None, count: int = COUNT
    ) -> None:
        self.files, self.later = files or MemoryFiles(), LaterWorker()
        self.log_dir = LogDir(self.files, ROOT)
        self.log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
        for index in range(count):
            tp = TopicPartition("orders", index)
            log = self.log_dir.create_log(tp, TOPIC_ID, TopicConfig(), build.NOW_MS)
            for _ in range(5):
                build.append(log)
        self.log_dir.flush_all()
        self.log_dir.checkpoint()
        self.cutting = Cutting(self.log_dir, worker or self.later)
        self.ended: list[TopicPartition] = []

    @property
    def logs(self) -> list[Log]:
        return list(self.log_dir.logs.values())

    def begin(self, log: Log, at: int = 2) -> BegunCut:
        cut = log.truncation.begin(Offset(at), build.NOW_MS)
        assert cut is not None
        return BegunCut(log, cut, partial(self.ended.append, log.tp))

    def work(self) -> int:
        """Do all there is to do; how many turns of the worker it took."""
        turns = 0
        while self.later.steps:
            self.later.work()
            turns += 1
        return turns

    def points(self) -> Counter[str]:
        """How many logs have which recovery point on disk."""
        lines = self.files.read_whole(POINTS).decode().splitlines()[2:]
        return Counter(line.split()[-1] for line in lines if line.startswith("orders"))


def ends(logs: list[Log]) -> Counter[tuple[int, str | None]]:
    return Counter((log.end_offset, log.offline_reason) for log in logs)


def test_all_recovery_points_are_lowered_at_once_and_before_anything_is_cut() -> None:
    broker = Broker()
    broker.files.counts.clear()
    broker.cutting.run([broker.begin(log) for log in broker.logs])
    assert broker.files.counts["sync"] == 0
    broker.later.work()
    assert broker.points() == {"2": COUNT}
    assert broker.files.counts["sync"] == 1, "of the recovery points"
    assert ends(broker.logs) == {(5, "the log is being cut"): COUNT}
    assert broker.work() == 4, "some logs at a time"
    assert ends(broker.logs) == {(2, None): COUNT}
    assert broker.ended == list(broker.log_dir.logs)
    again = LogDir(broker.files.cut_power(Random(1)), ROOT)
    again.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    assert ends(list(again.logs.values())) == {(2, None): COUNT}


def test_what_no_checkpoint_promises_is_cut_without_one() -> None:
    broker = Broker(count=0)
    log = broker.log_dir.create_log(
        TopicPartition("orders", 0), TOPIC_ID, TopicConfig(), build.NOW_MS
    )
    build.append(log)
    build.append(log)
    broker.cutting.run([broker.begin(log, 1)])
    broker.later.work()
    assert ends([log]) == {(1, None): 1}


def test_a_checkpoint_that_comes_meanwhile_is_written_behind_the_one_that_is_waited_for() -> None:
    """It would be carried out behind the cut, and in place of the one that has to be before."""
    broker = Broker()
    settled: list[str] = []
    build.append(broker.logs[-1])
    broker.logs[-1].flush()
    broker.cutting.checkpoints.commit(lambda _: settled.append("first"))
    broker.cutting.run([broker.begin(broker.logs[0])])
    broker.cutting.checkpoints.commit(lambda _: settled.append("third"))
    broker.later.work()
    assert (settled, broker.points()["2"]) == (["first"], 0)
    broker.later.work()
    assert broker.points()["2"] == 1
    assert ends(broker.logs[:1]) == {(5, "the log is being cut"): 1}
    broker.work()
    assert settled == ["first", "third"]
    assert ends(broker.logs[:1]) == {(2, None): 1}


def test_a_log_that_is_deleted_before_its_turn_is_not_touched() -> None:
    broker = Broker()
    logs = broker.logs
    broker.cutting.run([broker.begin(log) for log in logs])
    broker.later.work()  # the checkpoint
    forgotten = [broker.log_dir.forget_log(logs[at].tp, Random(at)) for at in (1, COUNT - 1)]
    for one in forgotten:
        broker.later.run(partial(_remove, broker.log_dir, one), partial(_note_removal, broker))
    broker.work()
    assert broker.log_dir.offline_reason is None
    assert len(broker.ended) == COUNT + 2
    assert not any(
        str(path).startswith(f"{ROOT}/orders-{COUNT - 1}/") for path in broker.files.paths()
    )
    deleted = {(5, f"orders-{at} has been deleted"): 1 for at in (1, COUNT - 1)}
    assert ends(logs) == {(2, None): COUNT - 2} | deleted


def _remove(log_dir: LogDir, forgotten: object, _: Callable[[], None]) -> None:
    log_dir.directories.remove(forgotten)  # type: ignore[arg-type]


def _note_removal(broker: Broker, outcome: Exception | None) -> None:
    assert outcome is None
    broker.ended.append(TopicPartition("gone", 0))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_at_a_cut_is_offline(number: int) -> None:
    broker = Broker()
    broker.cutting.run([broker.begin(log) for log in broker.logs])
    broker.later.work()
    broker.files.fail_next("truncate", number)
    broker.work()
    assert broker.log_dir.offline_reason is not None
    assert ends(broker.logs) == {(5, broker.log_dir.offline_reason): COUNT}
    assert broker.ended == list(broker.log_dir.logs), "all of them are over"


@pytest.mark.parametrize("when", ["before", "at the checkpoint", "behind it"])
def test_a_directory_that_is_offline_stays_so(when: str) -> None:
    broker = Broker()
    begun = [broker.begin(log) for log in broker.logs]
    failed = OSError(errno.EIO, "broken")
    if when == "before":
        broker.log_dir.take_offline(failed)
    broker.cutting.run(begun)
    if when == "at the checkpoint":
        broker.files.fail_next("create")
    broker.later.work()
    if when == "behind it":
        broker.log_dir.take_offline(failed)
    broker.work()
    assert broker.log_dir.offline_reason is not None
    assert ends(broker.logs) == {(5, broker.log_dir.offline_reason): COUNT}
    assert broker.ended == list(broker.log_dir.logs)


def test_on_a_full_disk_the_reserve_has_room_for_the_checkpoint() -> None:
    broker = Broker()
    broker.files.fail_next("create", errno.ENOSPC)
    broker.cutting.run([broker.begin(log) for log in broker.logs])
    broker.work()
    assert not broker.files.has_faults
    assert ends(broker.logs) == {(2, None): COUNT}


def test_without_any_room_every_log_stays_as_it_was() -> None:
    broker = Broker()
    for _ in range(3):
        broker.files.fail_next("create", errno.ENOSPC, suffix=".tmp")
    broker.cutting.run([broker.begin(log) for log in broker.logs])
    broker.work()
    assert not broker.files.has_faults
    assert ends(broker.logs) == {(5, None): COUNT}
    assert broker.ended == list(broker.log_dir.logs)
    assert broker.points() == {"5": COUNT}
    broker.cutting.run([broker.begin(log) for log in broker.logs])
    broker.work()
    assert ends(broker.logs) == {(2, None): COUNT}


def test_who_waits_for_a_log_waits_until_its_cut_is_over() -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.cutting.wait(broker.logs[0])  # no cut is under way
        broker.cutting.run([broker.begin(broker.logs[0])])
        waits = [asyncio.create_task(broker.cutting.wait(broker.logs[0])) for _ in range(2)]
        await asyncio.sleep(0)
        broker.later.work()
        await asyncio.sleep(0)
        assert not any(wait.done() for wait in waits)
        waits[1].cancel()
        broker.later.work()
        await waits[0]
        assert broker.logs[0].end_offset == 2

    asyncio.run(asyncio.wait_for(scenario(), 30))


class CountingFiles(MemoryFiles):
    """Counts what waits for the disk, by thread."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def note(self) -> None:
        self.waits[threading.current_thread().name] += 1

    def sync_dir(self, path: StrPath) -> None:
        self.note()
        super().sync_dir(path)

    def fail_if_asked(self, operation: str, path: Path) -> None:
        if operation in {"sync", "unlink"}:
            self.note()
        super().fail_if_asked(operation, path)


def follow_and_begin(log: Log) -> BegunCut:
    """Begin the cut that a leader of another history demands."""
    followed = FollowerPartition(
        log.tp,
        TOPIC_ID,
        log,
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(9),
        unclean_epoch=LeaderEpoch(-1),
        is_in_sync=True,
    )
    where = EpochEndOffset(epoch=build.EPOCH, end_offset=2)
    response = FetchPartitionResponse(partition_index=0, diverging_epoch=where)
    cut = followed.begin_cut(response, build.NOW_MS)
    assert cut is not None
    return BegunCut(log, cut, partial(followed.end_cut, cut))


def test_three_hundred_logs_are_cut_and_the_loop_waits_for_no_disk() -> None:
    async def scenario() -> None:
        files = CountingFiles()
        loop = asyncio.get_running_loop()
        worker = ThreadWorker("worker", post=loop.call_soon_threadsafe, pause=lambda: None)
        broker = Broker(files, worker, 300)
        files.waits.clear()
        broker.cutting.run(list(map(follow_and_begin, broker.logs)))
        for log in broker.logs:
            await broker.cutting.wait(log)
        worker.close()
        assert ends(broker.logs) == {(2, None): 300}
        assert files.waits.keys() == {"worker"}
        assert files.waits["worker"] > 300 * 3

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_files_that_were_removed_are_closed_by_the_worker() -> None:
    broker = Broker(count=1)
    (log,) = broker.logs
    log.roll(build.NOW_MS)
    build.append(log)
    file = ref(log.active_segment.file)
    broker.cutting.run([broker.begin(log)])
    broker.later.work()
    broker.later.work()
    assert ends([log]) == {(2, None): 1}
    assert file() is not None
    broker.later.work()
    assert file() is None
