"""Compaction, seen from the log: what is cleanable, and how copies are swapped in."""

from dataclasses import replace

import pytest

from fakes import build
from fakes.compacted_logs import CONFIG, PLENTY_BYTES, compact, contents, put, read_batches
from fakes.listeners import FakeLogListener
from fakes.memory_files import MemoryFiles
from ottla.model import (
    Offset,
    Position,
    TimestampMs,
)
from ottla.records.batch import (
    batches,
)
from ottla.storage.damages import Damage
from ottla.storage.log import Log
from ottla.storage.recovery_scan import EVERYTHING
from ottla.storage.segment import TIME_INDEX, file_name
from ottla.storage.swap import Swap


def begin_swap(files: MemoryFiles, log: Log) -> Swap:
    """A pass over everything but the active segment, up to the moment a worker has to swap."""
    log.flush()
    part = log.cleaning.cleanable(log.end_offset, build.NOW_MS)
    work = log.cleaning.begin(part, build.NOW_MS, PLENTY_BYTES)
    cleaned = work.run_next(files, lambda: None)
    assert cleaned is not None
    swap = log.cleaning.begin_swap(work, cleaned)
    assert swap is not None
    return swap


def swapping(files: MemoryFiles) -> tuple[Log, Swap]:
    """Six records of one key in three segments, which are about to become one."""
    log = build.log(files, CONFIG)
    for number in range(6):
        put(log, (b"a", b"%d" % number))
        if number % 2:
            log.roll(build.NOW_MS)
    log.flushing.save()
    return log, begin_swap(files, log)


