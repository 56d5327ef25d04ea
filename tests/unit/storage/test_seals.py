"""What a seal proves, and that none is left that proves too much."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from fakes import build
from fakes.listeners import FakeLogListener
from fakes.memory_files import MachineStopped, MemoryFiles
from ottla.config import TopicConfig
from ottla.errors import CorruptBatch
from ottla.model import Offset
from ottla.storage.checkpoints import CheckpointDamaged, encode_checkpoint
from ottla.storage.log import Log
from ottla.storage.log_listener import LogListener
from ottla.storage.recovery_scan import EVERYTHING
from ottla.storage.seals import Seal, read_seal

SMALL = TopicConfig(segment_bytes=1024, index_interval_bytes=100)


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def log_of(files: MemoryFiles, count: int = 30, listener: LogListener | None = None) -> Log:
    log = build.log(files, SMALL, listener=listener)
    for number in range(count):
        build.append(log, 2, value=b"%050d" % number)
    return log


def names(files: MemoryFiles, suffix: str) -> list[str]:
    return [one.name for one in files.list(build.DIRECTORY) if one.name.endswith(suffix)]


def path_of(base: int) -> Path:
    return build.DIRECTORY / f"{base:020d}.log"


def cut(files: MemoryFiles, base: int, size_bytes: int) -> None:
    del files.content(path_of(base))[-size_bytes:]


def ranges(log: Log) -> list[tuple[int, int]]:
    return [(one.start_offset, one.end_offset) for one in log.corrupt]


def test_a_seal_is_what_was_written_or_nothing() -> None:
    seal = Seal(Offset(7), 300, 1234)
    assert Seal.decode(seal.encode()) == seal
    assert Seal.decode(encode_checkpoint(["7 300"])) == Seal(Offset(7), 300)  # an older Ottla's
    for at in range(len(seal.encode())):
        damaged = bytearray(seal.encode())
        damaged[at] ^= 1
        with pytest.raises(CheckpointDamaged):
            Seal.decode(bytes(damaged))


def test_a_flush_seals_what_has_been_rolled(files: MemoryFiles) -> None:
    log = log_of(files)
    assert names(files, ".seal") == []
    log.flush()
    for segment in log.sealed_segments:
        seal = read_seal(files, build.DIRECTORY, segment.base_offset)
        assert seal == (segment.end_offset, segment.size_bytes, 0)


def test_a_segment_is_on_disk_before_its_seal_has_a_name(files: MemoryFiles) -> None:
    """Whenever the power is cut: where there is a seal, there is all of its segment."""
    for stop_after in range(60):
        files = MemoryFiles()
        log = log_of(files, 12)
        files.stop_after = stop_after
        with suppress(MachineStopped):
            log.flush()
        after = files.cut_power(Random(stop_after))
        for entry in after.list(build.DIRECTORY):
            if entry.name.endswith(".seal"):
                base = int(entry.name.removesuffix(".seal"))
                seal = read_seal(after, build.DIRECTORY, Offset(base))
                if seal is not None:
                    assert len(after.read_whole(path_of(base))) == seal.size_bytes
        assert ranges(build.log(after, SMALL)) == []


def test_without_a_seal_a_lost_end_is_an_interrupted_write_and_with_one_a_loss(
    files: MemoryFiles,
) -> None:
    for is_flushed in (False, True):
        disk = MemoryFiles()
        log = log_of(disk)
        first = log.sealed_segments[0]
        if is_flushed:
            log.flush()
        disk = disk.kill()
        cut(disk, 0, 30)
        log = build.log(disk, SMALL)
        if is_flushed:
            assert ranges(log) == [(first.end_offset - 2, first.end_offset)]
            assert log.end_offset == 60
        else:
            assert (ranges(log), log.end_offset) == ([], first.end_offset - 2)


def test_retention_leaves_no_seal_that_would_call_its_work_a_loss(files: MemoryFiles) -> None:
    listener = FakeLogListener()
    log = log_of(files, listener=listener)
    log.flush()
    discarded = listener.discarded
    log.advance_start(log.sealed_segments[1].end_offset)
    start = log.start_offset
    for disk in (files.kill(), files.cut_power(Random(1))):  # nothing has been removed yet
        log = build.log(disk, SMALL)
        assert ranges(log) == []
        assert names(disk, ".deleted") == []
    for one in discarded:
        one.remove()
        again = build.log(files.cut_power(Random(2)), SMALL)
        assert (ranges(again), again.start_offset) == ([], start)


def test_what_was_lost_before_the_start_of_the_log_is_forgotten(files: MemoryFiles) -> None:
    log = log_of(files)
    log.close()
    files = files.kill()
    first, second = log.sealed_segments[:2]
    files.unlink(path_of(0))
    log = build.log(files, SMALL, recovery_point=EVERYTHING)
    assert (log.start_offset, ranges(log)) == (0, [(0, first.end_offset)])
    with pytest.raises(CorruptBatch):
        log.read(Offset(0), log.end_offset, 100, at_least_one=True)
    log.advance_start(second.end_offset)
    assert ranges(log) == []
    log = build.log(files.kill(), SMALL)
    assert (ranges(log), log.start_offset) == ([], second.end_offset)


def test_a_log_that_was_cut_for_a_new_leader_has_lost_nothing(files: MemoryFiles) -> None:
    log = log_of(files)
    log.flush()
    inside = Offset(log.sealed_segments[1].base_offset + 4)
    log.truncate(inside, build.NOW_MS)
    assert log.end_offset == inside
    for disk in (files.kill(), files.cut_power(Random(3))):
        log = build.log(disk, SMALL)
        assert (ranges(log), log.end_offset) == ([], inside)


def test_a_log_that_begins_again_has_lost_nothing(files: MemoryFiles) -> None:
    log = log_of(files)
    log.flush()
    log.restart_at(Offset(500), build.NOW_MS)
    for disk in (files.kill(), files.cut_power(Random(3))):
        log = build.log(disk, SMALL, start_offset=500)
        assert (ranges(log), log.end_offset) == ([], 500)


def test_a_damaged_seal_proves_nothing_and_does_no_harm(files: MemoryFiles) -> None:
    log = log_of(files)
    log.close()
    for name in names(files, ".seal"):
        files.flip(build.DIRECTORY / name, 5)
    for point in (0, EVERYTHING):
        log = build.log(files.kill(), SMALL, recovery_point=point)
        assert (ranges(log), log.end_offset) == ([], 60)
