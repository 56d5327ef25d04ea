"""A partition's log: what is refused, where things go, what is found, what a bad disk does."""

import errno

import pytest

from fakes import build
from fakes.logs import SMALL, append, fill, names_of, offsets_of, segments_of, state_of
from fakes.memory_files import MemoryFiles
from ottla.config import TopicConfig
from ottla.errors import (
    CorruptBatch,
    DiskFull,
    InvalidProducerEpoch,
    StorageFailed,
)
from ottla.model import (
    NO_TIMESTAMP,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)
from ottla.records.batch import Marker, MarkerKind, batches, read_header
from ottla.records.compression import Codec
from ottla.storage.log import Log
from ottla.storage.log_append import Appended
from ottla.storage.recovery_scan import EVERYTHING


def test_batches_follow_each_other(files: MemoryFiles) -> None:
    log = build.log(files)
    assert append(log, build.batch(3)) == (0, 2, NO_TIMESTAMP, False)
    assert append(log, build.batch(2)) == (3, 4, NO_TIMESTAMP, False)
    assert log.end_offset == 5


def test_the_batch_on_disk_is_the_one_that_was_sent_but_for_its_stamp(files: MemoryFiles) -> None:
    log = build.log(files)
    append(log, build.batch())
    sent = build.batch(2, codec=Codec.ZSTD)
    stamped = bytearray(sent)
    append(log, stamped, epoch=8)
    found = log.read(Offset(1), log.end_offset, 1000, at_least_one=True)
    assert found is not None
    stored = log.read_bytes(found)
    assert stored == stamped
    assert stored[16:] == sent[16:]
    assert read_header(stored)[:3] == (1, len(sent) - 12, 8)


def test_a_follower_keeps_the_leaders_offsets_and_may_skip(files: MemoryFiles) -> None:
    log = build.log(files)
    log.append_as_follower(build.batch(2, base_offset=0, leader_epoch=4), build.NOW_MS)
    log.append_as_follower(build.batch(1, base_offset=10, leader_epoch=5), build.NOW_MS)
    assert log.end_offset == 11
    assert log.epochs.entries() == [(4, 0), (5, 10)]
    found = log.read(Offset(5), Offset(11), 1000, at_least_one=True)
    assert found is not None
    assert offsets_of(log, log.read_bytes(found)) == [10]
    with pytest.raises(CorruptBatch):
        log.append_as_follower(build.batch(1, base_offset=10), build.NOW_MS)
    assert log.end_offset == 11


def test_a_follower_learns_about_producers(files: MemoryFiles) -> None:
    log = build.log(files)
    sent = build.batch(2, producer_id=1, producer_epoch=0, base_sequence=0, leader_epoch=1)
    log.append_as_follower(sent, build.NOW_MS)
    assert append(log, sent).is_duplicate


def test_a_full_segment_is_followed_by_the_next(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 3)
    names = [entry.name for entry in files.list(log.directory) if entry.name.endswith(".log")]
    assert names == [f"{segment.base_offset:020d}.log" for segment in segments_of(log)]
    assert all(segment.size_bytes <= 1024 for segment in log.sealed_segments)


def test_an_old_segment_is_followed_by_the_next(files: MemoryFiles) -> None:
    log = build.log(files, TopicConfig(segment_ms=1000))
    build.append(log)
    log.append_as_leader(build.batch(), build.EPOCH, TimestampMs(build.NOW_MS + 999))
    assert not log.sealed_segments
    log.append_as_leader(build.batch(), build.EPOCH, TimestampMs(build.NOW_MS + 1000))
    assert len(log.sealed_segments) == 1


def test_offsets_too_far_apart_for_one_index_get_a_new_segment(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log)
    log.append_as_follower(build.batch(base_offset=2**30), build.NOW_MS)
    log.append_as_follower(build.batch(base_offset=2**31 + 5), build.NOW_MS)
    assert [segment.base_offset for segment in log.sealed_segments] == [0]
    found = log.read(Offset(2**30 + 1), log.end_offset, 1000, at_least_one=True)
    assert found is not None
    assert found.end_offset == 2**31 + 6
    log.close()
    assert build.log(files, recovery_point=EVERYTHING).end_offset == 2**31 + 6


def test_an_empty_segment_is_not_rolled(files: MemoryFiles) -> None:
    log = build.log(files)
    log.roll(build.NOW_MS)
    assert not log.sealed_segments


def test_few_sealed_segments_stay_open(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 20)
    log.flush()
    for segment in list(log.sealed_segments):
        assert log.read(segment.base_offset, log.end_offset, 10, at_least_one=True) is not None
    assert sum(segment.is_warm for segment in log.sealed_segments) <= 8


