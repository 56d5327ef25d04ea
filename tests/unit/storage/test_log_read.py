"""Reading: which whole batches a reader gets, and what it costs."""

import errno
from dataclasses import replace

import pytest

from fakes import build
from fakes.logs import SMALL, fill, offsets_of, segments_of
from fakes.memory_files import MemoryFiles
from ottla.errors import (
    CorruptBatch,
    OffsetOutOfRange,
    StorageFailed,
)
from ottla.model import (
    Offset,
    Position,
)
from ottla.records.batch import read_header
from ottla.records.record_slices import empty_batch
from ottla.storage.damages import CorruptRange, Damages
from ottla.storage.log import Log
from ottla.storage.log_read import FileRange
from ottla.storage.recovery_scan import EVERYTHING


def test_a_read_ends_before_the_offset_it_may_not_see(files: MemoryFiles) -> None:
    log = build.log(files)
    for _ in range(50):
        build.append(log, 2, value=bytes(100))
    found = log.read(Offset(11), Offset(31), 1 << 20, at_least_one=True)
    assert found is not None
    assert offsets_of(log, log.read_bytes(found)) == list(range(10, 30))
    assert found.end_offset == 30
    assert log.read(Offset(30), Offset(31), 1 << 20, at_least_one=True) is None


def test_a_read_takes_as_many_whole_batches_as_fit(files: MemoryFiles) -> None:
    log = build.log(files)
    for _ in range(100):
        build.append(log)
    size_bytes = log.size_bytes // 100
    for count in (1, 2, 60, 99):
        for spare in (0, size_bytes - 1):
            found = log.read(
                Offset(0), log.end_offset, count * size_bytes + spare, at_least_one=False
            )
            assert found is not None
            assert (found.size_bytes, found.end_offset) == (count * size_bytes, count)


def test_only_who_must_move_on_gets_a_batch_that_is_too_large(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log, value=bytes(500))
    build.append(log)
    assert log.read(Offset(0), log.end_offset, 100, at_least_one=False) is None
    found = log.read(Offset(0), log.end_offset, 100, at_least_one=True)
    assert found is not None
    assert found.end_offset == 1


@pytest.mark.parametrize("offset", [-1, 4])
def test_what_is_outside_the_log_cannot_be_read(files: MemoryFiles, offset: int) -> None:
    log = build.log(files)
    build.append(log, 3)
    with pytest.raises(OffsetOutOfRange):
        log.read(Offset(offset), log.end_offset, 100, at_least_one=True)


def test_at_the_end_there_is_nothing_yet(files: MemoryFiles) -> None:
    log = build.log(files)
    assert log.read(Offset(0), Offset(0), 100, at_least_one=True) is None
    build.append(log)
    assert log.read(Offset(1), Offset(1), 100, at_least_one=True) is None


def test_readers_that_go_on_need_no_search(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 2)
    bases = {segment.base_offset for segment in segments_of(log)}
    offset = Offset(0)
    while (found := log.read(offset, log.end_offset, 400, at_least_one=True)) is not None:
        offset = found.end_offset
        assert offset in log.remembered_offsets or offset in bases
    for number in range(200):
        log.read(Offset(number % log.end_offset), log.end_offset, 1, at_least_one=True)
    assert len(log.remembered_offsets) <= 64


