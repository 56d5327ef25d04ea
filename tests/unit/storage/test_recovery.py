"""Opening a log after any end."""

from pathlib import Path
from random import Random

import pytest

from fakes import build
from fakes.logs import SMALL, base_offsets, log_of, rewrite, segments_of
from fakes.memory_files import MemoryFiles
from ottla.errors import CorruptBatch
from ottla.model import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from ottla.records.batch import Marker, MarkerKind, batches
from ottla.storage.recovery_scan import EVERYTHING

FIRST = build.DIRECTORY / f"{0:020d}.log"


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def damage(files: MemoryFiles, path: Path, position: int) -> None:
    """Flip one bit."""
    files.content(path)[position] ^= 4


def test_a_new_directory_becomes_an_empty_log(files: MemoryFiles) -> None:
    log = build.log(files, start_offset=40)
    assert (log.start_offset, log.end_offset) == (40, 40)
    assert files.list(log.directory)[0].name == f"{40:020d}.log"


def test_a_killed_process_loses_nothing_and_leaves_nothing_undone(files: MemoryFiles) -> None:
    log_of(files, 30, SMALL)
    after = files.kill()
    log = build.log(after, SMALL)
    assert log.end_offset == log.durable_offset == 60
    assert build.log(after.cut_power(Random(1)), SMALL).end_offset == 60


def test_a_torn_tail_is_cut(files: MemoryFiles) -> None:
    log = log_of(files, 3)
    size_bytes = log.size_bytes // 3
    log.active_segment.file.truncate(log.size_bytes - 1)
    log = build.log(files.kill())
    assert log.end_offset == 4
    assert log.cut_bytes == size_bytes - 1
    assert log.corrupt == []
    assert build.append(log) == 4


def test_garbage_behind_the_last_batch_is_cut(files: MemoryFiles) -> None:
    log = log_of(files, 3)
    log.active_segment.file.append(Random(7).randbytes(5000))
    assert build.log(files.kill()).end_offset == 6


def test_zeros_behind_the_last_batch_are_cut(files: MemoryFiles) -> None:
    log = log_of(files, 3)
    log.active_segment.file.append(bytes(100_000))
    assert build.log(files.kill()).end_offset == 6


@pytest.mark.parametrize("in_batch", [10, 30, 100])
@pytest.mark.parametrize("recovery_point", [0, 10, 20])
def test_a_corrupt_middle_is_kept_reported_and_never_served(
    files: MemoryFiles, in_batch: int, recovery_point: int
) -> None:
    log = log_of(files, 10)
    size_bytes = log.size_bytes // 10
    damage(files, FIRST, 4 * size_bytes + in_batch)
    content = files.read_whole(FIRST)
    log = build.log(files.kill(), recovery_point=recovery_point)
    assert log.end_offset == 20
    assert [(one.start_offset, one.end_offset) for one in log.corrupt] == [(8, 10)]
    assert files.read_whole(FIRST) == content, "nothing is deleted"
    before = log.read(Offset(0), log.end_offset, 1 << 20, at_least_one=True)
    assert before is not None
    assert before.end_offset == 8
    for offset in (8, 9):
        with pytest.raises(CorruptBatch):
            log.read(Offset(offset), log.end_offset, 1 << 20, at_least_one=True)
    behind = log.read(Offset(10), log.end_offset, 1 << 20, at_least_one=True)
    assert behind is not None
    assert (behind.position, behind.end_offset) == (5 * size_bytes, 20)
    assert build.append(log) == 20


