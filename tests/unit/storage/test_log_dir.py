"""One data directory: lock, create, open, delete, checkpoint, close, fail."""

import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from fakes import build
from fakes.listeners import FakeDirListener
from fakes.memory_files import MachineStopped, MemoryFiles
from ottla.config import TopicConfig
from ottla.errors import CorruptBatch, DiskFull, StorageFailed, TopicAlreadyExists, UsageRefused
from ottla.model import LeaderEpoch, Offset, TopicPartition, Uuid, format_uuid
from ottla.records.batch import Record, build_batch
from ottla.records.crc import crc32c
from ottla.storage.checkpoints import encode_checkpoint
from ottla.storage.files import OsFiles
from ottla.storage.log_dir import MANY as MANY_LOGS
from ottla.storage.log_dir import LogDir
from ottla.storage.log_dir_listener import LogDirListener
from ottla.storage.log_states import decode_states
from ottla.storage.reserve import RESERVE_BYTES

ROOT = Path("/data")
ORDERS, CLICKS = TopicPartition("orders", 0), TopicPartition("web-clicks", 12)
TOPIC_ID = Uuid(bytes(range(16)))
OTHER_ID = Uuid(bytes(range(1, 17)))
RECOVERY_POINTS = ROOT / "recovery-point-offset-checkpoint"
LOG_STATES = ROOT / "log-states"


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def open_dir(files: MemoryFiles, listener: LogDirListener | None = None) -> LogDir:
    log_dir = LogDir(files, ROOT)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS, listener=listener)
    return log_dir


def create(log_dir: LogDir, tp: TopicPartition = ORDERS) -> None:
    log_dir.create_log(tp, TOPIC_ID, TopicConfig(), build.NOW_MS)


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


def test_partition_metadata_is_in_kafkas_format(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    content = files.read_whole(ROOT / "orders-0" / "partition.metadata")
    kafkas = b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    assert content == kafkas + b"crc32c: %08x\n" % crc32c(kafkas)  # Kafka reads two lines


def test_partition_metadata_of_old_gets_a_checksum_once(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    log_dir.close()
    path = ROOT / "orders-0" / "partition.metadata"
    with_checksum = files.read_whole(path)
    files.create(path).append(b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n")
    files = files.kill()
    log_dir = LogDir(files, ROOT)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS, is_checked=False)
    assert log_dir.topic_ids == {ORDERS: TOPIC_ID}
    assert files.read_whole(path) == with_checksum


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n",
        b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n",
        b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\ncrc32c: 00000000\n",
        b"\xff",
    ],
)
def test_a_log_that_does_not_say_whose_it_is_is_set_aside(
    files: MemoryFiles, content: bytes
) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS], 3)
    log_dir.close()
    files.create(ROOT / "orders-0" / "partition.metadata").append(content)
    before = {name: files.read_whole(path) for name, path in contents(files, "orders-0")}
    again = open_dir(files)
    assert damages(again) == [(0, 3)], "what takes its place goes on behind it"
    assert again.directories.stray_count == 1
    stray = f"orders-0.{0:032x}-stray"
    assert {name: files.read_whole(path) for name, path in contents(files, stray)} == before
    again.close()
    assert open_dir(files).directories.stray_count == 1


def damages(log_dir: LogDir, tp: TopicPartition = ORDERS) -> list[tuple[int, int]]:
    return [(one.start_offset, one.end_offset) for one in log_dir.logs[tp].corrupt]


def remove(files: MemoryFiles, directory: Path) -> None:
    """A whole directory is gone, names and all."""
    for entry in files.list(directory):
        files.unlink(directory / entry.name)
    files.sync_dir(directory)
    files.remove_dir(directory)


def contents(files: MemoryFiles, directory: str) -> list[tuple[str, Path]]:
    path = ROOT / directory
    return [(entry.name, path / entry.name) for entry in files.list(path)]


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


def test_a_directory_that_is_missing_without_a_deletion_is_a_failure(tmp_path: Path) -> None:
    log_dir = LogDir(OsFiles(), tmp_path)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    create(log_dir)
    log = log_dir.logs[ORDERS]
    build.append(log)
    log.roll(build.NOW_MS)
    build.append(log)
    work = log.flushing.begin()
    assert work is not None
    log.directory.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        work.run(OsFiles())


