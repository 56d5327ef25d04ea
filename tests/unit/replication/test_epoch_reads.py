"""Epochs that contradict their log: read by the worker, once, and again if that did not work."""

import errno
from random import Random

import pytest

from fakes import build
from fakes.log_dirs import ORDERS, ROOT, TOPIC_ID
from fakes.logs import SMALL
from fakes.memory_files import MemoryFiles
from fakes.workers import LaterWorker
from ottla.errors import StorageFailed
from ottla.model import LeaderEpoch, Offset
from ottla.replication.epoch_reads import EpochReads
from ottla.storage import epoch_scan
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.log_dir_listener import SilentDirListener


class Owner(SilentDirListener):
    """A log whose epochs are wrong, and a worker that works when the test says so."""

    def __init__(self) -> None:
        self.files, self.worker = MemoryFiles(), LaterWorker()
        self.log_dir = LogDir(self.files, ROOT)
        self.reads = EpochReads(self.log_dir, self.worker)
        self.note_epochs_wrong = self.reads.begin  # type: ignore[method-assign]
        self.log_dir.open_logs(lambda tp: SMALL, build.NOW_MS, listener=self)
        log = self.log_dir.create_log(ORDERS, TOPIC_ID, SMALL, build.NOW_MS)
        for epoch in (1, 1, 1, 4):
            build.append(log, 2, epoch=epoch, value=bytes(300))
        log.flush()
        log.epochs.truncate_end(Offset(0))
        log.epochs.note(LeaderEpoch(1), Offset(0))
        log.epochs.note(LeaderEpoch(4), Offset(4))  # two records too early

    @property
    def log(self) -> Log:
        return self.log_dir.logs[ORDERS]

    def ask(self) -> bool:
        """True if the log knows where its first epoch ends; it is right then."""
        try:
            assert self.log.epoch_end(LeaderEpoch(1)) == (1, 6)
        except StorageFailed:
            return False
        return True

    def work(self) -> None:
        while self.worker.steps:
            self.worker.work()


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_the_worker_reads_a_log_once_however_often_it_is_asked(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_scan, "_BATCHES_PER_TURN", 1)
    monkeypatch.setattr(epoch_scan, "_TURNS_PER_STEP", 1)
    assert not owner.ask()
    assert not owner.ask()
    assert len(owner.worker.steps) == 1
    owner.worker.work()
    assert not owner.ask(), "it takes several steps"
    owner.work()
    assert owner.ask()
    assert owner.log.epochs.entries() == [(1, 0), (4, 6)]


def test_a_log_that_is_deleted_meanwhile_is_nobodys_failure(owner: Owner) -> None:
    assert not owner.ask()
    owner.log_dir.delete_log(ORDERS, Random(1))
    owner.work()
    assert owner.log_dir.offline_reason is None


def test_a_segment_that_goes_meanwhile_is_no_failure_and_the_rest_is_read_again(
    owner: Owner,
) -> None:
    assert not owner.ask()
    owner.log.advance_start(owner.log.sealed_segments[0].end_offset)
    owner.work()
    assert not owner.ask()
    owner.work()
    assert owner.ask()


def test_a_disk_that_cannot_be_read_is_offline(owner: Owner) -> None:
    assert not owner.ask()
    owner.files.fail_next("read", errno.EIO, suffix=".log")
    owner.work()
    assert owner.log_dir.offline_reason is not None
