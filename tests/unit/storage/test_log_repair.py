"""Epochs that do not fit the log, and damage that its readers find."""

import pytest

from fakes import build
from fakes.listeners import FakeLogListener
from fakes.logs import SMALL
from fakes.memory_files import MemoryFiles
from ottla.errors import StorageFailed
from ottla.model import LeaderEpoch, Offset, Position
from ottla.storage import epoch_scan
from ottla.storage.damages import Damage
from ottla.storage.log import Log
from ottla.storage.log_states import LogState
from ottla.storage.recovery_scan import EVERYTHING


def test_an_epoch_ends_where_the_next_begins(files: MemoryFiles) -> None:
    log = build.log(files)
    for epoch in (1, 1, 4, 4, 6):
        build.append(log, 2, epoch=epoch)
    assert [log.epoch_end(LeaderEpoch(epoch)) for epoch in (1, 2, 4, 5, 6, 7)] == [
        (1, 4),
        (1, 4),
        (4, 8),
        (4, 8),
        (6, 10),
        (-1, -1),
    ]


def lied_to(files: MemoryFiles, lie: bytes, listener: FakeLogListener | None = None) -> Log:
    """A log of two epochs with a checkpoint that says something else."""
    log = build.log(files, SMALL)
    for epoch in (1, 1, 4, 4):
        build.append(log, 2, epoch=epoch, value=bytes(300))
    log.close()
    files.create(log.directory / "leader-epoch-checkpoint").append(lie)
    return build.log(files, SMALL, recovery_point=EVERYTHING, listener=listener)


@pytest.mark.parametrize("lie", [b"0\n2\n1 0\n4 2\n", b"0\n2\n1 0\n5 4\n", b"0\n2\n1 0\n4 5\n"])
def test_an_epoch_file_that_contradicts_the_log_is_not_believed(
    files: MemoryFiles, lie: bytes
) -> None:
    log = lied_to(files, lie)
    assert log.epoch_end(LeaderEpoch(1)) == (1, 4)
    assert log.epochs.entries() == [(1, 0), (4, 4)]


LIE = b"0\n2\n1 0\n4 2\n"


def test_an_owner_who_has_a_worker_is_not_kept_waiting_while_epochs_are_read(
    files: MemoryFiles,
) -> None:
    listener = FakeLogListener()
    listener.has_epochs_read = True
    log = lied_to(files, LIE, listener)
    with pytest.raises(StorageFailed, match="try again"):
        log.epoch_end(LeaderEpoch(1))
    scan = log.repair.begin_epoch_scan()
    build.append(log, 2, epoch=7)  # while the worker reads
    log.roll(build.NOW_MS)
    build.append(log, 2, epoch=8)
    log.advance_start(Offset(1))
    assert scan.run_next(files, lambda: None)
    with pytest.raises(StorageFailed):
        log.epoch_end(LeaderEpoch(1))
    log.repair.end_epoch_scan(scan)
    assert log.epochs.entries() == [(1, 1), (4, 4), (7, 8), (8, 10)]
    assert log.epoch_end(LeaderEpoch(1)) == (1, 4)


@pytest.mark.parametrize("is_over", [False, True])
def test_epochs_that_were_read_before_the_log_was_cut_are_not_believed(
    files: MemoryFiles, is_over: bool
) -> None:
    log = lied_to(files, b"0\n2\n1 0\n4 4\n")
    scan = log.repair.begin_epoch_scan()
    assert scan.run_next(files, lambda: None)
    cut = log.truncation.begin(Offset(2), build.NOW_MS)
    assert cut is not None
    cut.run()
    if is_over:
        log.truncation.end(cut)
    log.repair.end_epoch_scan(scan)
    if not is_over:
        log.truncation.end(cut)
    assert log.epochs.entries() == [(1, 0)]


def test_a_large_log_is_read_in_steps(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_scan, "_TURNS_PER_STEP", 2)
    log = build.log(files)
    for number in range(1300):
        build.append(log, epoch=number // 100)
    scan, pauses = log.repair.begin_epoch_scan(), list[int]()
    ends = [scan.run_next(files, lambda: pauses.append(1)) for _ in range(3)]
    assert (ends, len(pauses)) == ([False, False, True], 5)
    assert scan.epochs.entries() == [(number, number * 100) for number in range(13)]


def test_damage_of_the_active_segment_is_in_the_next_state_that_a_start_goes_on_from(
    files: MemoryFiles,
) -> None:
    log = build.log(files)
    for _ in range(4):
        build.append(log, 2)
    log.flush()
    log.flushing.save()
    before = log.flushing.state
    assert before
    size_bytes = log.size_bytes // 4
    damage = Damage(Offset(2), Offset(4), Position(size_bytes), Position(2 * size_bytes))
    assert log.repair.note_damages(log.active_segment, [damage])
    log.flushing.save()
    after = LogState.decode(log.flushing.state)
    assert after.indexes.by_offset.at_or_below(3) == (3, 2 * size_bytes)
    assert LogState.decode(before).indexes.by_offset.at_or_below(3) is None
