"""One write for everybody who deleted records, and an answer only behind it."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes import build
from fakes.memory_files import MemoryFiles
from ottla.config import TopicConfig
from ottla.errors import ApiError, DiskFull, StorageFailed
from ottla.model import Offset, TopicPartition, Uuid
from ottla.storage.delete_records import Deletions
from ottla.storage.dir_checkpoints import DELETIONS_FILE
from ottla.storage.disk_worker import InlineWorker, Result, Step
from ottla.storage.log_dir import LogDir

ROOT = Path("/data")
TP = TopicPartition("orders", 0)


class LateWorker(InlineWorker):
    """Does nothing until it is told to."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []

    def run(self, step: Step[Result], done: Callable[[Result | Exception], None]) -> None:
        self.steps.append(lambda: super(LateWorker, self).run(step, done))

    def work(self) -> None:
        steps, self.steps = self.steps, []
        for step in steps:
            step()


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def log_dir(files: MemoryFiles) -> LogDir:
    log_dir = LogDir(files, ROOT)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    log = log_dir.create_log(TP, Uuid(bytes(range(16))), TopicConfig(), build.NOW_MS)
    build.append(log, 10)
    return log_dir


def test_whoever_comes_while_a_write_is_under_way_waits_for_the_next(
    files: MemoryFiles, log_dir: LogDir
) -> None:
    worker = LateWorker()
    deletions = Deletions(log_dir, worker)
    settled: list[str] = []
    log_dir.logs[TP].advance_start(Offset(1))
    deletions.commit(lambda _: settled.append("first"))
    log_dir.logs[TP].advance_start(Offset(2))
    deletions.commit(lambda _: settled.append("second"))
    deletions.commit(lambda _: settled.append("third"))
    assert len(worker.steps) == 1
    worker.work()
    assert settled == ["first"]
    assert b" 1\n" in files.read_whole(ROOT / DELETIONS_FILE)
    worker.work()
    assert settled == ["first", "second", "third"]
    assert b" 2\n" in files.read_whole(ROOT / DELETIONS_FILE)


@pytest.mark.parametrize(
    ("number", "times", "expected"),
    [
        pytest.param(errno.ENOSPC, 2, None, id="full, but for the reserve"),
        pytest.param(errno.ENOSPC, 3, DiskFull, id="full"),
        pytest.param(errno.EIO, 1, StorageFailed, id="broken"),
    ],
)
def test_what_could_not_be_written_is_not_acknowledged(
    files: MemoryFiles,
    log_dir: LogDir,
    number: int,
    times: int,
    expected: type[ApiError] | None,
) -> None:
    deletions = Deletions(log_dir, InlineWorker())
    outcomes: list[ApiError | None] = []
    for _ in range(times):
        files.fail_next("append", number, suffix=".tmp")
    deletions.commit(outcomes.append)
    assert [None if one is None else type(one) for one in outcomes] == [expected]
    assert (log_dir.offline_reason is None) == (number == errno.ENOSPC)