def test_a_roll_that_finds_no_room_leaves_no_half_index(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    build.append(log, 3)
    files.fail_next("create", errno.ENOSPC, suffix=".log")
    with pytest.raises(DiskFull):
        log.roll(build.NOW_MS)
    assert not names_of(files, log, ".tmp", ".saving")
    log.roll(build.NOW_MS)
    log.flush()
    assert len(log.sealed_segments) == 1


def end(log: Log, kind: MarkerKind, producer: int = 1, epoch: int = 0) -> Appended:
    return log.append_marker(
        Marker(kind, 0), ProducerId(producer), ProducerEpoch(epoch), build.EPOCH, build.NOW_MS
    )


def write(log: Log, sequence: int, producer: int = 1, epoch: int = 0) -> Appended:
    return append(
        log,
        build.batch(
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        ),
    )


def test_readers_of_committed_records_wait_for_the_marker(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log)
    write(log, 0)
    build.append(log)
    assert log.last_stable_offset(Offset(3)) == 1
    assert log.last_stable_offset(Offset(1)) == 1
    assert end(log, MarkerKind.COMMIT).base_offset == 3
    assert log.last_stable_offset(Offset(3)) == 1, "the marker is not visible yet"
    assert log.last_stable_offset(Offset(4)) == 4
    assert log.aborted_transactions(Offset(0), Offset(4)) == []


def test_readers_of_committed_records_are_told_what_to_skip(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    for number in range(12):
        write(log, number * 2)
        write(log, number * 2 + 1)
        end(log, MarkerKind.ABORT if number % 3 == 0 else MarkerKind.COMMIT)
    assert len(log.sealed_segments) > 1
    skipped = log.aborted_transactions(Offset(0), log.end_offset)
    assert [(item.first_offset, item.last_offset) for item in skipped] == [
        (0, 2),
        (9, 11),
        (18, 20),
        (27, 29),
    ]
    assert [item.first_offset for item in log.aborted_transactions(Offset(11), Offset(19))] == [
        9,
        18,
    ]
    assert log.aborted_transactions(Offset(12), Offset(18)) == []


def test_a_fenced_producer_cannot_be_ended(files: MemoryFiles) -> None:
    log = build.log(files)
    write(log, 0, epoch=2)
    before = state_of(log)
    with pytest.raises(InvalidProducerEpoch):
        end(log, MarkerKind.COMMIT, epoch=1)
    assert state_of(log) == before


def test_a_follower_knows_what_was_aborted(files: MemoryFiles) -> None:
    log = build.log(files)
    write(log, 0)
    end(log, MarkerKind.ABORT)
    found = log.read(Offset(0), log.end_offset, 10_000, at_least_one=True)
    assert found is not None
    follower_files = MemoryFiles()
    follower = build.log(follower_files)
    for _, view in batches(log.read_bytes(found)):
        follower.append_as_follower(bytearray(view), build.NOW_MS)
    skipped = follower.aborted_transactions(Offset(0), Offset(2))
    assert skipped == log.aborted_transactions(Offset(0), Offset(2)) != []
    assert follower.last_stable_offset(Offset(2)) == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("after_bytes", [0, 30, 70])
def test_a_full_disk_costs_the_batch_and_nothing_else(
    files: MemoryFiles, number: int, after_bytes: int
) -> None:
    log = build.log(files)
    build.append(log, 2)
    before = state_of(log)
    files.fail_next("append", number, after_bytes=after_bytes)
    with pytest.raises(StorageFailed, match="full"):
        append(log, build.batch(producer_id=1, producer_epoch=0, base_sequence=0))
    assert state_of(log) == before
    assert len(files.read_whole(log.directory / f"{0:020d}.log")) == log.size_bytes
    assert log.read(Offset(0), log.end_offset, 1000, at_least_one=True) is not None
    assert build.append(log) == 2


@pytest.mark.parametrize("suffix", [".index.tmp", ".timeindex.tmp", ".snapshot"])
@pytest.mark.parametrize("operation", ["create", "append"])
def test_a_disk_that_fills_up_while_rolling_loses_nothing(
    files: MemoryFiles, operation: str, suffix: str
) -> None:
    log = build.log(files, SMALL)
    build.append(log, value=bytes(600))
    files.fail_next(operation, errno.ENOSPC, suffix=suffix)
    with pytest.raises(StorageFailed, match="full"):
        build.append(log, value=bytes(600))
    assert log.end_offset == 1
    assert build.append(log, value=bytes(600)) == 1
    assert build.log(files.kill(), SMALL).end_offset == 2


def test_a_failing_disk_takes_the_log_offline(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log)
    files.fail_next("append", errno.EIO, after_bytes=10)
    with pytest.raises(StorageFailed):
        build.append(log)
    assert log.offline_reason is not None
    with pytest.raises(StorageFailed):
        build.append(log)
    with pytest.raises(StorageFailed):
        log.read(Offset(0), Offset(1), 100, at_least_one=True)
    with pytest.raises(StorageFailed):
        log.append_as_follower(build.batch(base_offset=1), build.NOW_MS)
    with pytest.raises(StorageFailed):
        end(log, MarkerKind.COMMIT)
    assert build.log(files.kill()).end_offset == 1, "half a batch is cut at the next start"


def test_a_full_disk_that_cannot_even_be_tidied_is_a_failing_one(files: MemoryFiles) -> None:
    log = build.log(files)
    files.fail_next("append", errno.ENOSPC, after_bytes=10)
    files.fail_next("truncate", errno.EIO)
    with pytest.raises(StorageFailed):
        build.append(log)
    assert log.offline_reason is not None
