"""A partition's log: what is refused, where things go, what is found, what a bad disk does."""

import errno
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from fakes import build
from fakes.listeners import FakeLogListener
from fakes.memory_files import MemoryFiles
from ottla.config import TimestampType, TopicConfig
from ottla.errors import (
    ApiError,
    CorruptBatch,
    DiskFull,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    OffsetOutOfRange,
    OutOfOrderSequence,
    StorageFailed,
)
from ottla.model import (
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)
from ottla.records.batch import Marker, MarkerKind, batches, build_marker, read_header, records
from ottla.records.compression import Codec
from ottla.storage.log import Log
from ottla.storage.log_append import Appended
from ottla.storage.recovery_scan import EVERYTHING

SMALL = TopicConfig(segment_bytes=1024, index_interval_bytes=100)


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def state_of(log: Log) -> tuple[object, ...]:
    """Everything that a refused batch must not change."""
    return (
        log.end_offset,
        log.size_bytes,
        log.epochs.entries(),
        log.producers.encode(),
        log.durable_offset,
    )


def append(log: Log, batch: bytearray, epoch: int = build.EPOCH) -> Appended:
    return log.append_as_leader(batch, LeaderEpoch(epoch), build.NOW_MS)


def fill(log: Log, segments: int) -> None:
    """Append one batch after the other until there are so many sealed segments."""
    while len(log.sealed_segments) < segments:
        build.append(log, 2, value=bytes(100))


def offsets_of(log: Log, data: bytes) -> list[int]:
    return [record.offset for _, view in batches(data) for record in records(view)]


# Appending


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


def refused_batches() -> list[tuple[bytearray, type[ApiError]]]:
    damaged = build.batch()
    damaged[-1] ^= 1
    marker = build_marker(
        Marker(MarkerKind.COMMIT, 0),
        producer_id=ProducerId(1),
        producer_epoch=ProducerEpoch(0),
        timestamp_ms=build.NOW_MS,
    )
    return [
        (damaged, CorruptBatch),
        (marker, InvalidRecord),
        (build.batch(value=bytes(2000)), MessageTooLarge),
        (build.batch(timestamp_ms=build.NOW_MS + 3_600_001), InvalidTimestamp),
        (build.batch(timestamp_ms=build.NOW_MS - 10_001), InvalidTimestamp),
        (build.batch(producer_id=1, producer_epoch=0, base_sequence=9), OutOfOrderSequence),
        (build.batch(producer_id=2, producer_epoch=0, base_sequence=0), InvalidProducerEpoch),
    ]


@pytest.mark.parametrize(("batch", "refusal"), refused_batches())
def test_a_refused_batch_leaves_no_trace(
    files: MemoryFiles, batch: bytearray, refusal: type[ApiError]
) -> None:
    config = TopicConfig(max_message_bytes=1000, timestamp_before_max_ms=10_000)
    log = build.log(files, config)
    append(log, build.batch(producer_id=1, producer_epoch=0, base_sequence=0))
    append(log, build.batch(producer_id=2, producer_epoch=1, base_sequence=0))
    before, bytes_before = state_of(log), files.read_whole(log.directory / f"{0:020d}.log")
    with pytest.raises(refusal):
        append(log, batch)
    assert state_of(log) == before
    assert files.read_whole(log.directory / f"{0:020d}.log") == bytes_before


def test_batches_without_a_timestamp_are_not_too_old(files: MemoryFiles) -> None:
    log = build.log(files, TopicConfig(timestamp_before_max_ms=10))
    append(log, build.batch(timestamp_ms=-1))


def test_records_without_a_timestamp_age_by_when_they_were_written(files: MemoryFiles) -> None:
    hour_ms = 3_600_000
    log = build.log(files, TopicConfig(segment_bytes=500, retention_ms=hour_ms))
    for _ in range(3):
        append(log, build.batch(value=bytes(300), timestamp_ms=-1))
    files.now_ms += hour_ms
    append(log, build.batch(value=bytes(300), timestamp_ms=-1))
    assert log.delete_old_segments(TimestampMs(build.NOW_MS + hour_ms)) == 0
    assert log.delete_old_segments(TimestampMs(build.NOW_MS + hour_ms + 1)) == 3
    assert log.delete_old_segments(TimestampMs(build.NOW_MS + 2 * hour_ms + 1)) == 1


def test_a_repeated_batch_keeps_its_first_place(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log, 5)
    first = append(log, build.batch(2, producer_id=1, producer_epoch=0, base_sequence=0))
    size_bytes = log.size_bytes
    again = append(log, build.batch(2, producer_id=1, producer_epoch=0, base_sequence=0))
    assert again == first._replace(is_duplicate=True)
    assert (log.end_offset, log.size_bytes) == (7, size_bytes)