def test_a_deletion_that_was_interrupted_is_finished_at_the_next_start(
    files: MemoryFiles,
) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    files.fail_next("unlink", errno.EIO)
    with pytest.raises(StorageFailed):
        log_dir.delete_log(ORDERS, Random(1))
    after = files.kill()
    assert any(entry.name.endswith("-delete") for entry in after.list(ROOT))
    assert not open_dir(after).logs
    assert not any(entry.is_dir for entry in after.list(ROOT))


def test_a_clean_close_leaves_nothing_to_scan(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    for _ in range(500):
        build.append(log_dir.logs[ORDERS])
    log_dir.close()
    after = files.kill()
    path = ROOT / "orders-0" / f"{0:020d}.log"
    after.content(path)[300] ^= 1  # an unclean start would notice
    log = open_dir(after).logs[ORDERS]
    assert log.corrupt == []
    assert log.end_offset == 500


def test_the_mark_of_a_clean_close_is_good_for_one_start(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    log_dir.close()
    after = files.kill()
    log_dir = open_dir(after)
    assert not any(entry.name == ".clean-shutdown" for entry in after.list(ROOT))
    for _ in range(3):
        build.append(log_dir.logs[ORDERS])
    crashed = after.kill()
    crashed.content(ROOT / "orders-0" / f"{0:020d}.log")[-1] ^= 1
    assert open_dir(crashed).logs[ORDERS].end_offset == 2


def test_a_damaged_mark_is_no_mark(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS])
    log_dir.close()
    after = files.kill()
    after.content(ROOT / ".clean-shutdown")[0] ^= 1
    after.content(ROOT / "orders-0" / f"{0:020d}.log").extend(b"torn")
    assert open_dir(after).logs[ORDERS].cut_bytes == 4


def test_a_checkpoint_says_how_far_logs_are_durable(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    log = log_dir.logs[ORDERS]
    build.append(log, 3)
    log.flush()
    build.append(log, 2)
    log_dir.checkpoint()
    lines = files.read_whole(ROOT / "recovery-point-offset-checkpoint").decode().splitlines()
    assert lines[:3] == ["1", "1", f"orders 0 {format_uuid(TOPIC_ID)} 3"]
    assert log.flushing.checkpointed_offset == 3


def test_checkpoints_of_quiet_logs_cost_nothing(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    for number in range(20):
        create(log_dir, TopicPartition("many", number))
    log_dir.checkpoint()
    before = files.counts["sync"]
    log_dir.checkpoint()
    assert files.counts["sync"] == before
    create(log_dir)
    log_dir.checkpoint()
    assert files.counts["sync"] == before + 3, "of partition.metadata, states, recovery points"


def test_a_checkpoint_writes_epochs_before_the_recovery_point_that_relies_on_them(
    files: MemoryFiles,
) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS], 3)
    log_dir.logs[ORDERS].flush()
    log_dir.save_logs(log_dir.logs.values(), None)
    states, *offsets = log_dir.begin_checkpoint()
    build.append(log_dir.logs[ORDERS], 2, epoch=build.EPOCH + 1)
    log_dir.logs[ORDERS].flush()
    states.run()
    entry = decode_states(files.read_whole(LOG_STATES)).of(ORDERS, TOPIC_ID)
    assert entry is not None
    assert entry.epochs == b"0\n1\n3 0\n"
    for one in offsets:
        one.run()
    line = f"orders 0 {format_uuid(TOPIC_ID)} 3"
    assert files.read_whole(RECOVERY_POINTS).decode().splitlines()[2] == line
    found = open_dir(files.kill()).logs[ORDERS]
    assert [entry.start_offset for entry in found.epochs.entries()] == [0, 3]


@pytest.mark.parametrize("run_count", range(3))
def test_a_log_that_is_cut_while_a_checkpoint_is_written_is_not_promised_to_be_longer(
    run_count: int, files: MemoryFiles
) -> None:
    """Whatever part of the checkpoint the worker has written by then, and goes on to write."""
    log_dir = open_dir(files)
    create(log_dir)
    log = log_dir.logs[ORDERS]
    for epoch in range(5):
        build.append(log, epoch=epoch)
    log.flush()
    log_dir.save_logs(log_dir.logs.values(), None)
    replacements = log_dir.begin_checkpoint()
    for one in replacements[:run_count]:
        one.run()
    log.truncate(Offset(2), build.NOW_MS)
    for one in replacements[run_count:]:
        one.run()
    log_dir.end_checkpoint(replacements)
    for seed in range(20):
        after = open_dir(files.cut_power(Random(seed))).logs[ORDERS]
        assert (after.end_offset, after.corrupt) == (2, [])
        assert after.epochs.entries() == log.epochs.entries()
    log_dir.checkpoint()
    assert files.read_whole(RECOVERY_POINTS).decode().splitlines()[2].endswith(" 2")


def test_a_log_that_is_deleted_while_a_checkpoint_is_written_fails_nobody(tmp_path: Path) -> None:
    log_dir = LogDir(OsFiles(), tmp_path)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    create(log_dir)
    build.append(log_dir.logs[ORDERS])
    log_dir.save_logs(log_dir.logs.values(), None)
    replacements = log_dir.begin_checkpoint()
    log_dir.delete_log(ORDERS, Random(1))
    for one in replacements:
        one.run()
    log_dir.end_checkpoint(replacements)
    log_dir.create_log(ORDERS, OTHER_ID, TopicConfig(), build.NOW_MS)
    log_dir.abandon()
    again = LogDir(OsFiles(), tmp_path)
    again.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    assert (again.logs[ORDERS].end_offset, again.logs[ORDERS].corrupt) == (0, [])
    again.close()


def test_a_start_after_a_clean_stop_writes_no_checkpoint_that_is_there(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS], 3)
    log_dir.close()
    files = files.kill()
    kept = files.content(RECOVERY_POINTS)
    open_dir(files)
    assert files.content(RECOVERY_POINTS) is kept


