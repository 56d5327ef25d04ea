"""One data directory: lock, create, open, delete, checkpoint, close, fail."""

import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from fakes import build
from fakes.listeners import FakeDirListener
from fakes.log_dirs import CLICKS, ORDERS, ROOT, TOPIC_ID, create, damages, filled, open_dir, remove
from fakes.memory_files import MachineStopped, MemoryFiles
from fakes.opened import open_below
from ottla.config import TopicConfig
from ottla.errors import CorruptBatch, DiskFull, StorageFailed, TopicAlreadyExists, UsageRefused
from ottla.model import LeaderEpoch, Offset, TopicPartition
from ottla.records.batch import Record, build_batch
from ottla.storage.checkpoints import encode_checkpoint
from ottla.storage.files import OsFiles
from ottla.storage.log_dir import MANY as MANY_LOGS
from ottla.storage.log_dir import LogDir
from ottla.storage.reserve import RESERVE_BYTES

RECOVERY_POINTS = ROOT / "recovery-point-offset-checkpoint"
MANY = [TopicPartition("many", index) for index in range(20)]


def test_logs_are_there_again(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    for tp in (ORDERS, CLICKS):
        create(log_dir, tp)
    build.append(log_dir.logs[CLICKS], 3)
    log_dir.close()
    seen: list[tuple[int, int]] = []
    log_dir = LogDir(files.kill(), ROOT)
    log_dir.open_logs(
        lambda tp: TopicConfig(), build.NOW_MS, lambda done, total: seen.append((done, total))
    )
    assert {tp: log.end_offset for tp, log in log_dir.logs.items()} == {ORDERS: 0, CLICKS: 3}
    assert log_dir.topic_ids == {ORDERS: TOPIC_ID, CLICKS: TOPIC_ID}
    assert seen == [(1, 2), (2, 2)]


def test_a_second_broker_is_refused(files: MemoryFiles) -> None:
    first = LogDir(files, ROOT)
    with pytest.raises(UsageRefused):
        LogDir(files, ROOT)
    first.close()
    LogDir(files, ROOT)


def test_a_created_log_survives_a_power_cut(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    for seed in range(10):
        after = open_dir(files.cut_power(Random(seed)))
        assert after.topic_ids == {ORDERS: TOPIC_ID}


def test_a_log_is_created_once(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    with pytest.raises(TopicAlreadyExists):
        create(log_dir)


def test_a_deleted_log_is_gone_for_good(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    log = log_dir.logs[ORDERS]
    build.append(log)
    log_dir.delete_log(ORDERS, Random(1))
    assert not log_dir.logs
    with pytest.raises(StorageFailed, match="deleted"):
        build.append(log)
    assert not open_dir(files.kill()).logs
    create(log_dir)
    assert log_dir.logs[ORDERS].end_offset == 0


def test_a_log_that_is_deleted_while_it_is_saved_fails_nobody(tmp_path: Path) -> None:
    log_dir = LogDir(OsFiles(), tmp_path)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    create(log_dir)
    create(log_dir, CLICKS)
    log = log_dir.logs[ORDERS]
    build.append(log)
    log.flushing.save()
    work = log.flushing.begin()
    assert work is not None
    assert work.saved is not None
    work.run(OsFiles())
    log_dir.delete_log(ORDERS, Random(1))
    log.flushing.end(work)
    assert log_dir.offline_reason is None
    build.append(log_dir.logs[CLICKS])
    log_dir.close()


def test_a_log_that_is_deleted_while_it_is_flushed_fails_nobody(tmp_path: Path) -> None:
    log_dir = LogDir(OsFiles(), tmp_path)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    create(log_dir)
    create(log_dir, CLICKS)
    log = log_dir.logs[ORDERS]
    build.append(log)
    log.roll(build.NOW_MS)
    build.append(log)
    work = log.flushing.begin()
    assert work is not None
    assert work.directory is not None  # it has names that are not on disk yet
    log_dir.delete_log(ORDERS, Random(1))
    work.run(OsFiles())
    log.flushing.end(work)
    log.fail(OSError(errno.EIO, "a file that goes"))
    assert log_dir.offline_reason is None
    build.append(log_dir.logs[CLICKS])
    log_dir.close()


def test_a_log_that_is_deleted_while_it_is_compacted_fails_nobody(tmp_path: Path) -> None:
    """The worker that was to swap segments finds nothing to do, not a directory that is gone."""
    files = OsFiles()
    log_dir = LogDir(files, tmp_path)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    config = TopicConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
    log = log_dir.create_log(ORDERS, TOPIC_ID, config, build.NOW_MS)
    for _ in range(2):
        letter = Record(timestamp_ms=build.NOW_MS, key=b"key", value=b"value")
        log.append_as_leader(build_batch([letter]), LeaderEpoch(0), build.NOW_MS)
    log.roll(build.NOW_MS)
    log.flush()
    part = log.cleaning.cleanable(log.end_offset, build.NOW_MS)
    work = log.cleaning.begin(part, build.NOW_MS, 1 << 20)
    cleaned = work.run_next(files, lambda: None)
    assert cleaned is not None
    swap = log.cleaning.begin_swap(work, cleaned)
    assert swap is not None
    log_dir.delete_log(ORDERS, Random(1))
    swap.errand.run()
    assert log_dir.offline_reason is None
    log_dir.close()


def test_a_failing_disk_takes_all_of_its_logs_offline(files: MemoryFiles) -> None:
    listener = FakeDirListener()
    log_dir = open_dir(files, listener)
    for tp in (ORDERS, CLICKS):
        create(log_dir, tp)
    told = listener.offline
    files.fail_next("append", errno.EIO)
    with pytest.raises(StorageFailed):
        build.append(log_dir.logs[ORDERS])
    with pytest.raises(StorageFailed):
        build.append(log_dir.logs[CLICKS])
    assert len(told) == 1
    assert log_dir.offline_reason == told[0]
    with pytest.raises(StorageFailed):
        create(log_dir, TopicPartition("more", 0))
    log_dir.checkpoint()
    log_dir.close()
    assert not any(entry.name == ".clean-shutdown" for entry in files.list(ROOT))


def test_a_full_disk_does_not_take_the_directory_offline(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS])
    files.fail_next("append", errno.ENOSPC)
    log_dir.checkpoint()
    files.fail_next("append", errno.ENOSPC)
    files.fail_next("append", errno.ENOSPC)  # the reserve is not enough either
    with pytest.raises(DiskFull, match="full"):
        create(log_dir, CLICKS)
    assert log_dir.offline_reason is None
    assert build.append(log_dir.logs[ORDERS]) == 1
    create(log_dir, CLICKS)


def test_a_log_is_made_with_the_room_of_the_reserve(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    files.fail_next("append", errno.ENOSPC)
    create(log_dir)
    assert ORDERS in log_dir.logs
    assert log_dir.reserve.size_bytes == RESERVE_BYTES


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
def test_a_system_that_refuses_a_new_log_costs_nothing_else(
    files: MemoryFiles, number: int
) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    files.fail_next("create", number)
    with pytest.raises(StorageFailed, match="may not be changed"):
        create(log_dir, CLICKS)
    assert log_dir.offline_reason is None
    assert build.append(log_dir.logs[ORDERS]) == 0


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_log_whose_directory_is_gone_goes_on_behind_its_known_end(
    is_closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = filled(is_closed=is_closed)
    remove(files, ROOT / str(ORDERS))
    for number in range(3):
        log_dir = open_dir(files)
        log = log_dir.logs[ORDERS]
        assert damages(log_dir) == [(0, 5)]
        assert log_dir.topic_ids == {ORDERS: TOPIC_ID}
        with pytest.raises(CorruptBatch, match="intact records follow from offset 5 on"):
            log.read(Offset(2), log.end_offset, 1000, at_least_one=True)
        assert build.append(log) == 5 + number
        log.flush()
        files = files.kill()
    said = [line.getMessage() for line in caplog.records]
    assert said.count("log directory missing") == 1
    assert said.count("log damaged") == 3


def test_a_kill_or_a_power_cut_while_a_lost_log_is_made_again_forgets_no_loss() -> None:
    """Before every change of the disk, from the first start that finds the directory gone."""
    for stop_after in range(200):
        files = filled(is_closed=bool(stop_after % 2))
        remove(files, ROOT / str(ORDERS))
        files.stop_after = stop_after
        try:
            open_dir(files)
        except MachineStopped:
            for after in (files.kill(), files.cut_power(Random(stop_after))):
                log_dir = open_dir(after)
                assert (damages(log_dir), log_dir.logs[ORDERS].end_offset) == ([(0, 5)], 5)
        else:
            assert stop_after > 20
            return
    raise AssertionError("it never came to its end")


def test_a_lost_log_whose_records_were_deleted_begins_behind_them(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS], 5)
    log_dir.checkpoint()  # nothing is durable yet
    log_dir.logs[ORDERS].flush()
    log_dir.logs[ORDERS].advance_start(Offset(4))
    log_dir.write_deletions(log_dir.deletions())
    files = files.kill()
    remove(files, ROOT / str(ORDERS))
    log_dir = open_dir(files)
    assert (log_dir.logs[ORDERS].start_offset, log_dir.logs[ORDERS].end_offset) == (4, 4)


def test_a_log_that_nobody_expects_is_not_made_again() -> None:
    files = filled(is_closed=True)
    remove(files, ROOT / str(ORDERS))
    log_dir = LogDir(files, ROOT)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS, expected=lambda tp, topic_id: None)
    assert not log_dir.logs
    assert files.read_whole(RECOVERY_POINTS).decode().splitlines()[1] == "0"


@pytest.mark.parametrize("is_closed", [True, False])
def test_checkpoints_of_an_older_ottla_count_for_the_log_of_their_name(is_closed: bool) -> None:
    files = filled(is_closed=is_closed)
    old = encode_checkpoint(["orders 0 5"])
    files.create(RECOVERY_POINTS).append(old)
    path = ROOT / str(ORDERS) / f"{0:020d}.log"
    del files.content(path)[-10:]
    log_dir = open_dir(files)
    assert damages(log_dir) == [(0, 5)]
    assert files.read_whole(RECOVERY_POINTS) != old


def test_a_disk_that_cannot_be_read_is_offline_at_once(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    log_dir.close()
    after = files.kill()
    after.fail_next("open", errno.EIO, suffix=".log")
    log_dir = LogDir(after, ROOT)
    with pytest.raises(StorageFailed):
        log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    assert log_dir.offline_reason is not None


@pytest.mark.slow
def test_nothing_durable_is_lost_when_the_power_is_cut(files: MemoryFiles) -> None:
    rng = Random(11)
    for _ in range(60):
        log_dir = LogDir(files, ROOT)
        log_dir.open_logs(
            lambda tp: TopicConfig(segment_bytes=1024, index_interval_bytes=100), build.NOW_MS
        )
        if ORDERS not in log_dir.logs:
            log_dir.create_log(ORDERS, TOPIC_ID, TopicConfig(segment_bytes=1024), build.NOW_MS)
        log = log_dir.logs[ORDERS]
        for _ in range(rng.randrange(8)):
            batch = build.batch(rng.randint(1, 3), value=bytes(rng.randrange(300)))
            log.append_as_leader(batch, LeaderEpoch(1), build.NOW_MS)
            if rng.random() < 0.3:
                log.flush()
            if rng.random() < 0.1:
                log_dir.checkpoint()
        durable, end = log.durable_offset, log.end_offset
        files = files.cut_power(rng)
        found = open_dir(files).logs[ORDERS]
        assert durable <= found.end_offset <= end
        assert found.corrupt == []
        files = files.kill()


def test_real_directories_work_too(tmp_path: Path) -> None:
    log_dir = LogDir(OsFiles(), tmp_path / "data")
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    create(log_dir)
    create(log_dir, CLICKS)
    build.append(log_dir.logs[ORDERS], 3)
    log_dir.delete_log(CLICKS, Random(3))
    with pytest.raises(UsageRefused):
        LogDir(OsFiles(), tmp_path / "data")
    log_dir.close()
    log_dir = LogDir(OsFiles(), tmp_path / "data")
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    assert {tp: log.end_offset for tp, log in log_dir.logs.items()} == {ORDERS: 3}
    names = {entry.name for entry in OsFiles().list(tmp_path / "data" / "orders-0")}
    assert names == {f"{0:020d}.log", "partition.metadata"}
    build.enlarge(log_dir.logs[ORDERS])
    end_offset = log_dir.logs[ORDERS].end_offset
    log_dir.close()
    names = {entry.name for entry in OsFiles().list(tmp_path / "data" / "orders-0")}
    assert names == {
        f"{0:020d}.log",
        f"{0:020d}.index",
        f"{0:020d}.timeindex",
        f"{end_offset:020d}.snapshot",
        "partition.metadata",
    }


def test_many_logs_are_made_with_one_wait(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    before = files.counts.copy()
    log_dir.prepare_logs([(tp, TOPIC_ID) for tp in MANY])
    waits = files.counts - before
    assert (waits["sync_all"], waits["sync"], waits["sync_dir"]) == (1, 0, 0)
    after = open_dir(files.cut_power(Random(1)))
    assert after.topic_ids == dict.fromkeys(MANY, TOPIC_ID)


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_while_many_logs_are_made_leaves_no_stray(
    files: MemoryFiles, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    log_dir = open_dir(files)
    files.stop_after = Random(seed).randrange(3 * len(MANY))
    with pytest.raises(MachineStopped):
        log_dir.prepare_logs([(tp, TOPIC_ID) for tp in MANY])
    files.stop_after = None
    after = open_dir(files.cut_power(Random(seed)))
    assert after.directories.stray_count == 0
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
    assert all(log.end_offset == 0 for log in after.logs.values())
    after.prepare_logs([(tp, TOPIC_ID) for tp in MANY if tp not in after.logs])
    for tp in MANY:
        if tp not in after.logs:
            after.adopt_log(tp, TOPIC_ID, TopicConfig(), build.NOW_MS)
        build.append(after.logs[tp])


def crowd(files: MemoryFiles) -> LogDir:
    log_dir = open_dir(files)
    log_dir.prepare_logs([(tp, TOPIC_ID) for tp in CROWD])
    for tp in CROWD:
        build.append(log_dir.adopt_log(tp, TOPIC_ID, TopicConfig(), build.NOW_MS), 3)
    return log_dir


CROWD = [TopicPartition("crowd", index) for index in range(MANY_LOGS)]


@pytest.mark.parametrize("are_large", [False, True])
def test_many_logs_are_closed_with_one_wait_or_two(files: MemoryFiles, are_large: bool) -> None:
    log_dir = crowd(files)
    if are_large:
        build.enlarge(log_dir.logs[CROWD[7]])
    before = files.counts.copy()
    log_dir.close()
    waits = files.counts - before
    assert waits["sync_all"] == 1 + are_large, "files that take their names are waited for"
    assert waits["sync"] < 10, "for the checkpoints of the directory, not for each log"
    after = files.cut_power(Random(1))
    again = open_dir(after)
    ends = {tp: log.end_offset for tp, log in log_dir.logs.items()}
    assert {tp: log.end_offset for tp, log in again.logs.items()} == ends
    assert {log.epochs.latest for log in again.logs.values()} == {build.EPOCH}
    assert not any(log.cut_bytes for log in again.logs.values())


def test_to_close_what_has_not_changed_writes_nothing_for_each_log(files: MemoryFiles) -> None:
    crowd(files).close()
    files = files.kill()
    again = open_dir(files)
    before = files.counts.copy()
    again.close()
    assert (files.counts - before)["append"] < 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_while_many_logs_are_closed_loses_nothing(
    files: MemoryFiles, seed: int
) -> None:
    log_dir = crowd(files)
    for log in log_dir.logs.values():
        log.flush()
        build.append(log)
    files.stop_after = Random(seed).randrange(6 * MANY_LOGS)
    with suppress(MachineStopped):
        log_dir.close()
    files.stop_after = None
    again = open_dir(files.cut_power(Random(seed)))
    assert again.logs.keys() == set(CROWD)
    for log in again.logs.values():
        assert 3 <= log.end_offset <= 4
        assert log.corrupt == []
        assert log.epochs.latest == build.EPOCH
        build.append(log)


def test_a_disk_that_fails_while_everything_is_synced_is_offline_whoever_asked(
    files: MemoryFiles,
) -> None:
    """The system tells it once: nobody may take what was lost for durable afterwards."""
    log_dir = crowd(files)
    files.fail_next("sync_all", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        log_dir.flush_all()
    assert log_dir.offline_reason is not None
    assert {log.durable_offset for log in log_dir.logs.values()} == {0}
    log_dir.close()
    assert not any(entry.name == ".clean-shutdown" for entry in files.list(ROOT))


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_directory_that_is_let_go_has_no_file_open(tmp_path: Path, is_clean: bool) -> None:
    """Although the logs are still referred to."""
    log_dir = LogDir(OsFiles(), tmp_path)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS, lambda done, total: None)
    config = TopicConfig(segment_bytes=1024)
    log = log_dir.create_log(ORDERS, TOPIC_ID, config, build.NOW_MS)
    for _ in range(100):
        build.append(log)
    assert len(open_below(tmp_path)) > 2, "sealed segments, the active one, the lock"
    if is_clean:
        log_dir.close()
    else:
        log_dir.abandon()
    assert open_below(tmp_path) == []
    assert log_dir.logs == {ORDERS: log}
