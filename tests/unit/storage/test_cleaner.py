"""The chore around compaction: which log, on whose thread, and what when it goes wrong."""

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from fakes import build
from fakes.memory_files import MemoryFiles
from fakes.workers import LaterWorker
from ottla.config import TopicConfig
from ottla.model import LeaderEpoch, Offset, TimestampMs
from ottla.records.batch import Record, build_batch
from ottla.storage.cleaner import Cleaner
from ottla.storage.compaction_pass import Pass
from ottla.storage.disk_worker import InlineWorker, ThreadWorker
from ottla.storage.log import Log

CONFIG = TopicConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.5)
MEMORY_BYTES = 1 << 20
PATIENCE_S = 20


class Owner:
    """The thread that owns the logs: runs what was posted to it."""

    def __init__(self) -> None:
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.post = self._posted.put

    def run_until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self._posted.get(timeout=PATIENCE_S)()


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def worker(owner: Owner) -> Iterator[ThreadWorker]:
    worker = ThreadWorker("worker", post=owner.post, pause=lambda: None)
    yield worker
    worker.close()


def log_of(files: MemoryFiles, name: str, values: int) -> Log:
    """A sealed log in which one key was written `values` times."""
    log = build.log(files, CONFIG, directory=build.DIRECTORY.with_name(name))
    for number in range(values):
        letter = Record(timestamp_ms=build.NOW_MS, key=b"key", value=b"%d" % number)
        log.append_as_leader(build_batch([letter]), LeaderEpoch(0), build.NOW_MS)
    log.roll(build.NOW_MS)
    log.flush()
    return log


def begin(cleaner: Cleaner, *logs: Log) -> None:
    cleaner.begin([(log, log.end_offset) for log in logs], build.NOW_MS, MEMORY_BYTES)


def test_a_pass_runs_on_the_workers_thread_and_ends_on_the_owners(
    files: MemoryFiles, owner: Owner
) -> None:
    threads = set()
    worker = ThreadWorker(
        "worker", post=owner.post, pause=lambda: threads.add(threading.get_ident())
    )
    cleaner = Cleaner(files, worker)
    log = log_of(files, "a-0", 500)
    begin(cleaner, log)
    assert log.cleaning.clean_offset == 0, "nothing happens before the owner has its turn"
    owner.run_until(lambda: cleaner.pass_count == 1)
    worker.close()
    assert log.cleaning.clean_offset == 500
    assert (cleaner.totals.kept_records, cleaner.totals.dropped_records) == (1, 499)
    assert threads
    assert threading.get_ident() not in threads


def test_one_log_at_a_time_the_dirtiest_first(files: MemoryFiles, owner: Owner) -> None:
    worker = InlineWorker()
    cleaner = Cleaner(files, worker)
    slightly, very = log_of(files, "a-0", 30), log_of(files, "b-0", 5)
    begin(cleaner, slightly)
    for _ in range(2):
        letter = Record(timestamp_ms=build.NOW_MS, key=b"key", value=bytes(100))
        slightly.append_as_leader(build_batch([letter]), LeaderEpoch(0), build.NOW_MS)
    slightly.roll(build.NOW_MS)
    slightly.flush()
    begin(cleaner, slightly, very)
    assert (slightly.cleaning.clean_offset, very.cleaning.clean_offset) == (30, 5)


def test_a_second_pass_waits_for_the_first(
    files: MemoryFiles, owner: Owner, worker: ThreadWorker
) -> None:
    cleaner = Cleaner(files, worker)
    first, second = log_of(files, "a-0", 10), log_of(files, "b-0", 10)
    begin(cleaner, first)
    begin(cleaner, second)
    owner.run_until(lambda: cleaner.pass_count == 1)
    assert (first.cleaning.clean_offset, second.cleaning.clean_offset) == (10, 0)


def test_a_log_that_is_deleted_meanwhile_is_nobodys_failure(
    files: MemoryFiles,
) -> None:
    worker = LaterWorker()
    cleaner = Cleaner(files, worker)
    log, other = log_of(files, "a-0", 10), log_of(files, "b-0", 10)
    begin(cleaner, log)
    for entry in files.list(log.directory):
        files.unlink(log.directory / entry.name)
    log.retire("deleted")
    worker.work()
    begin(cleaner, other)
    while worker.steps:
        worker.work()
    assert cleaner.pass_count == 1
    assert cleaner.failure_count == 0
    assert other.cleaning.clean_offset == 10