def test_the_broker_can_give_records_their_time(files: MemoryFiles) -> None:
    log = build.log(files, TopicConfig(timestamp_type=TimestampType.LOG_APPEND_TIME))
    batch = build.batch(2, timestamp_ms=5)
    assert append(log, batch).append_time_ms == build.NOW_MS
    assert [record.timestamp_ms for record in records(batch)] == [build.NOW_MS] * 2
    assert log.offset_for_time(build.NOW_MS) == (0, build.NOW_MS, build.EPOCH)


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_can_have_one_codec_for_everybody(files: MemoryFiles, name: str) -> None:
    log = build.log(files, TopicConfig(compression_type=name))
    append(log, build.batch(3, codec=Codec.GZIP))
    append(log, build.batch(2))
    found = log.read(Offset(0), log.end_offset, 10_000, at_least_one=True)
    assert found is not None
    data = log.read_bytes(found)
    assert [header.codec for header, _ in batches(data)] == [Codec.named(name)] * 2
    assert offsets_of(log, data) == [0, 1, 2, 3, 4]


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


# Segments


def test_a_full_segment_is_followed_by_the_next(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 3)
    names = [entry.name for entry in files.list(log.directory) if entry.name.endswith(".log")]
    assert names == [
        f"{segment.base_offset:020d}.log" for segment in (*log.sealed_segments, log.active_segment)
    ]
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


def test_a_follower_that_is_too_far_behind_has_to_restart(files: MemoryFiles) -> None:
    log = build.log(files)
    with pytest.raises(CorruptBatch, match="restart"):
        log.append_as_follower(build.batch(base_offset=2**31 + 5), build.NOW_MS)
    log.restart_at(Offset(2**31 + 5), build.NOW_MS)
    log.append_as_follower(build.batch(base_offset=2**31 + 5), build.NOW_MS)


def test_an_empty_segment_is_not_rolled(files: MemoryFiles) -> None:
    log = build.log(files)
    log.roll(build.NOW_MS)
    assert not log.sealed_segments


def test_old_segments_go_and_the_log_starts_later(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 3)
    second = log.sealed_segments[1].base_offset
    log.config = replace(SMALL, retention_bytes=log.size_bytes - log.sealed_segments[0].size_bytes)
    assert log.delete_old_segments(build.NOW_MS) == 1
    assert log.start_offset == second
    assert not any(entry.name.startswith(f"{0:020d}") for entry in files.list(log.directory))
    with pytest.raises(OffsetOutOfRange):
        log.read(Offset(0), log.end_offset, 100, at_least_one=True)


def test_somebody_else_removes_the_files_of_old_segments(files: MemoryFiles) -> None:
    listener = FakeLogListener()
    log = build.log(files, SMALL, listener=listener)
    fill(log, 3)
    discarded = listener.discarded
    log.config = replace(SMALL, retention_bytes=log.size_bytes - log.sealed_segments[0].size_bytes)
    assert log.delete_old_segments(build.NOW_MS) == 1
    first = [one.name for one in files.list(log.directory) if one.name.startswith(f"{0:020d}")]
    assert first == [f"{0:020d}.log.deleted"]
    killed = files.kill()
    again = build.log(killed, SMALL, start_offset=log.start_offset)
    assert again.start_offset == log.start_offset
    assert not [e.name for e in killed.list(log.directory) if e.name.endswith(".deleted")]
    discarded[0].remove()
    discarded[0].remove()
    assert not [e.name for e in files.list(log.directory) if e.name.endswith(".deleted")]


def test_even_the_active_segment_goes_when_all_of_it_is_too_old(files: MemoryFiles) -> None:
    log = build.log(files, TopicConfig(retention_ms=1000))
    build.append(log, 3)
    assert log.delete_old_segments(TimestampMs(build.NOW_MS + 500)) == 0
    assert log.delete_old_segments(TimestampMs(build.NOW_MS + 2000)) == 1
    assert (log.start_offset, log.end_offset, log.size_bytes) == (3, 3, 0)
    assert build.append(log) == 3


def test_a_range_outlives_the_segment_it_points_to(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 2)
    found = log.read(Offset(0), log.end_offset, 10_000, at_least_one=True)
    assert found is not None
    log.advance_start(log.sealed_segments[1].base_offset)
    assert offsets_of(log, log.read_bytes(found))[0] == 0


def test_few_sealed_segments_stay_open(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 20)
    log.flush()
    for segment in list(log.sealed_segments):
        assert log.read(segment.base_offset, log.end_offset, 10, at_least_one=True) is not None
    assert sum(segment.is_warm for segment in log.sealed_segments) <= 8


