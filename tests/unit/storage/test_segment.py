"""Segments: Kafka's file names and bytes, and the search for a batch."""

import struct

import pytest

from fakes import build
from fakes.memory_files import MemoryFiles
from ottla.config import TopicConfig
from ottla.errors import CorruptBatch
from ottla.model import Offset, Position
from ottla.storage.index import IndexDamaged
from ottla.storage.log import Log
from ottla.storage.segment import (
    ActiveSegment,
    SealedSegment,
    file_name,
    find_batch,
    find_boundary,
    walk,
)

CONFIG = TopicConfig(index_interval_bytes=200)


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def log_of(files: MemoryFiles, count: int) -> Log:
    """A log of `count` batches of 3 records, all of the same size, a second apart."""
    log = build.log(files, CONFIG)
    for number in range(count):
        batch = build.batch(3, timestamp_ms=build.NOW_MS + 1000 * number)
        log.append_as_leader(batch, build.EPOCH, build.NOW_MS)
    return log


def test_files_are_named_as_kafka_names_them() -> None:
    assert file_name(Offset(368769), ".log") == "00000000000000368769.log"


def test_a_sealed_segment_and_its_indexes_are_byte_for_byte_kafkas(files: MemoryFiles) -> None:
    """An index entry is due once more than the interval has passed since the last one, and names
    the batch's last offset and position; the time index ends with the largest timestamp."""
    log = log_of(files, 8)
    size_bytes = log.size_bytes // 8
    assert size_bytes == 97
    log.roll(build.NOW_MS)
    log.flush()
    directory = log.directory
    by_offset = files.read_whole(directory / "00000000000000000000.index")
    by_time = files.read_whole(directory / "00000000000000000000.timeindex")
    assert list(struct.iter_unpack(">ii", by_offset)) == [
        (3 * 3 + 2, 3 * size_bytes),
        (6 * 3 + 2, 6 * size_bytes),
    ]
    assert list(struct.iter_unpack(">qi", by_time)) == [
        (build.NOW_MS + 3002, 11),
        (build.NOW_MS + 6002, 20),
        (build.NOW_MS + 7002, 23),
    ]
    assert [entry.name for entry in files.list(directory)] == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.seal",
        "00000000000000000000.timeindex",
        "00000000000000000024.log",
        "00000000000000000024.snapshot",
    ]


def test_every_offset_leads_to_its_batch(files: MemoryFiles) -> None:
    log = log_of(files, 40)
    segment = log.active_segment
    size_bytes = log.size_bytes // 40
    for offset in range(120):
        found = find_batch(segment, Offset(offset))
        assert found is not None
        assert found == (
            offset // 3 * size_bytes,
            offset // 3 * 3,
            offset // 3 * 3 + 2,
            size_bytes,
        )
    assert find_batch(segment, Offset(120)) is None


def test_every_byte_leads_to_the_boundary_before_it(files: MemoryFiles) -> None:
    log = log_of(files, 40)
    segment = log.active_segment
    size_bytes = log.size_bytes // 40
    start = find_batch(segment, Offset(6))
    assert start is not None
    for end in range(2 * size_bytes, log.size_bytes + 1):
        assert find_boundary(segment, start.position, end) == (
            end // size_bytes * size_bytes,
            end // size_bytes * 3,
        )


def test_walking_into_what_is_no_batch_is_noticed(files: MemoryFiles) -> None:
    log = log_of(files, 3)
    assert len(list(walk(log.active_segment.file, Position(0), log.size_bytes))) == 3
    with pytest.raises(CorruptBatch):
        list(walk(log.active_segment.file, Position(1), log.size_bytes))
    with pytest.raises(CorruptBatch):
        list(walk(log.active_segment.file, Position(0), log.size_bytes + 5))


def test_a_batch_larger_than_a_look_is_walked_over(files: MemoryFiles) -> None:
    log = build.log(files)
    for _ in range(3):
        build.append(log, value=bytes(50_000))
    found = find_batch(log.active_segment, Offset(2))
    assert found is not None
    assert found.position == 2 * (log.size_bytes // 3)


def test_a_sealed_segment_opens_when_it_is_read_and_can_rest_again(files: MemoryFiles) -> None:
    log = log_of(files, 8)
    log.roll(build.NOW_MS)
    log.flush()
    sealed = SealedSegment(log.directory, Offset(0), Offset(24), log.size_bytes)
    assert not sealed.is_warm
    sealed.open(files, None)
    file = sealed.file
    assert find_batch(sealed, Offset(23)) is not None
    sealed.cool_down()
    assert not sealed.is_warm
    assert len(file.read(0, 100)) == 100


def test_a_sealed_segment_without_indexes_asks_for_new_ones(files: MemoryFiles) -> None:
    log = log_of(files, 8)
    sealed = SealedSegment(log.directory, Offset(0), Offset(24), log.size_bytes)
    with pytest.raises(IndexDamaged):
        sealed.open(files, None)
    assert not sealed.is_warm


def test_a_failed_write_is_not_noted(files: MemoryFiles) -> None:
    files.make_dir(build.DIRECTORY)
    file = files.create(build.DIRECTORY / "a.log")
    segment = ActiveSegment(build.DIRECTORY, Offset(0), file, build.NOW_MS)
    files.fail_next("append", after_bytes=10)
    with pytest.raises(OSError, match="Input/output"):
        segment.append(build.batch(), 0, build.NOW_MS, 100)
    assert (segment.size_bytes, segment.end_offset) == (0, 0)
