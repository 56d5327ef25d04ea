"""What lay on disk at the start is read once before it is served, and never again."""

import pytest

from fakes import build
from fakes.listeners import FakeLogListener
from fakes.memory_files import MemoryFiles
from ottla.config import TopicConfig
from ottla.errors import CorruptBatch
from ottla.model import NO_UUID, Offset, Position
from ottla.storage.log import Log
from ottla.storage.log_listener import LogListener
from ottla.storage.log_states import NotedState
from ottla.storage.recovery_scan import EVERYTHING
from ottla.storage.segment import CheckedPart, Unchecked

SMALL = TopicConfig(segment_bytes=4000, index_interval_bytes=300)
BATCHES = 100


@pytest.fixture
def files() -> MemoryFiles:
    """A disk with a log that was closed cleanly: three sealed segments and an active one."""
    files = MemoryFiles()
    log = written(files)
    log.close()
    return files.kill()


def written(files: MemoryFiles) -> Log:
    log = build.log(files, SMALL)
    for number in range(BATCHES):
        build.append(log, 1, value=b"%050d" % number)
    return log


def opened(files: MemoryFiles, listener: LogListener | None = None) -> Log:
    noted = NotedState(NO_UUID, b"0\n1\n%d 0\n" % build.EPOCH, b"")
    return build.log(files, SMALL, recovery_point=EVERYTHING, noted=noted, listener=listener)


def read_through(log: Log, files: MemoryFiles) -> int:
    """Read everything in small pieces; how often a file was read for it."""
    before = files.counts["read"]
    at = log.start_offset
    while (found := log.read(at, log.end_offset, 500, at_least_one=True)) is not None:
        at = found.end_offset
    assert at == log.end_offset
    return files.counts["read"] - before


def part(start: int, end: int) -> CheckedPart:
    return CheckedPart(Position(start), Position(end), Offset(end))


def test_a_second_reader_costs_what_it_costs_where_nothing_is_old(files: MemoryFiles) -> None:
    fresh_files = MemoryFiles()
    fresh = written(fresh_files)
    read_through(fresh, fresh_files)
    log = opened(files)
    first = read_through(log, files)
    assert all(not segment.unchecked.end for segment in log.sealed_segments)
    assert read_through(log, files) == read_through(fresh, fresh_files) < first


def test_the_tail_is_never_looked_at(files: MemoryFiles) -> None:
    log = opened(files)
    for _ in range(3):
        at = log.end_offset
        build.append(log)
        log.flush()
        log.read(at, log.end_offset, 1000, at_least_one=True)  # from here on readers go on
    at = log.end_offset
    build.append(log)
    before = files.counts["read"]
    assert log.read(at, log.end_offset, 1000, at_least_one=True) is not None
    assert files.counts["read"] == before


def test_damage_is_found_by_the_first_reader_wherever_he_begins(files: MemoryFiles) -> None:
    segment = opened(files).sealed_segments[1]
    batch_bytes = segment.size_bytes // (segment.end_offset - segment.base_offset)
    files.flip(segment.directory / f"{segment.base_offset:020d}.log", 10 * batch_bytes + 80)
    bad = segment.base_offset + 10
    for start in range(segment.base_offset, segment.end_offset):
        listener = FakeLogListener()
        log = opened(files.kill(), listener)
        reported = listener.damages
        at = Offset(start)
        seen = list[int]()
        while at < segment.end_offset:
            try:
                found = log.read(at, segment.end_offset, 500, at_least_one=True)
            except CorruptBatch:
                assert at == bad
                at = Offset(at + 1)
                continue
            assert found is not None
            seen += range(at, found.end_offset)
            at = found.end_offset
        assert seen == [one for one in range(start, segment.end_offset) if one != bad]
        if start <= bad:
            assert [(one.start_offset, one.end_offset) for one in log.corrupt] == [(bad, bad + 1)]
            assert len(reported) == 1
        files.unlink(log.directory / "corrupt-ranges")


def test_a_first_reader_of_little_gets_the_batch_that_it_asks_for(files: MemoryFiles) -> None:
    """The index leads to a batch before it, and what lies between is more than is wanted."""
    segment = opened(files).sealed_segments[1]
    for start in range(segment.base_offset, segment.end_offset):
        log = opened(files.kill())
        found = log.read(Offset(start), log.end_offset, 1, at_least_one=True)
        assert found is not None
        assert found.end_offset == start + 1


def test_a_segment_that_ends_too_early_at_a_batch_is_read_once_and_refused_behind_it(
    files: MemoryFiles,
) -> None:
    segment = opened(files).sealed_segments[0]
    batch_bytes = segment.size_bytes // (segment.end_offset - segment.base_offset)
    del files.content(segment.directory / f"{0:020d}.log")[batch_bytes:]
    log = opened(files.kill())
    found = log.read(Offset(0), log.end_offset, 1 << 20, at_least_one=True)
    assert found is not None
    assert (found.size_bytes, found.end_offset) == (batch_bytes, 1)
    assert [(one.start_offset, one.end_offset) for one in log.corrupt] == [(1, segment.end_offset)]
    with pytest.raises(CorruptBatch):
        log.read(Offset(1), log.end_offset, 1 << 20, at_least_one=True)


def test_checked_parts_join() -> None:
    unchecked = Unchecked(100)
    for start, end in ((20, 30), (50, 60), (30, 40)):
        unchecked.note(part(start, end))
    assert unchecked.part_at(25) == part(20, 40)
    assert unchecked.part_at(40) == part(20, 40)
    assert unchecked.part_at(45) is None
    unchecked.note(part(35, 55))
    assert unchecked.part_at(20) == part(20, 60)
    unchecked.note(part(0, 20))
    assert unchecked.end == 100
    unchecked.note(part(60, 100))
    assert (unchecked.end, unchecked.part_at(10)) == (0, None)