def test_a_reader_in_the_middle_goes_on_in_the_new_segment(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    for number in range(20):
        put(log, (b"a", b"%d" % number))
    log.roll(build.NOW_MS)
    first = log.read(Offset(0), log.end_offset, 500, at_least_one=True)
    assert first is not None
    assert 0 < first.end_offset < 19
    compact(log, rolls=False)
    then = log.read(first.end_offset, log.end_offset, 500, at_least_one=True)
    assert then is not None
    assert [header.base_offset for header, _ in batches(log.read_bytes(then))] == [19]


def test_whoever_reads_the_old_segment_can_finish(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    for number in range(5):
        put(log, (b"a", b"%d" % number))
    found = log.read(Offset(0), log.end_offset, 1 << 20, at_least_one=True)
    assert found is not None
    before = log.read_bytes(found)
    compact(log)
    assert log.read_bytes(found) == before
    assert len(contents(log)) == 1


def test_a_log_that_changed_meanwhile_is_not_touched(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    for number in range(6):
        put(log, (b"a", b"%d" % number))
    log.roll(build.NOW_MS)
    log.flush()
    work = log.cleaning.begin(
        log.cleaning.cleanable(log.end_offset, build.NOW_MS), build.NOW_MS, 1 << 20
    )
    cleaned = work.run_next(files, lambda: None)
    assert cleaned is not None
    log.truncate(Offset(3), build.NOW_MS)
    assert log.cleaning.begin_swap(work, cleaned) is None
    assert [offset for offset, _, _ in contents(log)] == [0, 1, 2]
    log.cleaning.end(work)
    assert log.cleaning.clean_offset == 0


def test_readers_see_the_old_segments_until_the_owner_knows_of_the_new_one(
    files: MemoryFiles,
) -> None:
    log, swap = swapping(files)
    assert len(contents(log)) == 6
    swap.errand.run()
    assert len(contents(log)) == 6, "their names are gone, but they are open"
    log.cleaning.end_swap(swap)
    assert contents(log) == [(5, b"a", b"5")]
    assert log.size_bytes == sum(len(view) for _, view in read_batches(log))


def test_however_many_segments_are_replaced_all_of_them_can_be_read_meanwhile(
    files: MemoryFiles,
) -> None:
    log = build.log(files, CONFIG)
    for number in range(20):
        put(log, (b"a", b"%d" % number))
        log.roll(build.NOW_MS)
    log.flush()
    files = files.kill()
    log = build.log(files, CONFIG, recovery_point=20)
    swap = begin_swap(files, log)
    assert len(swap.old) == 20
    swap.errand.run()
    assert [offset for offset, _, _ in contents(log)] == list(range(20))
    log.cleaning.end_swap(swap)
    assert contents(log) == [(19, b"a", b"19")]


@pytest.mark.parametrize("has_run", [False, True])
def test_a_log_that_is_truncated_in_the_middle_of_a_swap_finishes_it_first(
    files: MemoryFiles, has_run: bool
) -> None:
    log, swap = swapping(files)
    put(log, (b"b", b"6"))
    if has_run:
        swap.errand.run()
    log.truncate(Offset(6), build.NOW_MS)
    swap.errand.run()
    log.cleaning.end_swap(swap)
    assert contents(log) == [(5, b"a", b"5")]
    assert contents(build.log(files.kill(), CONFIG, recovery_point=6)) == [(5, b"a", b"5")]


def test_a_log_that_begins_again_in_the_middle_of_a_swap_is_empty(files: MemoryFiles) -> None:
    log, swap = swapping(files)
    log.restart_at(Offset(100), build.NOW_MS)
    swap.errand.run()
    log.cleaning.end_swap(swap)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (100, 100, 0)
    assert contents(build.log(files.kill(), CONFIG, start_offset=100)) == []


@pytest.mark.parametrize("has_run", [False, True])
def test_what_is_being_replaced_is_deleted_afterwards(files: MemoryFiles, has_run: bool) -> None:
    log, swap = swapping(files)
    put(log, (b"b", b"6"))
    if has_run:
        swap.errand.run()
    log.advance_start(Offset(6))
    log.config = replace(CONFIG, cleanup_policy=("compact", "delete"))
    assert log.retention.delete_old_segments(build.NOW_MS, log.end_offset) == 0
    assert contents(log) == [(6, b"b", b"6")]
    swap.errand.run()
    log.cleaning.end_swap(swap)
    assert log.retention.delete_old_segments(build.NOW_MS, log.end_offset) == 1
    assert log.size_bytes == sum(len(view) for _, view in read_batches(log))
    names = [entry.name for entry in files.list(log.directory)]
    assert [name for name in names if name.endswith(".log")] == [f"{6:020d}.log"]


def test_damage_to_what_is_being_replaced_is_none_of_the_new_one(files: MemoryFiles) -> None:
    log, swap = swapping(files)
    damaged = log.sealed_segments[0]
    assert log.repair.note_damages(damaged, [Damage(Offset(0), Offset(2), Position(0), None)]) == []
    assert log.corrupt == []
    swap.errand.run()
    log.cleaning.end_swap(swap)
    assert contents(log) == [(5, b"a", b"5")]


def test_indexes_made_again_in_the_middle_of_a_swap_are_not_given_to_the_new_segment(
    files: MemoryFiles,
) -> None:
    log, swap = swapping(files)
    swap.errand.run()
    index = log.directory / file_name(Offset(0), TIME_INDEX)
    new = files.read_whole(index)
    swap.old[0].indexes.by_offset.append(0, Position(1))  # leads to no batch: made again
    assert log.read(Offset(0), log.end_offset, 1000, at_least_one=True) is not None
    assert len(swap.old[0].indexes.by_offset) == 0
    assert files.read_whole(index) == new


def test_nobody_touches_the_files_of_a_log_that_is_about_to_go(files: MemoryFiles) -> None:
    log, swap = swapping(files)
    log.retire("about to be deleted")
    before = files.list(log.directory)
    swap.errand.run()
    assert files.list(log.directory) == before


def test_truncation_makes_what_follows_dirty_again(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    for number in range(6):
        put(log, (b"%d" % number, b"1"))
    compact(log)
    assert log.cleaning.clean_offset == 6
    log.truncate(Offset(3), build.NOW_MS)
    assert log.cleaning.clean_offset == 3
    assert build.log(files.kill(), CONFIG).cleaning.clean_offset == 3


def test_a_damaged_checkpoint_means_beginning_again(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"))
    compact(log)
    log.close()
    files.create(log.directory / "cleaner-offset-checkpoint").append(b"1\n1\n7\ncrc32c 0\n")
    assert build.log(files.kill(), CONFIG, recovery_point=EVERYTHING).cleaning.clean_offset == 0


def test_compaction_alone_deletes_nothing_by_age(files: MemoryFiles) -> None:
    log = build.log(files, replace(CONFIG, retention_ms=1))
    put(log, (b"a", b"1"))
    log.roll(build.NOW_MS)
    assert log.retention.delete_old_segments(TimestampMs(build.NOW_MS + 10**9), log.end_offset) == 0
    log.config = replace(CONFIG, retention_ms=1, cleanup_policy=("compact", "delete"))
    assert log.retention.delete_old_segments(TimestampMs(build.NOW_MS + 10**9), log.end_offset) == 1


def test_a_record_that_waited_too_long_is_sealed_and_compacted(files: MemoryFiles) -> None:
    config = replace(CONFIG, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=100)
    listener = FakeLogListener()
    log = build.log(files, config, listener=listener)
    put(log, (b"x", b"1"))
    compact(log)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    compact(log, rolls=False, now_ms=build.NOW_MS + 99)
    assert len(contents(log)) == 3
    listener.on_crowded = log.flush
    compact(log, rolls=False, now_ms=build.NOW_MS + 100)
    assert [offset for offset, _, _ in contents(log)] == [0, 2]


@pytest.mark.parametrize("is_overdue", [False, True])
def test_a_segment_is_compacted_only_when_its_indexes_are_on_disk(
    files: MemoryFiles, is_overdue: bool
) -> None:
    """A flush that stored them later would give them to the segment that took its place."""
    log = build.log(files, replace(CONFIG, max_compaction_lag_ms=100))
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    work = log.flushing.begin()
    assert work is not None
    if not is_overdue:
        log.roll(build.NOW_MS)
    work.run(files)
    log.flushing.end(work)
    assert log.durable_offset == log.end_offset
    now_ms = TimestampMs(build.NOW_MS + 100 * is_overdue)
    assert log.cleaning.cleanable(log.end_offset, now_ms).end == 0
    assert len(log.sealed_segments) == 1
    log.flush()
    assert log.cleaning.cleanable(log.end_offset, now_ms).end == 2