def test_corruption_is_remembered_until_it_is_gone(files: MemoryFiles) -> None:
    log = log_of(files, 10)
    damage(files, FIRST, 4 * (log.size_bytes // 10) + 100)
    files = files.kill()
    build.log(files).close()
    log = build.log(files, recovery_point=EVERYTHING)
    with pytest.raises(CorruptBatch):
        log.read(Offset(8), log.end_offset, 1000, at_least_one=True)
    log.advance_start(Offset(10))
    assert log.corrupt == []
    log.close()
    assert build.log(files, recovery_point=EVERYTHING, start_offset=10).corrupt == []


def test_corruption_can_be_cut_off_to_fetch_it_again(files: MemoryFiles) -> None:
    log = log_of(files, 10)
    damage(files, FIRST, 4 * (log.size_bytes // 10) + 100)
    log = build.log(files.kill())
    log.truncate(log.corrupt[0].start_offset, build.NOW_MS)
    assert log.end_offset == 8
    assert log.corrupt == []
    assert build.append(log, 2) == 8
    assert base_offsets(log) == [0, 2, 4, 6, 8]


def test_what_was_durable_and_is_gone_is_reported_and_its_offsets_are_not_reused(
    files: MemoryFiles,
) -> None:
    log = log_of(files, 10)
    log.flush()
    log.active_segment.file.truncate(3 * (log.size_bytes // 10) + 20)
    log = build.log(files.kill(), recovery_point=16)
    assert [(one.start_offset, one.end_offset) for one in log.corrupt] == [(6, 16)]
    assert build.append(log) == 16
    assert log.read(Offset(16), log.end_offset, 1000, at_least_one=True) is not None
    with pytest.raises(CorruptBatch):
        log.read(Offset(6), log.end_offset, 1000, at_least_one=True)


def test_segments_behind_a_lost_tail_are_set_aside(files: MemoryFiles) -> None:
    log = log_of(files, 30, SMALL)
    first = log.sealed_segments[0]
    files.content(FIRST)[first.size_bytes - 30 :] = b""
    files = files.kill()
    log = build.log(files, SMALL)
    assert log.end_offset == first.end_offset - 2
    assert log.corrupt == []
    assert any(entry.name.endswith(".stray") for entry in files.list(log.directory))
    assert base_offsets(log) == list(range(0, log.end_offset, 2))


def test_a_flipped_bit_in_the_last_batch_of_a_sealed_segment_costs_that_batch(
    files: MemoryFiles,
) -> None:
    log = log_of(files, 30, SMALL)
    first = log.sealed_segments[0]
    damage(files, FIRST, first.size_bytes - 30)
    log = build.log(files.kill(), SMALL)
    assert log.end_offset == 60
    assert [(one.start_offset, one.end_offset) for one in log.corrupt] == [
        (first.end_offset - 2, first.end_offset)
    ]


def test_below_the_recovery_point_nothing_is_read(files: MemoryFiles) -> None:
    log = log_of(files, 30, SMALL)
    log.close()
    base = log.active_segment.base_offset
    noted = build.noted(log)
    for one in (noted, noted._replace(state=b"")):
        after = files.kill()
        after.fail_next("open", suffix=f"{0:020d}.log")
        assert build.log(after, SMALL, recovery_point=base, noted=one).end_offset == 60


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("content", [None, b"\0" * 7, b"\0" * 48, b"\xff" * 48])
def test_indexes_that_are_missing_short_or_wrong_are_rebuilt(
    files: MemoryFiles, suffix: str, content: bytes | None
) -> None:
    log = log_of(files, 30, SMALL)
    log.close()
    for segment in segments_of(log):
        path = log.directory / f"{segment.base_offset:020d}{suffix}"
        if content is None:
            files.unlink(path)
        else:
            rewrite(files, path, content)
    log = build.log(files.kill(), SMALL, recovery_point=EVERYTHING)
    assert base_offsets(log) == list(range(0, 60, 2))
    assert log.times.first_since(build.NOW_MS) == (0, build.NOW_MS, build.EPOCH)
    assert log.end_offset == 60


def test_an_index_that_points_nowhere_is_rebuilt_when_it_is_used(files: MemoryFiles) -> None:
    log = log_of(files, 30, SMALL)
    log.close()
    path = log.directory / f"{0:020d}.index"
    entries = bytearray(files.read_whole(path))
    entries[7] ^= 8  # the first position
    rewrite(files, path, bytes(entries))
    log = build.log(files.kill(), SMALL, recovery_point=EVERYTHING)
    for offset in range(0, 60, 2):
        found = log.read(Offset(offset), log.end_offset, 1, at_least_one=True)
        assert found is not None
        assert next(batches(log.read_bytes(found)))[0].base_offset == offset


def test_rebuilt_indexes_are_those_that_were_written(files: MemoryFiles) -> None:
    log = log_of(files, 30, SMALL)
    log.close()
    before = {
        entry.name: files.read_whole(log.directory / entry.name)
        for entry in files.list(log.directory)
        if entry.name.endswith("index")
    }
    for name in before:
        files.unlink(log.directory / name)
    log = build.log(files, SMALL)
    log.close()
    assert before == {name: files.read_whole(log.directory / name) for name in before}


@pytest.mark.parametrize("recovery_point", [0, 10, 30, 61, EVERYTHING])
def test_producers_are_known_again(files: MemoryFiles, recovery_point: int) -> None:
    log = build.log(files, SMALL)
    for number in range(31):
        log.append_as_leader(
            build.batch(2, producer_id=5, producer_epoch=1, base_sequence=number * 2),
            LeaderEpoch(1),
            build.NOW_MS,
        )
    log.flushing.save()
    log.flush()
    log = build.log(files.kill(), SMALL, recovery_point=recovery_point)
    for number in range(26, 31):
        repeated = build.batch(2, producer_id=5, producer_epoch=1, base_sequence=number * 2)
        appended = log.append_as_leader(repeated, LeaderEpoch(1), build.NOW_MS)
        assert appended == (number * 2, number * 2 + 1, -1, True)
    fresh = build.batch(producer_id=5, producer_epoch=1, base_sequence=62)
    assert log.append_as_leader(fresh, LeaderEpoch(1), build.NOW_MS).base_offset == 62


def test_a_snapshot_of_records_that_are_gone_is_none_of_those_that_take_their_offsets(
    files: MemoryFiles,
) -> None:
    log = build.log(files)
    build.append(log, 5)
    gone = build.batch(producer_id=5, producer_epoch=0, base_sequence=0)
    log.append_as_leader(gone, LeaderEpoch(3), build.NOW_MS)
    log.roll(build.NOW_MS)
    files.sync_all(files.lock(Path("/data/.lock")))
    files.unlink(log.active_segment.directory / f"{6:020d}.log")  # then the power was cut
    del files.content(FIRST)[-len(gone) :]
    files = files.kill()
    again = build.log(files)
    assert again.end_offset == 5
    for _ in range(5):
        build.append(again)
    again.flush()
    for after in (files.kill(), files.cut_power(Random(1))):
        found = build.log(after, recovery_point=10)
        assert found.producers.get(ProducerId(5)) is None


def test_a_damaged_snapshot_is_replaced_by_an_older_one(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    for number in range(31):
        log.append_as_leader(
            build.batch(2, producer_id=5, producer_epoch=1, base_sequence=number * 2),
            LeaderEpoch(1),
            build.NOW_MS,
        )
    log.close()
    for entry in files.list(log.directory)[::-1]:
        if entry.name.endswith(".snapshot") and not entry.name.startswith(f"{0:019d}"):
            damage(files, log.directory / entry.name, 12)
    log = build.log(files.kill(), SMALL, recovery_point=EVERYTHING)
    repeated = build.batch(2, producer_id=5, producer_epoch=1, base_sequence=54)
    assert log.append_as_leader(repeated, LeaderEpoch(1), build.NOW_MS).is_duplicate


@pytest.mark.parametrize("recovery_point", [0, 12, EVERYTHING])
@pytest.mark.parametrize("lose_index", [False, True])
def test_transactions_are_known_again(
    files: MemoryFiles, recovery_point: int, lose_index: bool
) -> None:
    log = build.log(files, SMALL)
    for number in range(12):
        log.append_as_leader(
            build.batch(
                producer_id=1, producer_epoch=0, base_sequence=number, is_transactional=True
            ),
            build.EPOCH,
            build.NOW_MS,
        )
        kind = MarkerKind.ABORT if number % 2 else MarkerKind.COMMIT
        log.append_marker(
            Marker(kind, 3), ProducerId(1), ProducerEpoch(0), build.EPOCH, build.NOW_MS
        )
    log.append_as_leader(
        build.batch(producer_id=2, producer_epoch=0, base_sequence=0, is_transactional=True),
        build.EPOCH,
        build.NOW_MS,
    )
    expected = log.aborted_transactions(Offset(0), log.end_offset)
    assert len(expected) == 6
    log.close()
    if lose_index:
        for entry in files.list(log.directory):
            if entry.name.endswith(".txnindex"):
                rewrite(files, log.directory / entry.name, b"\0" * 50)
    log = build.log(files.kill(), SMALL, recovery_point=recovery_point)
    assert log.aborted_transactions(Offset(0), log.end_offset) == expected
    assert log.last_stable_offset(log.end_offset) == 24


def test_epochs_are_read_off_the_log_when_their_file_is_damaged(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    for epoch in (1, 1, 2, 5, 5, 5, 9):
        build.append(log, 2, epoch=epoch, value=bytes(200))
    log.close()
    expected = log.epochs.entries()
    rewrite(files, log.directory / "leader-epoch-checkpoint", b"0\n1\n")
    log = build.log(files.kill(), SMALL, recovery_point=EVERYTHING)
    assert log.epochs.entries() == expected == [(1, 0), (2, 4), (5, 6), (9, 12)]


@pytest.mark.parametrize("is_large", [False, True])
def test_a_checkpoint_bounds_what_an_unclean_start_reads(
    files: MemoryFiles, is_large: bool
) -> None:
    log = log_of(files, 2000)
    if is_large:
        build.enlarge(log)
    log.flushing.save()
    log.flush()
    noted = build.noted(log)
    assert bool(noted.state) != is_large
    point = log.end_offset
    for number in range(5):
        build.append(log, value=b"%d" % number)
    after = files.kill()
    log = build.log(after, recovery_point=point, noted=noted)
    assert log.end_offset == point + 5
    assert 0 < after.read_bytes[".log"] < 3 * 5200 + 2000 < log.size_bytes / 10


def test_a_log_whose_deleted_start_did_not_survive_starts_empty_there(
    files: MemoryFiles,
) -> None:
    log = log_of(files, 3)
    files.content(FIRST).clear()
    log = build.log(files.kill(), start_offset=4)
    assert (log.start_offset, log.end_offset) == (4, 4)
    assert build.append(log) == 4
