"""More logs than files may be open: all of them work, and the number is kept to."""

import errno
import gc
from pathlib import Path
from random import Random

import pytest

from fakes import build
from fakes.listeners import FakeDirListener
from ottla.config import TopicConfig
from ottla.errors import StorageFailed
from ottla.model import Offset, TopicPartition, Uuid
from ottla.storage.files import Lock, OsFile, OsFiles, StrPath, open_file_count
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.log_dir_listener import LogDirListener
from ottla.storage.log_read import FileRange
from ottla.storage.open_files import OpenFiles

LOGS = 50
ROOM = 10
ALSO_OPEN = 3  # for a moment: indexes that are written or read
TOPIC_ID = Uuid(bytes(range(16)))
CONFIG = TopicConfig(segment_bytes=1024)


@pytest.fixture(autouse=True)
def nothing_left_open() -> None:
    """What earlier tests opened goes when the collector finds it: that must be now."""
    gc.collect()


class CountingFiles(OsFiles):
    """Notes how many files were open at most."""

    def __init__(self) -> None:
        self.peak = 0
        self.whole_syncs = 0

    def open(self, path: StrPath) -> OsFile:
        opened = super().open(path)
        self.peak = max(self.peak, open_file_count())
        return opened

    def sync_all(self, lock: Lock) -> None:
        self.whole_syncs += 1
        super().sync_all(lock)

    def create(self, path: StrPath) -> OsFile:
        created = super().create(path)
        self.peak = max(self.peak, open_file_count())
        return created


class FullFiles(OsFiles):
    """Opens no file that is there while `is_full`."""

    is_full = False

    def open(self, path: StrPath) -> OsFile:
        if self.is_full:
            raise OSError(errno.EMFILE, "too many open files")
        return super().open(path)


def open_dir(files: OsFiles, path: Path, listener: LogDirListener | None = None) -> LogDir:
    log_dir = LogDir(files, path, open_file_count() + ROOM)
    log_dir.open_logs(lambda tp: CONFIG, build.NOW_MS, listener=listener)
    return log_dir


def crowded_dir(files: OsFiles, path: Path, listener: LogDirListener | None = None) -> LogDir:
    log_dir = open_dir(files, path, listener)
    for index in range(LOGS):
        log_dir.create_log(TopicPartition("orders", index), TOPIC_ID, CONFIG, build.NOW_MS)
    return log_dir


def content(log: Log) -> bytes:
    found = log.read(Offset(0), log.end_offset, 1 << 20, at_least_one=True)
    assert found is not None
    return log.read_bytes(found)


def test_many_logs_are_written_and_read_with_few_open_files(tmp_path: Path) -> None:
    files, before = CountingFiles(), open_file_count()
    log_dir = crowded_dir(files, tmp_path)
    logs = list(log_dir.logs.values())
    for round_ in range(3):
        for number, log in enumerate(logs):
            build.append(log, value=b"%d of round %d" % (number, round_))
            log.flush()
    for number, log in enumerate(logs):
        assert b"%d of round 2" % number in content(log)
    assert files.peak <= before + 1 + ROOM + ALSO_OPEN


def test_what_is_not_on_disk_is_brought_there_before_it_is_closed(tmp_path: Path) -> None:
    files, before = CountingFiles(), open_file_count()
    listener = FakeDirListener()
    log_dir = crowded_dir(files, tmp_path, listener)
    for log in log_dir.logs.values():
        build.append(log)
    durable = [log_dir.logs[tp] for tp in listener.durable]
    assert files.peak <= before + 1 + ROOM + ALSO_OPEN
    assert len(durable) >= LOGS - ROOM
    assert len(durable) == len(set(durable)) == sum(not log.flushing.wants_sync for log in durable)


def test_many_logs_are_cut_at_once_with_few_open_files(tmp_path: Path) -> None:
    files, before = CountingFiles(), open_file_count()
    log_dir = crowded_dir(files, tmp_path)
    for log in log_dir.logs.values():
        for _ in range(3):
            build.append(log)
        log.flush()
    cuts = [(log, log.truncation.begin(Offset(2), build.NOW_MS)) for log in log_dir.logs.values()]
    assert open_file_count() == before + 1, "the lock: none is needed to read or write now"
    for _, cut in cuts:
        assert cut is not None
        cut.run()
    assert open_file_count() == before + 1
    for log, cut in cuts:
        assert cut is not None
        log.truncation.end(cut)
        assert build.append(log) == 2
    assert files.peak <= before + 1 + ROOM + ALSO_OPEN