def names_of(files: MemoryFiles, log: Log, *suffixes: str) -> list[str]:
    return [one.name for one in files.list(log.directory) if one.name.endswith(suffixes)]


def test_a_roll_waits_for_no_disk_and_a_flush_stores_what_it_left(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 2)
    assert not names_of(files, log, ".index", ".timeindex")
    assert all(segment.is_warm for segment in log.sealed_segments)
    log.flush()
    assert len(names_of(files, log, ".index")) == len(log.sealed_segments) == 2
    assert not names_of(files, log, ".tmp", ".saving")
    after = files.cut_power(Random(1))
    again = build.log(after, SMALL, recovery_point=log.end_offset)
    assert again.end_offset == log.end_offset
    for segment in again.sealed_segments:
        segment.open(after, None)


def test_a_log_that_grows_fast_asks_to_be_flushed(files: MemoryFiles) -> None:
    listener = FakeLogListener()
    log = build.log(files, SMALL, listener=listener)
    asked: list[int] = []
    listener.on_crowded = lambda: asked.append(len(log.sealed_segments))
    fill(log, 5)
    assert asked == [4, 5]
    listener.on_crowded = log.flush
    fill(log, 20)
    assert sum(segment.is_warm for segment in log.sealed_segments) <= 12


def test_a_segment_that_goes_before_its_indexes_are_stored_leaves_nothing(
    files: MemoryFiles,
) -> None:
    log = build.log(files, SMALL)
    fill(log, 3)
    work = log.flushing.begin()
    assert work is not None
    log.config = replace(SMALL, retention_bytes=log.size_bytes - log.sealed_segments[0].size_bytes)
    assert log.delete_old_segments(build.NOW_MS) == 1
    work.run(files)
    log.flushing.end(work)
    assert not [name for name in names_of(files, log, "") if name.startswith(f"{0:020d}")]
    assert not names_of(files, log, ".tmp", ".saving")
    assert len(names_of(files, log, ".index")) == len(log.sealed_segments)


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


# Reading


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
    bases = {segment.base_offset for segment in (*log.sealed_segments, log.active_segment)}
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


# Finding by time


