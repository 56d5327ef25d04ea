"""Checkpoints of a data directory: written in order, and believed as far as they go."""

from pathlib import Path
from random import Random

import pytest

from fakes import build
from fakes.log_dirs import CLICKS, ORDERS, ROOT, TOPIC_ID, create, open_dir
from fakes.memory_files import MemoryFiles
from ottla.config import TopicConfig
from ottla.model import Offset, TopicPartition, Uuid, format_uuid
from ottla.storage.dir_checkpoints import DirCheckpoints
from ottla.storage.files import OsFiles
from ottla.storage.log_dir import LogDir
from ottla.storage.log_states import decode_states

OTHER_ID = Uuid(bytes(range(1, 17)))
RECOVERY_POINTS = ROOT / "recovery-point-offset-checkpoint"
LOG_STATES = ROOT / "log-states"


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


def test_checkpoints_are_there_from_the_first_start_on(files: MemoryFiles) -> None:
    """So that one that is missing later tells that something was lost."""
    assert not open_dir(files).has_recovery_points
    files = files.kill()
    assert open_dir(files).has_recovery_points
    files = files.kill()
    files.unlink(RECOVERY_POINTS)
    assert not open_dir(files).has_recovery_points


def test_the_mark_of_a_clean_close_is_not_written_over_what_is_not_on_disk(
    files: MemoryFiles,
) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    checkpoints = DirCheckpoints(files, ROOT, log_dir.logs, log_dir.topic_ids)
    build.append(log_dir.logs[ORDERS])
    with pytest.raises(AssertionError, match="not on disk"):
        checkpoints.write_clean_mark()
    with pytest.raises(AssertionError, match="the mark is gone"):
        checkpoints.take_clean_mark()
    log_dir.logs[ORDERS].flush()
    checkpoints.write_clean_mark()


def test_a_log_that_begins_again_at_a_start_writes_no_checkpoint_without_the_others(
    files: MemoryFiles,
) -> None:
    """Or a stop before all logs are open would bring deleted records of the others back."""
    log_dir = open_dir(files)
    for tp, start in ((ORDERS, 5), (CLICKS, 2)):
        create(log_dir, tp)
        build.append(log_dir.logs[tp], 5)
        log_dir.logs[tp].advance_start(Offset(start))
    log_dir.close()
    files = files.kill()
    files.unlink(ROOT / "recovery-point-offset-checkpoint")  # so a loss cannot be known
    files.content(ROOT / str(ORDERS) / f"{0:020d}.log").clear()
    starts = ROOT / "log-start-offset-checkpoint"
    written = files.read_whole(starts)
    seen: list[bytes] = []
    again = LogDir(files, ROOT)
    again.open_logs(
        lambda tp: TopicConfig(),
        build.NOW_MS,
        lambda done, total: seen.append(files.read_whole(starts)),
    )
    assert seen == [written, written]
    assert {tp: log.start_offset for tp, log in again.logs.items()} == {ORDERS: 5, CLICKS: 2}
    assert again.logs[ORDERS].end_offset == 5