def test_a_truncated_log_forgets_where_its_readers_were(files: MemoryFiles) -> None:
    log = build.log(files)
    for _ in range(10):
        build.append(log, 2)
    first = log.read(Offset(0), log.end_offset, log.size_bytes // 2, at_least_one=True)
    assert first is not None
    log.truncate(Offset(12), build.NOW_MS)
    second = log.read(first.end_offset, log.end_offset, 1 << 20, at_least_one=True)
    assert second is not None
    assert (second.end_offset, second.position + second.size_bytes) == (12, log.size_bytes)


def test_a_range_outlives_the_segment_it_points_to(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 2)
    found = log.read(Offset(0), log.end_offset, 10_000, at_least_one=True)
    assert found is not None
    log.advance_start(log.sealed_segments[1].base_offset)
    assert offsets_of(log, log.read_bytes(found))[0] == 0


def test_who_reads_on_costs_one_look_at_the_file(files: MemoryFiles) -> None:
    log = build.log(files, replace(SMALL, segment_bytes=1 << 20))
    for _ in range(100):
        build.append(log, 3, value=bytes(100))
    found = log.read(Offset(0), log.end_offset, 2000, at_least_one=True)
    for _ in range(3):
        assert found is not None
        before = files.counts["read"]
        found = log.read(found.end_offset, log.end_offset, 2000, at_least_one=True)
        assert files.counts["read"] == before + 1


def test_a_failed_read_takes_the_log_offline(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log)
    found = log.read(Offset(0), Offset(1), 100, at_least_one=True)
    assert found is not None
    files.fail_next("read", errno.EIO)
    with pytest.raises(StorageFailed):
        log.read_bytes(found)
    assert log.offline_reason is not None


def emptied(offset: int) -> bytearray:
    """A batch of which compaction has taken all records."""
    return empty_batch(read_header(build.batch(base_offset=offset)), keeps_producer=False)


def append_emptied(log: Log, count: int) -> None:
    for _ in range(count):
        log.append_as_follower(emptied(log.end_offset), build.NOW_MS)


def read_on(log: Log, start: int, bytes_max: int = 1 << 20) -> FileRange:
    found = log.read(Offset(start), log.end_offset, bytes_max, at_least_one=True)
    assert found is not None
    return log.read_on(found, log.end_offset, bytes_max, at_least_one=True)


def test_a_consumer_is_taken_over_segments_without_records(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    append_emptied(log, 100)
    log.roll(build.NOW_MS)
    build.append(log, 2)
    build.append(log, 2)
    assert len(log.sealed_segments) > 5
    for start in (0, 7, 99):
        found = read_on(log, start)
        assert offsets_of(log, log.read_bytes(found)) == [100, 101, 102, 103]
        assert (found.start_offset, found.end_offset) == (100, 104)


def test_a_consumer_is_taken_over_many_batches_though_it_wants_few_bytes(
    files: MemoryFiles,
) -> None:
    log = build.log(files)
    append_emptied(log, 50)
    build.append(log)
    found = read_on(log, 0, bytes_max=61)
    assert offsets_of(log, log.read_bytes(found)) == [50]


def test_where_only_empty_batches_are_left_the_consumer_gets_to_the_end(
    files: MemoryFiles,
) -> None:
    log = build.log(files, SMALL)
    append_emptied(log, 40)
    found = read_on(log, 0)
    assert found.end_offset == 40
    assert offsets_of(log, log.read_bytes(found)) == []


@pytest.mark.parametrize(("rolled_each", "count"), [(True, 150), (False, 20_000)])
def test_a_consumer_is_not_taken_too_far_at_once(
    files: MemoryFiles, rolled_each: bool, count: int
) -> None:
    log = build.log(files)
    for _ in range(count if rolled_each else 1):
        append_emptied(log, 1 if rolled_each else count)
        log.roll(build.NOW_MS)
    build.append(log)
    first = read_on(log, 0)
    assert 0 < first.end_offset <= count
    assert not offsets_of(log, log.read_bytes(first))
    found = read_on(log, first.end_offset)
    assert offsets_of(log, log.read_bytes(found)) == [count]


def test_a_range_with_a_record_is_left_alone_whatever_its_size(files: MemoryFiles) -> None:
    log = build.log(files)
    append_emptied(log, 3)
    value = next(bytes(n) for n in range(200) if len(build.batch(value=bytes(n))) % 61 == 0)
    build.append(log, value=value)
    append_emptied(log, 3)
    log.roll(build.NOW_MS)
    build.append(log)
    found = log.read(Offset(0), log.end_offset, 1 << 20, at_least_one=True)
    assert found is not None
    assert found.size_bytes % 61 == 0
    assert log.read_on(found, log.end_offset, 1 << 20, at_least_one=True) is found


def test_damage_behind_is_for_the_reader_who_gets_there(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    append_emptied(log, 5)
    log.roll(build.NOW_MS)
    build.append(log)
    log.close()
    damage = CorruptRange(Offset(5), Offset(6), Offset(5), Position(0))
    Damages(files, log.directory, []).keep([damage])
    log = build.log(files, SMALL, recovery_point=EVERYTHING)
    assert read_on(log, 0).end_offset == 5
    with pytest.raises(CorruptBatch):
        read_on(log, 5)