def test_a_start_writes_down_what_its_checkpoints_do_not_say(files: MemoryFiles) -> None:
    """Else what is appended to a log that lost its end would not be read after a crash."""
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS], 3)
    log_dir.close()
    files = files.kill()
    files.content(ROOT / str(ORDERS) / f"{0:020d}.log").clear()
    files.unlink(RECOVERY_POINTS)
    opened = open_dir(files)
    assert opened.logs[ORDERS].end_offset == 0
    line = f"{ORDERS.topic} 0 {format_uuid(TOPIC_ID)} 0"
    assert files.read_whole(RECOVERY_POINTS).decode().splitlines()[2] == line


def test_a_checkpoint_that_is_damaged_means_reading_more_not_less(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    log = log_dir.logs[ORDERS]
    build.append(log, 3)
    log.flush()
    log_dir.checkpoint()
    after = files.kill()
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        after.content(ROOT / name)[0] ^= 1
    assert open_dir(after).logs[ORDERS].end_offset == 3


def test_where_a_log_starts_is_remembered(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    log = log_dir.logs[ORDERS]
    for _ in range(5):
        build.append(log)
    log.advance_start(Offset(3))
    log_dir.checkpoint()
    assert open_dir(files.kill()).logs[ORDERS].start_offset == 3


def test_a_truncated_log_is_not_promised_to_be_longer(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    log = log_dir.logs[ORDERS]
    for _ in range(5):
        build.append(log)
    log.flush()
    log_dir.checkpoint()
    log.truncate(Offset(2), build.NOW_MS)
    for seed in range(20):
        after = open_dir(files.cut_power(Random(seed))).logs[ORDERS]
        assert after.corrupt == []
        assert after.end_offset == 2


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


def test_deletions_that_were_written_survive_a_power_cut(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS], 5)
    log_dir.logs[ORDERS].flush()
    log_dir.logs[ORDERS].advance_start(Offset(3))
    log_dir.write_deletions(log_dir.deletions())
    for seed in range(10):
        after = open_dir(files.cut_power(Random(seed)))
        assert after.logs[ORDERS].start_offset == 3


def test_a_topic_of_the_same_name_does_not_inherit_deletions(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS], 5)
    log_dir.logs[ORDERS].advance_start(Offset(3))
    log_dir.write_deletions(log_dir.deletions())
    log_dir.delete_log(ORDERS, Random(0))
    log_dir.create_log(ORDERS, OTHER_ID, TopicConfig(), build.NOW_MS)
    build.append(log_dir.logs[ORDERS], 5)
    after = open_dir(files.kill())
    assert after.logs[ORDERS].start_offset == 0


@pytest.mark.parametrize("is_adopted", [False, True])
def test_a_topic_of_the_same_name_does_not_inherit_checkpoints(
    is_adopted: bool, files: MemoryFiles
) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS], 5)
    log_dir.logs[ORDERS].flush()
    log_dir.logs[ORDERS].advance_start(Offset(3))
    log_dir.checkpoint()
    log_dir.delete_log(ORDERS, Random(0))
    log_dir.prepare_log(ORDERS, OTHER_ID)
    if is_adopted:
        log_dir.adopt_log(ORDERS, OTHER_ID, TopicConfig(), build.NOW_MS)
    after = open_dir(files.kill()).logs[ORDERS]
    assert (after.start_offset, after.end_offset, after.corrupt) == (0, 0, [])


