"""One checkpoint for all who wait for one, and never two at a time."""

import errno
from pathlib import Path

import pytest

from fakes import build
from fakes.log_dirs import ORDERS, ROOT, create, open_dir
from fakes.memory_files import MemoryFiles
from fakes.workers import LaterWorker
from ottla.model import Offset
from ottla.storage.checkpoint_commits import CheckpointCommits
from ottla.storage.log_dir import LogDir

POINTS = ROOT / "recovery-point-offset-checkpoint"
WATERMARKS = ROOT / "replication-offset-checkpoint"


@pytest.fixture
def worker() -> LaterWorker:
    return LaterWorker()


@pytest.fixture
def log_dir(files: MemoryFiles) -> LogDir:
    log_dir = open_dir(files)
    create(log_dir)
    log_dir.checkpoint()
    return log_dir


@pytest.fixture
def commits(log_dir: LogDir, worker: LaterWorker) -> CheckpointCommits:
    return CheckpointCommits(log_dir, worker)


def grow(log_dir: LogDir) -> None:
    build.append(log_dir.logs[ORDERS])
    log_dir.logs[ORDERS].flush()


def noted(files: MemoryFiles, path: Path) -> int:
    """The offset that a checkpoint has for the one log."""
    return int(files.read_whole(path).decode().splitlines()[2].split()[-1])


def test_a_checkpoint_is_written_by_the_worker_and_then_noted(
    files: MemoryFiles, log_dir: LogDir, worker: LaterWorker, commits: CheckpointCommits
) -> None:
    grow(log_dir)
    log_dir.logs[ORDERS].noted_watermark = Offset(1)
    settled: list[Exception | None] = []
    commits.commit(settled.append)
    assert (noted(files, POINTS), settled) == (0, [])
    worker.work()
    assert (noted(files, POINTS), noted(files, WATERMARKS), settled) == (1, 1, [None])
    assert log_dir.begin_checkpoint() == []


def test_all_who_come_while_one_is_written_share_the_next(
    files: MemoryFiles, log_dir: LogDir, worker: LaterWorker, commits: CheckpointCommits
) -> None:
    settled: list[str] = []
    grow(log_dir)
    commits.commit(lambda _: settled.append("first"))
    grow(log_dir)
    commits.commit(lambda _: settled.append("second"))
    grow(log_dir)
    commits.commit(lambda _: settled.append("third"))
    assert len(worker.steps) == 1
    worker.work()
    assert (noted(files, POINTS), settled) == (1, ["first"])
    assert len(worker.steps) == 1
    worker.work()
    assert (noted(files, POINTS), settled) == (3, ["first", "second", "third"])
    assert not worker.steps


def test_watermarks_alone_leave_the_rest_as_it_is(
    files: MemoryFiles, log_dir: LogDir, worker: LaterWorker, commits: CheckpointCommits
) -> None:
    grow(log_dir)
    log_dir.logs[ORDERS].noted_watermark = Offset(1)
    settled: list[str] = []
    commits.commit_watermarks(lambda _: settled.append("watermarks"))
    commits.commit(lambda _: settled.append("all"))
    worker.work()
    assert (noted(files, POINTS), noted(files, WATERMARKS), settled) == (0, 1, ["watermarks"])
    worker.work()
    assert (noted(files, POINTS), settled) == (1, ["watermarks", "all"])


def test_what_is_on_disk_already_is_not_waited_for(
    worker: LaterWorker, commits: CheckpointCommits
) -> None:
    settled: list[Exception | None] = []
    commits.commit(settled.append)
    commits.commit_watermarks(settled.append)
    assert settled == [None, None]
    assert not worker.steps


def test_whoever_waits_learns_of_a_failure_and_the_next_is_tried(
    files: MemoryFiles, log_dir: LogDir, worker: LaterWorker, commits: CheckpointCommits
) -> None:
    grow(log_dir)
    settled: list[Exception | None] = []
    commits.commit(settled.append)
    files.fail_next("create", errno.ENOSPC)
    worker.work()
    (problem,) = settled
    assert isinstance(problem, OSError)
    commits.commit(settled.append)
    worker.work()
    assert settled == [problem, None]
    assert noted(files, POINTS) == 1


def test_nothing_is_written_in_a_directory_that_is_offline(
    files: MemoryFiles, log_dir: LogDir, worker: LaterWorker, commits: CheckpointCommits
) -> None:
    grow(log_dir)
    settled: list[Exception | None] = []
    commits.commit(settled.append)
    commits.commit(settled.append)
    log_dir.take_offline(OSError(errno.EIO, "broken"))
    worker.work()
    assert settled == [None, None]
    assert not worker.steps
