"""The end of a log, cut off: begun and ended by its owner, who does not wait for the disk."""

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import pytest

from fakes import build
from fakes.compacted_logs import CONFIG as COMPACTED
from fakes.compacted_logs import compact, contents, put
from fakes.listeners import FakeLogListener
from fakes.log_dirs import CLICKS, ORDERS, ROOT, TOPIC_ID, create, open_dir
from fakes.logs import SMALL, append, base_offsets, fill, names_of
from fakes.memory_files import MachineStopped, MemoryFiles
from fakes.opened import open_below
from ottla.config import TopicConfig
from ottla.errors import CorruptBatch, StorageFailed
from ottla.model import LeaderEpoch, Offset, Position, ProducerEpoch, ProducerId
from ottla.records.batch import Marker, MarkerKind
from ottla.storage.damages import Damage
from ottla.storage.files import OsFiles
from ottla.storage.log import Log
from ottla.storage.log_cut import Cut
from ottla.storage.log_dir import LogDir

Begin = Callable[[Log], Cut | None]


def in_the_active_segment(log: Log) -> Cut | None:
    return log.truncation.begin(Offset(log.end_offset - 1), build.NOW_MS)


def between_segments(log: Log) -> Cut | None:
    return log.truncation.begin(log.sealed_segments[1].base_offset, build.NOW_MS)


def inside_a_sealed_segment(log: Log) -> Cut | None:
    return log.truncation.begin(Offset(log.sealed_segments[1].base_offset + 2), build.NOW_MS)


def everything(log: Log) -> Cut | None:
    return log.truncation.begin(log.start_offset, build.NOW_MS)


def far_ahead(log: Log) -> Cut | None:
    return log.truncation.begin_restart(Offset(1000), build.NOW_MS)


BEGINS = [
    in_the_active_segment,
    between_segments,
    inside_a_sealed_segment,
    everything,
    far_ahead,
]


def begun(begin: Begin, log: Log) -> Cut:
    cut = begin(log)
    assert cut is not None
    return cut


def rolled(files: MemoryFiles, listener: FakeLogListener | None = None) -> Log:
    """A log of three sealed segments and some batches behind them, of several epochs."""
    log = build.log(files, SMALL, listener=listener)
    fill(log, 2)
    while len(log.sealed_segments) < 3:
        build.append(log, 2, value=bytes(100), epoch=build.EPOCH + 1)
    build.append(log, 2, value=bytes(100), epoch=build.EPOCH + 2)
    build.append(log, 2, value=bytes(100), epoch=build.EPOCH + 2)
    return log


def content(files: MemoryFiles) -> dict[Path, bytes]:
    return {path: bytes(files.content(path)) for path in files.paths()}


def waits(files: MemoryFiles) -> int:
    """How often a caller has waited for the disk."""
    return files.counts["sync"] + files.counts["sync_dir"] + files.counts["sync_all"]


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