def filled(count: int = 5, *, is_closed: bool) -> MemoryFiles:
    """A disk with a log of so many records that a checkpoint knows."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS], count)
    log_dir.logs[ORDERS].flush()
    log_dir.close() if is_closed else log_dir.checkpoint()
    return files.kill()


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


def test_what_lies_where_a_lost_log_was_is_set_aside() -> None:
    files = filled(is_closed=True)
    remove(files, ROOT / str(ORDERS))
    files.make_dir(ROOT / str(ORDERS))
    files.create(ROOT / str(ORDERS) / f"{0:020d}.timeindex").append(b"left")
    log_dir = open_dir(files)
    assert damages(log_dir) == [(0, 5)]
    assert log_dir.directories.stray_count == 1


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


def test_checkpoints_are_there_from_the_first_start_on(files: MemoryFiles) -> None:
    """So that one that is missing later tells that something was lost."""
    assert not open_dir(files).has_recovery_points
    files = files.kill()
    assert open_dir(files).has_recovery_points
    files = files.kill()
    files.unlink(RECOVERY_POINTS)
    assert not open_dir(files).has_recovery_points


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


def test_a_file_that_is_not_ours_keeps_a_deleted_log_from_being_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log_dir = LogDir(OsFiles(), tmp_path)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    create(log_dir)
    build.append(log_dir.logs[ORDERS], 3)
    (tmp_path / "orders-0" / "notes.txt").write_text("mine")
    log_dir.delete_log(ORDERS, Random(1))
    stray = tmp_path / f"orders-0.{0:032x}-stray"
    assert (stray / "notes.txt").read_text() == "mine"
    assert (stray / f"{0:020d}.log").stat().st_size > 0
    assert log_dir.directories.stray_count == 1
    (said,) = [line for line in caplog.records if line.getMessage() == "log set aside"]
    assert "'notes.txt' in it is not ours" in vars(said)["reason"]
    log_dir.close()


def test_a_log_that_lies_where_a_new_one_goes_is_set_aside_and_not_written_over(
    tmp_path: Path,
) -> None:
    log_dir = LogDir(OsFiles(), tmp_path)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / f"{0:020d}.log").write_bytes(b"records of somebody")
    create(log_dir)
    stray = tmp_path / f"orders-0.{0:032x}-stray"
    assert (stray / f"{0:020d}.log").read_bytes() == b"records of somebody"
    assert log_dir.logs[ORDERS].end_offset == 0
    log_dir.close()


def test_what_a_failed_attempt_to_make_a_log_left_is_removed(tmp_path: Path) -> None:
    log_dir = LogDir(OsFiles(), tmp_path)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    log_dir.prepare_log(ORDERS, TOPIC_ID)
    log_dir.prepare_log(CLICKS, TOPIC_ID)
    with (tmp_path / str(CLICKS) / f"{0:020d}.log").open("wb") as file:
        file.write(b"a record")
    log_dir.directories.remove_unmade(ORDERS)
    log_dir.directories.remove_unmade(CLICKS)
    assert not (tmp_path / str(ORDERS)).exists()
    assert (tmp_path / str(CLICKS)).exists()
    log_dir.release()


# Many at once

MANY = [TopicPartition("many", index) for index in range(20)]


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


def test_what_has_the_name_of_one_of_many_new_logs_is_set_aside(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS])
    log_dir.forget_log(ORDERS, Random(1))
    log_dir.prepare_logs([(tp, TOPIC_ID) for tp in (ORDERS, *MANY)])
    assert log_dir.directories.stray_count == 1
    assert log_dir.adopt_log(ORDERS, TOPIC_ID, TopicConfig(), build.NOW_MS).end_offset == 0


CROWD = [TopicPartition("crowd", index) for index in range(MANY_LOGS)]


def crowd(files: MemoryFiles) -> LogDir:
    log_dir = open_dir(files)
    log_dir.prepare_logs([(tp, TOPIC_ID) for tp in CROWD])
    for tp in CROWD:
        build.append(log_dir.adopt_log(tp, TOPIC_ID, TopicConfig(), build.NOW_MS), 3)
    return log_dir


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
