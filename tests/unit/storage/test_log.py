"""A partition's log: what is refused, where things go, what is found, what a bad disk does."""

import errno

import pytest

from fakes import build
from fakes.logs import SMALL, append, fill, offsets_of, state_of
from fakes.memory_files import MemoryFiles
from ottla.errors import (
    CorruptBatch,
    InvalidProducerEpoch,
    StorageFailed,
)
from ottla.model import (
    NO_TIMESTAMP,
    Offset,
    ProducerEpoch,
    ProducerId,
)
from ottla.records.batch import Marker, MarkerKind, batches, read_header
from ottla.records.compression import Codec
from ottla.storage.log import Log
from ottla.storage.log_append import Appended


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


def test_few_sealed_segments_stay_open(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 20)
    log.flush()
    for segment in list(log.sealed_segments):
        assert log.read(segment.base_offset, log.end_offset, 10, at_least_one=True) is not None
    assert sum(segment.is_warm for segment in log.sealed_segments) <= 8


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


def test_a_reader_of_committed_records_does_not_open_what_it_does_not_read(
    files: MemoryFiles,
) -> None:
    log = build.log(files, SMALL)
    for number in range(60):
        write(log, number)
        end(log, MarkerKind.COMMIT)
    log.close()
    reopened = build.log(files, SMALL, recovery_point=log.end_offset)
    assert len(reopened.sealed_segments) > 5
    for _ in range(2):
        assert reopened.aborted_transactions(Offset(0), Offset(1)) == []
    assert not any(segment.is_warm for segment in reopened.sealed_segments)
    assert all(segment.has_no_aborted for segment in reopened.sealed_segments)