@pytest.mark.parametrize("is_rolled", [False, True])
def test_producers_are_those_of_the_records_that_are_left(
    files: MemoryFiles, is_rolled: bool
) -> None:
    """Also if a snapshot of them was taken behind the cut."""
    log = build.log(files)
    for producer_id, sequence in ((1, 0), (1, 1), (1, 2), (2, 0)):
        batch = build.batch(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        log.append_as_leader(batch, LeaderEpoch(2 + producer_id), build.NOW_MS)
    if is_rolled:
        log.roll(build.NOW_MS)
    else:
        build.enlarge(log)
        log.flushing.save()
    log.flush()
    assert names_of(files, log, ".snapshot")
    log.truncate(Offset(2), build.NOW_MS)
    for found in (log, build.log(files.cut_power(Random(1)), recovery_point=2)):
        assert found.producers.get(ProducerId(2)) is None
        known = found.producers.get(ProducerId(1))
        assert known is not None
        assert [batch.base_offset for batch in known.batches] == [0, 1]


# While it is cut


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_log_that_is_being_cut_refuses_everything_and_changes_no_file(
    files: MemoryFiles, begin: Begin, is_flushed: bool
) -> None:
    log = rolled(files)
    if is_flushed:
        log.flush()
    log.flushing.save()
    end, before, waited = log.end_offset, content(files), waits(files)
    damage = Damage(Offset(0), Offset(2), Position(0), None)
    cut = begun(begin, log)
    marker = Marker(MarkerKind.ABORT, 0)
    for refused in (
        lambda: log.read(log.start_offset, end, 1000, at_least_one=True),
        lambda: build.append(log),
        lambda: log.append_built(build.batch(), LeaderEpoch(9), build.NOW_MS),
        lambda: log.append_as_follower(build.batch(base_offset=end), build.NOW_MS),
        lambda: log.append_marker(
            marker, ProducerId(1), ProducerEpoch(0), LeaderEpoch(9), build.NOW_MS
        ),
        lambda: log.advance_start(Offset(1)),
    ):
        with pytest.raises(StorageFailed, match="being cut"):
            refused()
    log.flushing.save()
    assert not log.flushing.wants_flush
    assert log.flushing.begin() is None
    assert not log.release_files()
    log.config = replace(SMALL, retention_bytes=0, cleanup_policy=("compact", "delete"))
    assert log.retention.delete_old_segments(build.NOW_MS, end) == 0
    assert log.retention.expired_end(build.NOW_MS, end, 0) == log.start_offset
    part = log.cleaning.cleanable(end, build.NOW_MS)
    assert (part.dirty_start, part.end) == (0, 0)
    assert log.repair.note_damages(log.sealed_segments[0], [damage]) == []
    with pytest.raises(StorageFailed, match="being cut"):
        begin(log)
    log.config = SMALL
    assert (content(files), waits(files)) == (before, waited)
    cut.run()
    waited = waits(files)
    log.truncation.end(cut)
    assert waits(files) == waited
    assert log.end_offset == log.durable_offset == cut.end_offset
    assert log.offline_reason is None
    assert base_offsets(log) == list(range(0, cut.end_offset if log.start_offset == 0 else 0, 2))
    assert build.append(log, epoch=9) == cut.end_offset
    log.flush()
    assert (
        build.log(files.kill(), SMALL, start_offset=log.start_offset).end_offset == log.end_offset
    )


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize(
    "order",
    [
        ("flush", "note flush", "cut", "note cut"),
        ("flush", "cut", "note flush", "note cut"),
        ("flush", "cut", "note cut", "note flush"),
        ("cut", "flush", "note flush", "note cut"),
        ("cut", "flush", "note cut", "note flush"),
        ("cut", "note cut", "flush", "note flush"),
    ],
    ids=", ".join,
)
def test_a_flush_that_was_under_way_proves_nothing_and_leaves_nothing(
    files: MemoryFiles, begin: Begin, order: tuple[str, ...]
) -> None:
    log = rolled(files)
    log.config = TopicConfig()
    build.enlarge(log)
    log.flushing.save()
    work = log.flushing.begin()
    assert work is not None
    assert work.saved is not None
    assert work.saved.contents
    build.append(log, epoch=log.epochs.latest)
    cut = begun(begin, log)
    doing: dict[str, Callable[[], None]] = {
        "flush": lambda: work.run(files),
        "note flush": lambda: log.flushing.end(work),
        "cut": cut.run,
        "note cut": lambda: log.truncation.end(cut),
    }
    for name in order:
        doing[name]()
    assert log.end_offset == log.durable_offset == cut.end_offset
    assert not names_of(files, log, ".tmp", ".saving")
    for segment in log.sealed_segments:
        segment.cool_down()
        segment.open(files, None)
    build.append(log, epoch=99)
    log.flush()
    assert log.durable_offset == log.end_offset
    again = build.log(files.cut_power(Random(1)), SMALL, start_offset=log.start_offset)
    assert (again.end_offset, again.corrupt) == (log.end_offset, [])


def test_a_cut_waits_until_a_compacted_segment_has_taken_its_place(files: MemoryFiles) -> None:
    log = build.log(files, COMPACTED)
    for number in range(6):
        put(log, (b"a", b"%d" % number))
        log.roll(build.NOW_MS)
    put(log, (b"b", b"6"))
    log.flush()
    work = log.cleaning.begin(
        log.cleaning.cleanable(log.end_offset, build.NOW_MS), build.NOW_MS, 1 << 20
    )
    cleaned = work.run_next(files, lambda: None)
    assert cleaned is not None
    swap = log.cleaning.begin_swap(work, cleaned)
    assert swap is not None
    for begin in (in_the_active_segment, far_ahead):
        with pytest.raises(StorageFailed, match="takes its place"):
            begin(log)
    assert log.durable_offset == 7
    swap.errand.run()
    log.cleaning.end_swap(swap)
    cut = begun(in_the_active_segment, log)
    cut.run()
    log.truncation.end(cut)
    assert contents(log) == [(5, b"a", b"5")]


def test_a_pass_that_was_under_way_is_not_taken_for_one_of_the_log_that_is_left(
    files: MemoryFiles,
) -> None:
    log = build.log(files, COMPACTED)
    for number in range(6):
        put(log, (b"%d" % number, b"1"))
    compact(log)
    put(log, (b"a", b"1"))
    log.roll(build.NOW_MS)
    log.flush()
    assert log.cleaning.clean_offset == 6
    work = log.cleaning.begin(
        log.cleaning.cleanable(log.end_offset, build.NOW_MS), build.NOW_MS, 1 << 20
    )
    cleaned = work.run_next(files, lambda: None)
    assert cleaned is not None
    waited = waits(files)
    cut = log.truncation.begin(Offset(3), build.NOW_MS)
    assert cut is not None
    assert log.cleaning.begin_swap(work, cleaned) is None
    assert waits(files) == waited
    assert not names_of(files, log, ".cleaned")
    assert log.cleaning.end(work) is None
    cut.run()
    log.truncation.end(cut)
    assert log.cleaning.clean_offset == 3
    assert build.log(files.kill(), COMPACTED).cleaning.clean_offset == 3


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("begin", BEGINS)
def test_a_log_that_goes_offline_while_it_is_cut_stays_so(
    files: MemoryFiles, begin: Begin, has_run: bool
) -> None:
    log = rolled(files)
    cut = begun(begin, log)
    if has_run:
        cut.run()
    assert log.truncation.is_wanted
    log.take_offline("the disk is broken")
    assert not log.truncation.is_wanted
    log.truncation.end(cut)
    assert not log.truncation.is_under_way
    with pytest.raises(StorageFailed, match="broken"):
        log.read(Offset(0), Offset(1), 100, at_least_one=True)
    with pytest.raises(StorageFailed, match="broken"):
        build.append(log)


def test_a_disk_that_fails_at_a_flush_while_the_log_is_cut_is_offline(files: MemoryFiles) -> None:
    log = rolled(files)
    cut = begun(in_the_active_segment, log)
    log.fail(OSError(errno.EIO, "bad sector"))
    cut.run()
    log.truncation.end(cut)
    assert log.offline_reason is not None
    assert "bad sector" in log.offline_reason


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_cut_that_is_given_up_leaves_the_log_as_it_was(
    files: MemoryFiles, begin: Begin, is_flushed: bool
) -> None:
    log = rolled(files)
    if is_flushed:
        log.flush()
    durable, before, read = log.durable_offset, content(files), base_offsets(log)
    cut = begun(begin, log)
    log.truncation.give_up(cut)
    cut.run()
    assert content(files) == before
    assert (log.durable_offset, base_offsets(log)) == (durable, read)
    end = log.end_offset
    assert build.append(log, epoch=9) == end
    log.flush()
    again = build.log(files.cut_power(Random(2)), SMALL)
    assert (again.end_offset, again.corrupt) == (end + 1, [])


def test_nothing_of_a_log_stays_open_when_it_is_deleted_while_it_is_cut(tmp_path: Path) -> None:
    log_dir = LogDir(OsFiles(), tmp_path)
    log_dir.open_logs(lambda tp: SMALL, build.NOW_MS)
    log = log_dir.create_log(ORDERS, TOPIC_ID, SMALL, build.NOW_MS)
    fill(log, 3)
    cut = begun(inside_a_sealed_segment, log)
    forgotten = log_dir.forget_log(ORDERS, Random(1))
    cut.run()
    log_dir.directories.remove(forgotten)
    log.truncation.end(cut)
    cut.leftover.clear()
    assert log.offline_reason == "orders-0 has been deleted"
    del log, cut
    assert open_below(tmp_path) == [f"{tmp_path}/.lock"]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    log_dir.close()


def test_files_that_may_be_large_are_closed_by_the_caller_who_may_wait(tmp_path: Path) -> None:
    files = OsFiles()
    log = build.log(files, SMALL, directory=tmp_path / "orders-0")
    fill(log, 2)
    cut = begun(everything, log)
    cut.run()
    log.truncation.end(cut)
    assert len(open_below(tmp_path)) == len(cut.leftover) == 3, "removed, and still open"
    cut.leftover.clear()
    assert open_below(tmp_path) == []


@pytest.mark.parametrize("seed", range(10))
def test_the_seal_of_a_segment_that_was_cut_says_nothing_of_what_it_gets_then(
    files: MemoryFiles, seed: int
) -> None:
    log = rolled(files)
    log.flush()
    log.truncate(Offset(log.sealed_segments[1].base_offset + 2), build.NOW_MS)
    end = log.end_offset
    build.append(log, 1, epoch=9)
    log.roll(build.NOW_MS)
    after = files.cut_power(Random(seed))
    again = build.log(after, SMALL, recovery_point=end)
    assert again.corrupt == []
    assert again.end_offset in {end, end + 1}


# In a data directory


def cut_in(log_dir: LogDir, at: int = 2) -> Cut:
    cut = log_dir.logs[ORDERS].truncation.begin(Offset(at), build.NOW_MS)
    assert cut is not None
    return cut


@pytest.fixture
def log_dir(files: MemoryFiles) -> LogDir:
    """Two logs of five records, in a checkpoint."""
    log_dir = open_dir(files)
    for tp in (ORDERS, CLICKS):
        create(log_dir, tp)
        for _ in range(5):
            build.append(log_dir.logs[tp])
        log_dir.logs[tp].flush()
    log_dir.checkpoint()
    return log_dir


@pytest.mark.parametrize("has_run", [False, True])
def test_a_stop_in_the_middle_of_a_cut_is_clean(
    files: MemoryFiles, log_dir: LogDir, has_run: bool
) -> None:
    """The worker has stopped, and its report may not have come."""
    cut = cut_in(log_dir)
    log_dir.checkpoint()
    if has_run:
        cut.run()
    log_dir.close()
    cut.run() if not has_run else None
    again = open_dir(files.cut_power(Random(1)))
    assert again.was_clean
    found = {tp: (log.end_offset, log.corrupt) for tp, log in again.logs.items()}
    assert found == {ORDERS: (2 if has_run else 5, []), CLICKS: (5, [])}
    for log in again.logs.values():
        assert build.append(log) == log.end_offset - 1


@pytest.mark.parametrize("operation", ["truncate", "sync_dir", "sync", "unlink", "rename"])
def test_a_stop_after_a_cut_that_failed_is_not_clean(
    files: MemoryFiles, log_dir: LogDir, operation: str
) -> None:
    cut = cut_in(log_dir)
    log_dir.checkpoint()
    files.fail_next(operation)
    with pytest.raises(OSError, match="error"):
        cut.run()
    assert not files.has_faults
    log_dir.close()
    assert log_dir.offline_reason is not None
    again = open_dir(files.kill())
    assert not again.was_clean
    assert again.logs[ORDERS].end_offset in {2, 5}
    assert again.logs[ORDERS].corrupt == []


def test_a_checkpoint_of_a_log_that_is_being_cut_is_true_before_and_behind_the_cut(
    files: MemoryFiles, log_dir: LogDir
) -> None:
    cut = cut_in(log_dir)
    log_dir.save_logs(log_dir.logs.values(), lambda log: pytest.fail(f"{log.tp} is flushed"))
    log_dir.checkpoint()
    log_dir.flush_all()
    points = files.read_whole(ROOT / "recovery-point-offset-checkpoint").decode().splitlines()
    assert [line.split()[-1] for line in points[2:4]] == ["2", "5"]
    assert (again := open_dir(files.kill()).logs[ORDERS]).end_offset == 5
    assert again.corrupt == []
    cut.run()
    assert (again := open_dir(files.kill()).logs[ORDERS]).end_offset == 2
    assert again.corrupt == []


def test_a_directory_that_goes_offline_while_a_log_is_cut_has_it_offline(
    files: MemoryFiles, log_dir: LogDir
) -> None:
    cut = cut_in(log_dir)
    log_dir.take_offline(OSError(errno.EIO, "broken"))
    cut.run()
    log = log_dir.logs[ORDERS]
    log.truncation.end(cut)
    assert log.offline_reason == log_dir.offline_reason
    log_dir.close()
    assert not open_dir(files.kill()).was_clean


def cut_until(files: MemoryFiles, log_dir: LogDir, cut: Cut, stop_after: int) -> bool:
    """Cut as it is done in a broker; True if the machine stopped on the way."""
    files.stop_after = stop_after
    with suppress(MachineStopped):
        for one in log_dir.begin_checkpoint():
            one.run()
        cut.run()
        return False
    return True


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("is_flushed", [False, True])
def test_whenever_the_power_is_cut_the_log_is_the_one_before_or_the_one_behind_the_cut(
    begin: Begin, is_flushed: bool
) -> None:
    for stop_after in count():
        files = MemoryFiles()
        log_dir = open_dir(files)
        log = log_dir.create_log(ORDERS, TOPIC_ID, SMALL, build.NOW_MS)
        fill(log, 2)
        log_dir.checkpoint(lambda log: log.flush())
        while len(log.sealed_segments) < 4:
            build.append(log, 2, value=bytes(100), epoch=build.EPOCH + 1)
        if is_flushed:
            log_dir.checkpoint(lambda log: log.flush())
        written, durable = base_offsets(log), log.durable_offset
        cut = begun(begin, log)
        kept_to = 0 if cut.start_offset is not None else min(cut.end_offset, durable)
        has_stopped = cut_until(files, log_dir, cut, stop_after)
        for after in (files.kill(), *(files.cut_power(Random(seed)) for seed in range(3))):
            again = LogDir(after, ROOT)
            again.open_logs(lambda tp: SMALL, build.NOW_MS)
            found = again.logs[ORDERS]
            assert found.corrupt == [], stop_after
            read = base_offsets(found)
            assert read == written[: len(read)], stop_after
            assert found.start_offset in {0, cut.start_offset or 0}
            if not read:
                assert kept_to == 0
            else:
                assert kept_to <= found.end_offset <= cut.end_before
            if not has_stopped and cut.start_offset is None:
                assert found.end_offset == cut.end_offset
            snapshots = [int(name[:20]) for name in names_of(after, found, ".snapshot")]
            assert max(snapshots, default=0) <= found.end_offset, "of records that are gone"
            assert build.append(found, epoch=99) == found.end_offset - 1
        if not has_stopped:
            break
        assert stop_after < 500, "it comes to an end"