def test_logs_that_are_being_cut_are_not_asked_to_close_what_others_need(tmp_path: Path) -> None:
    """They have nothing to close; asked in vain, they would have everything brought to disk."""
    files = CountingFiles()
    log_dir = open_dir(files, tmp_path)
    tps = [TopicPartition("orders", index) for index in range(100)]
    for tp in tps:
        log = log_dir.create_log(tp, TOPIC_ID, CONFIG, build.NOW_MS)
        for _ in range(2):
            build.append(log)
        log.flush()
    for tp in tps[:80]:
        assert log_dir.logs[tp].truncation.begin(Offset(1), build.NOW_MS) is not None
    for tp in tps[80:]:
        assert content(log_dir.logs[tp])
    assert files.whole_syncs == 0


@pytest.mark.slow
def test_sealed_segments_of_all_logs_share_the_room(tmp_path: Path) -> None:
    files, before = CountingFiles(), open_file_count()
    log_dir = crowded_dir(files, tmp_path)
    for log in log_dir.logs.values():
        for _ in range(3):
            build.append(log, value=bytes(900))
            log.roll(build.NOW_MS)
        log.flush()
    for log in log_dir.logs.values():
        for offset in range(3):
            assert log.read(Offset(offset), log.end_offset, 10, at_least_one=True) is not None
    assert files.peak <= before + 1 + ROOM + 4 * ALSO_OPEN  # rolls keep what they wrote open


def test_readers_who_keep_what_they_were_given_keep_no_file_open(tmp_path: Path) -> None:
    before = open_file_count()
    log_dir = crowded_dir(OsFiles(), tmp_path)
    for number, log in enumerate(log_dir.logs.values()):
        build.append(log, value=b"value %d" % number)
        log.flush()
    kept: list[tuple[Log, FileRange]] = []
    for log in log_dir.logs.values():
        found = log.read(Offset(0), log.end_offset, 1 << 20, at_least_one=True)
        assert found is not None
        kept.append((log, found))
    assert open_file_count() <= before + ROOM + 1 + ALSO_OPEN
    for number, (log, found) in enumerate(kept):
        assert b"value %d" % number in log.read_bytes(found)


def test_a_start_opens_few_files(tmp_path: Path) -> None:
    log_dir = crowded_dir(OsFiles(), tmp_path)
    for log in log_dir.logs.values():
        build.append(log)
    log_dir.close()
    del log_dir, log
    files, before = CountingFiles(), open_file_count()
    again = open_dir(files, tmp_path)
    assert files.peak <= before + 1 + ROOM + ALSO_OPEN
    assert all(build.append(log) == 1 for log in again.logs.values())
    again.close()


def test_files_of_a_deleted_log_are_closed_at_once(tmp_path: Path) -> None:
    """Also if nobody looks for cycles: until then their room on the disk is not free."""
    log_dir = crowded_dir(OsFiles(), tmp_path)
    tp = TopicPartition("orders", LOGS)
    log = log_dir.create_log(tp, TOPIC_ID, CONFIG, build.NOW_MS)  # with no file open
    build.append(log)
    log.roll(build.NOW_MS)
    build.append(log)
    log.flush()
    before = open_file_count()
    gc.disable()
    try:
        log_dir.delete_log(tp, Random(1))
        del log
        assert open_file_count() == before - 2
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_deleted_log_is_held_by_nobody(tmp_path: Path) -> None:
    before = open_file_count()
    log_dir = crowded_dir(OsFiles(), tmp_path)
    first = next(iter(log_dir.logs))
    log_dir.delete_log(first, Random(1))
    for log in log_dir.logs.values():
        build.append(log)
    assert open_file_count() <= before + ROOM + 1 + ALSO_OPEN


def test_a_file_that_cannot_be_opened_again_refuses_the_batch_and_nothing_else(
    tmp_path: Path,
) -> None:
    files = FullFiles()
    log_dir = crowded_dir(files, tmp_path)
    log = log_dir.logs[TopicPartition("orders", 0)]
    build.append(log)
    for other in log_dir.logs.values():  # more than may stay open, so those of `log` are closed
        build.append(other)
        other.flush()
    files.is_full = True
    with pytest.raises(StorageFailed, match="too many"):
        build.append(log)
    with pytest.raises(StorageFailed, match="too many"):
        content(log)
    files.is_full = False
    assert log_dir.offline_reason is None
    assert build.append(log) == 2
    assert content(log)


def test_who_has_nothing_to_close_is_not_asked_again() -> None:
    class Holder:
        def __init__(self) -> None:
            self.asked = 0

        def release_files(self) -> bool:
            self.asked += 1
            return True

    open_files, holder = OpenFiles(0), Holder()
    open_files.note(holder)
    open_files.make_room()
    open_files.make_room()
    assert holder.asked == 1
