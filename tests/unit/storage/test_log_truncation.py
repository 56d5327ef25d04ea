"""The end of a log, cut off."""

import pytest

from fakes import build
from fakes.listeners import FakeLogListener
from fakes.logs import SMALL, append, fill, names_of
from fakes.memory_files import MemoryFiles
from ottla.errors import (
    CorruptBatch,
)
from ottla.model import (
    Offset,
)


def test_truncating_lowers_the_promise_on_disk_first(files: MemoryFiles) -> None:
    listener = FakeLogListener()
    log = build.log(files, listener=listener)
    for _ in range(4):
        build.append(log)
    log.flush()
    log.flushing.note_checkpoint(Offset(4))
    promised: list[tuple[int, int]] = []
    listener.on_truncate = lambda: promised.append((log.durable_offset, log.end_offset))
    log.truncate(Offset(2), build.NOW_MS)
    assert promised == [(2, 4)]
    assert (log.durable_offset, log.end_offset) == (2, 2)


def test_a_log_can_begin_again_anywhere(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 2)
    log.restart_at(Offset(1000), build.NOW_MS)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (1000, 1000, 0)
    assert build.append(log) == 1000
    assert log.epochs.entries() == [(build.EPOCH, 1000)]


def test_a_log_that_is_cut_in_the_middle_of_a_flush_has_its_indexes(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 3)
    work = log.flushing.begin()
    assert work is not None
    log.truncate(Offset(log.end_offset - 1), build.NOW_MS)
    work.run(files)
    log.flushing.end(work)
    assert not names_of(files, log, ".tmp", ".saving")
    for segment in log.sealed_segments:
        segment.cool_down()
        segment.open(files, None)


def test_the_epochs_of_what_was_cut_off_do_not_come_back(files: MemoryFiles) -> None:
    """Nothing that is left of the log contradicts what the checkpoint says."""
    log = build.log(files)
    build.append(log, 2)
    log.truncate(Offset(1), build.NOW_MS)
    append(log, build.batch(1), epoch=build.EPOCH + 1)
    log.roll(build.NOW_MS)
    log.advance_start(Offset(1))
    again = build.log(files.kill(), start_offset=1)
    assert build.EPOCH not in [epoch for epoch, _ in again.epochs.entries()]


def test_a_follower_that_is_too_far_behind_has_to_restart(files: MemoryFiles) -> None:
    log = build.log(files)
    with pytest.raises(CorruptBatch, match="restart"):
        log.append_as_follower(build.batch(base_offset=2**31 + 5), build.NOW_MS)
    log.restart_at(Offset(2**31 + 5), build.NOW_MS)
    log.append_as_follower(build.batch(base_offset=2**31 + 5), build.NOW_MS)
