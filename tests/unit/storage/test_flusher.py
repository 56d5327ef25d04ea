"""Group commit: one sync for everybody who waits, on a thread that the owner never waits for."""

import errno
import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes import build
from fakes.faulty_files import FaultyFiles
from fakes.listeners import FakeLogListener
from fakes.memory_files import MemoryFiles
from ottla.config import TopicConfig
from ottla.storage.files import OsFiles, StrPath
from ottla.storage.flusher import InlineFlusher, ThreadFlusher
from ottla.storage.log import Log
from ottla.storage.log_flush import FlushWork
from ottla.storage.log_listener import LogListener


class Owner:
    """A loop's place: what the flusher posts is run here, when the test says so."""

    def __init__(self) -> None:
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.callbacks: list[Callable[[], None]] = []
        self.failures: list[OSError] = []
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def soon(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def finish_turn(self) -> None:
        """Everything that was to happen after the current work."""
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()

    def run_one(self) -> None:
        """Wait for the flusher's next message and act on it."""
        self.posted.get(timeout=30)()


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def flusher(owner: Owner, files: MemoryFiles) -> Iterator[ThreadFlusher]:
    made = ThreadFlusher(
        files,
        owner.failures.append,
        post=owner.posted.put,
        soon=owner.soon,
        monotonic_s=owner.monotonic_s,
    )
    yield made
    made.close()


def log_in(files: MemoryFiles, name: str, listener: LogListener | None = None) -> Log:
    return build.log(files, directory=Path("/data") / name, listener=listener)


def test_one_sync_serves_everything_appended_before_it(
    owner: Owner, files: MemoryFiles, flusher: ThreadFlusher
) -> None:
    log = log_in(files, "a-0")
    syncs = files.counts["sync"]
    for _ in range(10):
        build.append(log)
        flusher.request(log)
    owner.finish_turn()
    assert log.durable_offset == 0
    owner.run_one()
    assert log.durable_offset == 10
    assert files.counts["sync"] == syncs + 1


def test_what_arrives_while_the_disk_works_forms_the_next_round(
    owner: Owner, files: MemoryFiles, flusher: ThreadFlusher
) -> None:
    log, other = log_in(files, "a-0"), log_in(files, "b-0")
    build.append(log)
    flusher.request(log)
    owner.finish_turn()
    for late in (log, other, log):
        build.append(late)
        flusher.request(late)
    owner.finish_turn()
    owner.run_one()
    assert (log.durable_offset, other.durable_offset) == (1, 0)
    owner.run_one()
    assert (log.durable_offset, other.durable_offset) == (3, 1)


@pytest.mark.slow
def test_a_round_takes_a_part_of_very_many_logs_and_the_next_ones_the_rest(
    owner: Owner, files: MemoryFiles, flusher: ThreadFlusher
) -> None:
    logs = [log_in(files, f"a-{number}") for number in range(600)]
    for log in logs:
        flusher.request(log)  # the first ones have nothing to sync
    for log in logs[400:]:
        build.append(log)
    owner.finish_turn()
    for done in (512, 600):
        owner.run_one()
        assert sum(log.durable_offset == log.end_offset for log in logs) == done
    for log in logs:
        build.append(log)
        flusher.request(log)
    owner.finish_turn()
    for done in (256, 512, 600):
        owner.run_one()
        assert sum(log.durable_offset == log.end_offset for log in logs) == done
    assert owner.posted.empty()


def test_the_flusher_rests_when_there_is_nothing_to_do(
    owner: Owner, files: MemoryFiles, flusher: ThreadFlusher
) -> None:
    log = log_in(files, "a-0")
    flusher.request(log)
    owner.finish_turn()
    assert owner.posted.empty()
    build.append(log)
    flusher.request(log)
    owner.finish_turn()
    owner.run_one()
    assert log.durable_offset == 1


def test_logs_are_told_on_the_owners_turn(
    owner: Owner, files: MemoryFiles, flusher: ThreadFlusher
) -> None:
    listener = FakeLogListener()
    log = log_in(files, "a-0", listener)
    told: list[int] = []
    listener.on_durable = lambda: told.append(log.durable_offset)
    build.append(log)
    flusher.request(log)
    owner.finish_turn()
    callback = owner.posted.get(timeout=30)
    assert told == []
    callback()
    assert told == [1]


@pytest.mark.parametrize("logs", [1, 3])
def test_a_failed_sync_acknowledges_nobody_and_is_not_retried(
    owner: Owner, files: MemoryFiles, flusher: ThreadFlusher, logs: int
) -> None:
    dirty = [log_in(files, f"a-{number}") for number in range(logs)]
    for log in dirty:
        build.append(log)
        flusher.request(log)
    files.fail_next("sync", errno.EIO)
    owner.finish_turn()
    owner.run_one()
    assert [error.errno for error in owner.failures] == [errno.EIO]
    assert [log.durable_offset for log in dirty] == [0] * logs
    flusher.request(dirty[0])
    owner.finish_turn()
    assert owner.posted.empty()


def test_real_files_are_synced_by_the_thread(tmp_path: Path, owner: Owner) -> None:
    files = OsFiles()
    flusher = ThreadFlusher(
        files,
        owner.failures.append,
        post=owner.posted.put,
        soon=owner.soon,
        monotonic_s=owner.monotonic_s,
    )
    config = TopicConfig(segment_bytes=1024)
    logs = [build.log(files, config, directory=tmp_path / f"a-{number}") for number in range(5)]
    for log in logs:
        for _ in range(20):
            build.append(log, value=bytes(100))
        flusher.request(log)
    owner.finish_turn()
    owner.run_one()
    flusher.close()
    assert [log.durable_offset for log in logs] == [20] * 5


def test_the_inline_flusher_syncs_at_once() -> None:
    files = MemoryFiles()
    failures: list[OSError] = []
    flusher = InlineFlusher(files, failures.append)
    log = build.log(files)
    flusher.request(log)
    build.append(log)
    flusher.request(log)
    assert log.durable_offset == 1
    build.append(log)
    files.fail_next("sync")
    flusher.request(log)
    assert (log.durable_offset, len(failures)) == (1, 1)
    flusher.close()


class BrokenFiles(MemoryFiles):
    """Files whose names cannot be brought to disk, by a mistake of ours."""

    def sync_dir(self, path: StrPath) -> None:
        raise TypeError("planted")


@pytest.mark.parametrize("logs", [1, 3])
def test_what_the_thread_did_not_expect_is_raised_on_the_owners_turn(
    owner: Owner, logs: int
) -> None:
    """By the thread itself, or by one of its pool."""
    good = MemoryFiles()
    flusher = ThreadFlusher(
        BrokenFiles(),
        owner.failures.append,
        post=owner.posted.put,
        soon=owner.soon,
        monotonic_s=owner.monotonic_s,
    )
    dirty = [log_in(good, f"a-{number}") for number in range(logs)]
    for log in dirty:
        build.append(log)
        log.roll(build.NOW_MS)
        build.append(log)
        flusher.request(log)
    owner.finish_turn()
    with pytest.raises(TypeError, match="planted"):
        owner.run_one()
    assert [log.durable_offset for log in dirty] == [0] * logs
    assert owner.failures == []
    flusher.close()


def test_the_age_of_a_sync_counts_from_its_round_and_not_from_the_first_of_many(
    owner: Owner, files: MemoryFiles, flusher: ThreadFlusher
) -> None:
    """A slow disk that still moves is not a stuck one."""
    log = log_in(files, "a-0")
    assert flusher.unfinished_s == 0
    for _ in range(3):
        build.append(log)
        flusher.request(log)
        owner.finish_turn()
        owner.now_s += 9
        build.append(log)
        flusher.request(log)
        assert flusher.unfinished_s == 9
        owner.run_one()
        assert flusher.unfinished_s == 0, "the next round has begun"
    owner.now_s += 5
    assert flusher.unfinished_s == 5
    owner.run_one()
    owner.now_s += 5
    assert flusher.unfinished_s == 0, "there is nothing to do"


def test_a_failed_sync_has_no_age(owner: Owner, files: MemoryFiles, flusher: ThreadFlusher) -> None:
    log = log_in(files, "a-0")
    build.append(log)
    flusher.request(log)
    files.fail_next("sync", errno.EIO)
    owner.finish_turn()
    owner.run_one()
    owner.now_s += 5
    assert flusher.unfinished_s == 0


def test_an_abandoned_flusher_is_not_waited_for(owner: Owner, tmp_path: Path) -> None:
    files = FaultyFiles()
    flusher = ThreadFlusher(
        files,
        owner.failures.append,
        post=owner.posted.put,
        soon=owner.soon,
        monotonic_s=owner.monotonic_s,
    )
    log = build.log(files, directory=tmp_path / "a-0")
    build.append(log)
    files.hold_syncs()
    flusher.request(log)
    owner.finish_turn()
    assert not flusher.abandon(0.01)
    files.release_syncs()
    assert flusher.abandon(30)


def test_a_round_is_timed(
    owner: Owner, files: MemoryFiles, flusher: ThreadFlusher, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ThreadFlusher._sync

    def slow(flusher: ThreadFlusher, round_: list[FlushWork]) -> None:
        owner.now_s += 3.0
        real(flusher, round_)

    monkeypatch.setattr(ThreadFlusher, "_sync", slow)
    log = log_in(files, "a-0")
    build.append(log)
    flusher.request(log)
    owner.now_s += 50.0  # until its turn has come
    owner.finish_turn()
    owner.run_one()
    assert (flusher.durations.count, flusher.durations.sum_s) == (1, 3.0)