@pytest.mark.parametrize("is_over", [False, True])
def test_a_log_that_is_cut_meanwhile_is_nobodys_failure(files: MemoryFiles, is_over: bool) -> None:
    """A part of what the pass reads is gone: that is no damage, nor is it when the cut is over."""
    worker = LaterWorker()
    cleaner = Cleaner(files, worker)
    log = log_of(files, "a-0", 10)
    begin(cleaner, log)
    cut = log.truncation.begin(Offset(5), build.NOW_MS)
    assert cut is not None
    cut.run()
    if is_over:
        log.truncation.end(cut)
    while worker.steps:
        worker.work()
    assert (cleaner.failure_count, cleaner.pass_count) == (0, 0)
    if not is_over:
        log.truncation.end(cut)
    log.append_as_follower(build.batch(base_offset=5, key=b"key"), build.NOW_MS)
    log.roll(build.NOW_MS)
    log.flush()
    begin(cleaner, log)
    while worker.steps:
        worker.work()
    assert (cleaner.failure_count, cleaner.pass_count) == (0, 1)
    assert log.cleaning.clean_offset == 6


def test_closing_gives_up_what_is_under_way(files: MemoryFiles, owner: Owner) -> None:
    is_begun, may_go_on = threading.Event(), threading.Event()

    def pause() -> None:
        is_begun.set()
        assert may_go_on.wait(PATIENCE_S)

    worker = ThreadWorker("worker", post=owner.post, pause=pause)
    log = log_of(files, "a-0", 1000)
    begin(Cleaner(files, worker), log)
    assert is_begun.wait(PATIENCE_S)
    closing = threading.Thread(target=worker.close)
    closing.start()
    while not worker.is_closing:
        may_go_on.wait(0.001)
    may_go_on.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert log.cleaning.clean_offset == 0
    killed = files.kill()
    again = build.log(killed, CONFIG, directory=log.directory)
    assert again.end_offset == 1000
    names = [entry.name for entry in killed.list(log.directory)]
    assert not [name for name in names if name.endswith(".cleaned")]


def test_a_damaged_log_is_not_tried_again(files: MemoryFiles) -> None:
    cleaner = Cleaner(files, InlineWorker())
    log = log_of(files, "a-0", 10)
    files.content(log.directory / f"{0:020d}.log")[70] ^= 1
    begin(cleaner, log)
    begin(cleaner, log)
    assert (cleaner.failure_count, cleaner.pass_count) == (1, 0)
    assert log.read(Offset(0), log.end_offset, 1 << 20, at_least_one=True) is not None


def test_a_log_is_left_alone_until_it_is_dirty_enough(files: MemoryFiles) -> None:
    cleaner = Cleaner(files, InlineWorker())
    log = log_of(files, "a-0", 10)
    cleaner.begin([(log, Offset(9))], TimestampMs(build.NOW_MS), MEMORY_BYTES)
    assert cleaner.pass_count == 0, "its only segment reaches beyond what is decided"


@pytest.mark.parametrize("kind", [IndexError, AssertionError])
def test_a_pass_that_fails_costs_one_log_and_a_broken_assertion_is_raised(
    files: MemoryFiles, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise kind("planted")

    monkeypatch.setattr(Pass, "run_next", fail)
    cleaner = Cleaner(files, InlineWorker())
    log = log_of(files, "a-0", 100)
    if kind is AssertionError:
        with pytest.raises(AssertionError, match="planted"):
            begin(cleaner, log)
    else:
        begin(cleaner, log)
        begin(cleaner, log)
        assert (cleaner.failure_count, cleaner.pass_count) == (1, 0)


def test_an_abandoned_worker_is_not_waited_for(owner: Owner) -> None:
    worker = ThreadWorker("worker", post=owner.post, pause=lambda: None)
    begun, passing = threading.Event(), threading.Event()

    def step(_: object) -> None:
        begun.set()
        passing.wait()

    worker.run(step, lambda _: None)
    assert begun.wait(PATIENCE_S)
    assert not worker.abandon(0.01)
    passing.set()
    assert worker.abandon(PATIENCE_S)