def test_a_record_is_found_by_its_time(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    for number in range(60):
        log.append_as_leader(
            build.batch(3, timestamp_ms=1_000_000 + number * 10, codec=Codec.LZ4),
            LeaderEpoch(number // 30),
            build.NOW_MS,
        )
    assert len(log.sealed_segments) > 2
    for number in (0, 1, 29, 30, 59):
        base_ms = 1_000_000 + number * 10
        expected = (number * 3 + 1, base_ms + 1, number // 30)
        assert log.offset_for_time(TimestampMs(base_ms + 1)) == expected
        assert log.offset_for_time(TimestampMs(base_ms - 7)) == (
            number * 3,
            base_ms,
            number // 30,
        )
    assert log.offset_for_time(TimestampMs(1_000_000 + 593)) is None
    assert log.max_timestamp() == (179, 1_000_592, 1)
    log.advance_start(Offset(100))
    assert log.offset_for_time(TimestampMs(0)) == (100, 1_000_331, 1)


def test_time_may_run_backwards(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    for timestamp_ms in [500, 900, 100, 700, 900]:
        append(log, build.batch(timestamp_ms=timestamp_ms, value=bytes(400)))
    assert log.max_timestamp() == (1, 900, build.EPOCH)
    assert log.offset_for_time(TimestampMs(600)) == (1, 900, build.EPOCH)
    assert log.offset_for_time(TimestampMs(100)) == (0, 500, build.EPOCH)


def test_an_empty_log_has_no_times(files: MemoryFiles) -> None:
    log = build.log(files)
    assert log.max_timestamp() is None
    assert log.offset_for_time(TimestampMs(0)) is None
    append(log, build.batch(timestamp_ms=-1))
    assert log.offset_for_time(TimestampMs(5)) is None


# Epochs


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


@pytest.mark.parametrize("lie", [b"0\n2\n1 0\n4 2\n", b"0\n2\n1 0\n5 4\n", b"0\n2\n1 0\n4 5\n"])
def test_an_epoch_file_that_contradicts_the_log_is_not_believed(
    files: MemoryFiles, lie: bytes
) -> None:
    log = build.log(files, SMALL)
    for epoch in (1, 1, 4, 4):
        build.append(log, 2, epoch=epoch, value=bytes(300))
    log.close()
    files.create(log.directory / "leader-epoch-checkpoint").append(lie)
    log = build.log(files, SMALL, recovery_point=EVERYTHING)
    assert log.epoch_end(LeaderEpoch(1)) == (1, 4)
    assert log.epochs.entries() == [(1, 0), (4, 4)]


# Transactions


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


# Durability


def test_nothing_is_durable_before_it_is_synced(files: MemoryFiles) -> None:
    listener = FakeLogListener()
    log = build.log(files, listener=listener)
    told: list[int] = []
    listener.on_durable = lambda: told.append(log.durable_offset)
    build.append(log, 3)
    assert log.durable_offset == 0
    log.flush()
    assert log.durable_offset == 3
    log.flush()
    assert told == [3]


def test_what_arrives_while_the_disk_works_is_not_yet_durable(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    build.append(log, 3)
    work = log.flushing.begin()
    assert work is not None
    fill(log, 2)
    work.run(files)
    log.flushing.end(work)
    assert log.durable_offset == 3
    rest = log.flushing.begin()
    assert rest is not None
    assert len(rest.sealed_files) == 2, "segments sealed meanwhile are synced before the active"
    assert rest.directory == log.directory


def test_a_flush_that_was_overtaken_by_a_truncation_proves_nothing(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log)
    log.flush()
    build.append(log, 4)
    work = log.flushing.begin()
    assert work is not None
    work.run(files)
    log.truncate(Offset(1), build.NOW_MS)
    build.append(log, 2)
    log.flushing.end(work)
    assert log.durable_offset == 1


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


# A bad disk


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


def test_a_failed_sync_is_never_retried_and_nothing_is_durable(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log)
    files.fail_next("sync", errno.EIO)
    with pytest.raises(StorageFailed):
        log.flush()
    assert log.durable_offset == 0
    assert log.flushing.begin() is None
    log.flush()
    assert log.durable_offset == 0


def test_a_failed_read_takes_the_log_offline(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log)
    found = log.read(Offset(0), Offset(1), 100, at_least_one=True)
    assert found is not None
    files.fail_next("read", errno.EIO)
    with pytest.raises(StorageFailed):
        log.read_bytes(found)
    assert log.offline_reason is not None


@pytest.mark.parametrize("suffix", [".index.saving", ".snapshot"])
def test_what_only_shortens_the_next_start_may_fail_on_a_full_disk(
    files: MemoryFiles, suffix: str
) -> None:
    log = build.log(files)
    build.enlarge(log)
    log.flushing.save()
    files.fail_next("create", errno.ENOSPC, suffix=suffix)
    log.flush()
    assert not files.has_faults
    assert log.durable_offset == log.end_offset
    assert log.offline_reason is None
    assert not names_of(files, log, ".saving")


@pytest.mark.parametrize("operation", ["create", "append", "sync", "rename"])
def test_a_disk_that_fails_while_saving_is_a_failing_disk(
    files: MemoryFiles, operation: str
) -> None:
    log = build.log(files)
    build.enlarge(log)
    log.flushing.save()
    files.fail_next(operation, errno.EIO, suffix=".saving")
    with suppress(StorageFailed):  # what was appended is on disk when names are given
        log.flush()
    assert log.offline_reason is not None


def test_what_is_saved_while_its_segment_is_sealed_does_not_replace_what_sealing_stored(
    files: MemoryFiles,
) -> None:
    log = build.log(files)
    build.enlarge(log)
    log.flushing.save()
    work = log.flushing.begin()
    assert work is not None
    log.roll(build.NOW_MS)
    work.run(files)
    log.flushing.end(work)
    log.flush()
    assert not names_of(files, log, ".tmp", ".saving")
    for segment in log.sealed_segments:
        newest_ms = segment.indexes.max_timestamp_ms
        assert newest_ms >= build.NOW_MS
        segment.cool_down()
        segment.open(files, None)
        assert segment.indexes.max_timestamp_ms == newest_ms


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


# Plain batches: `tests/property/test_plain_batches.py` holds them to the general steps


def test_a_topic_that_asks_for_something_leaves_the_short_way(files: MemoryFiles) -> None:
    log = build.log(files)
    assert build.append(log) == 0
    assert log.is_plain
    assert build.append(log) == 1
    log.config = replace(log.config, cleanup_policy=("compact",))
    with pytest.raises(InvalidRecord):  # it has no key
        build.append(log)
    assert not log.is_plain


@pytest.mark.parametrize(("number", "offline"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_a_plain_batch_that_cannot_be_written_leaves_no_trace(
    files: MemoryFiles, number: int, offline: bool
) -> None:
    log = build.log(files)
    build.append(log)
    before = state_of(log)
    files.fail_next("append", number, after_bytes=10)
    with pytest.raises(StorageFailed):
        build.append(log)
    assert state_of(log) == before
    assert (log.offline_reason is not None) == offline
    file = files.read_whole(build.DIRECTORY / "00000000000000000000.log")
    assert len(file) == log.size_bytes
