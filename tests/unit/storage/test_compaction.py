"""What compaction keeps, what it drops, and when."""

import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fakes import build
from fakes.listeners import FakeLogListener
from fakes.memory_files import MachineStopped, MemoryFiles
from ottla.config import TopicConfig
from ottla.errors import InvalidRecord
from ottla.model import (
    LeaderEpoch,
    Offset,
    Position,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TimestampMs,
)
from ottla.records.batch import (
    DELETE_HORIZON,
    HEADER_BYTES,
    NO_PRODUCER_EPOCH,
    BatchHeader,
    Marker,
    MarkerKind,
    Record,
    _stamp_crc,
    batches,
    build_batch,
    records,
)
from ottla.records.compression import Codec
from ottla.storage.cleaner import Cleaner
from ottla.storage.compaction import (
    Cleanable,
    SegmentFacts,
    cleanable,
    dirtiest,
    fits,
    is_worth_it,
)
from ottla.storage.compaction_pass import KEY_COST_BYTES, LastOffsets
from ottla.storage.damages import Damage
from ottla.storage.disk_worker import InlineWorker
from ottla.storage.files import OsFiles, open_file_count
from ottla.storage.log import Log
from ottla.storage.recovery_scan import EVERYTHING
from ottla.storage.segment import TIME_INDEX, file_name
from ottla.storage.swap import Swap

CONFIG = TopicConfig(
    cleanup_policy=("compact",),
    delete_retention_ms=1000,
    min_cleanable_dirty_ratio=0.0,
    index_interval_bytes=100,
)
PLENTY_BYTES = 1 << 20


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def put(
    log: Log,
    *pairs: tuple[bytes | None, bytes | None],
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    sequence: int = -1,
    is_transactional: bool = False,
    now_ms: int = build.NOW_MS,
    epoch: int = 0,
) -> int:
    """Append one batch of these keys and values; its base offset."""
    letters = [Record(timestamp_ms=TimestampMs(now_ms), key=k, value=v) for k, v in pairs]
    batch = build_batch(
        letters,
        codec=codec,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(0) if producer_id >= 0 else NO_PRODUCER_EPOCH,
        base_sequence=Sequence(sequence),
        is_transactional=is_transactional,
    )
    appended = log.append_as_leader(batch, LeaderEpoch(epoch), TimestampMs(now_ms))
    return appended.base_offset


def end(log: Log, kind: MarkerKind, producer_id: int, now_ms: int = build.NOW_MS) -> None:
    log.append_marker(
        Marker(kind, 0),
        ProducerId(producer_id),
        ProducerEpoch(0),
        LeaderEpoch(0),
        TimestampMs(now_ms),
    )


def compact(
    log: Log, *, now_ms: int = build.NOW_MS, memory_bytes: int = PLENTY_BYTES, rolls: bool = True
) -> Cleaner:
    """Compact everything written so far."""
    if rolls:
        log.roll(TimestampMs(now_ms))
    log.flush()
    cleaner = Cleaner(log.files, InlineWorker())
    limit = log.last_stable_offset(log.end_offset)
    cleaner.begin([(log, limit)], TimestampMs(now_ms), memory_bytes)
    return cleaner


def headers(log: Log) -> list[BatchHeader]:
    return [header for header, _ in _read(log)]


def contents(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [
        (record.offset, record.key, record.value)
        for header, view in _read(log)
        if not header.is_control
        for record in records(view)
    ]


def _read(log: Log) -> list[tuple[BatchHeader, memoryview]]:
    found: list[tuple[BatchHeader, memoryview]] = []
    offset = log.start_offset
    while (part := log.read(offset, log.end_offset, 1 << 20, at_least_one=True)) is not None:
        found += batches(log.read_bytes(part))
        offset = part.end_offset
    return found


# Which records stay


@pytest.mark.parametrize("codec", Codec)
def test_the_last_record_of_every_key_stays_where_it_was(files: MemoryFiles, codec: Codec) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), codec=codec)
    put(log, (b"c", b"4"), (b"b", b"5"), codec=codec)
    compact(log)
    assert contents(log) == [(2, b"a", b"3"), (3, b"c", b"4"), (4, b"b", b"5")]
    assert [header.codec for header in headers(log)] == [codec, codec]
    assert headers(log)[0][:1] == (0,)
    assert headers(log)[0].last_offset_delta == 2
    assert log.end_offset == 5


def test_a_batch_that_keeps_everything_is_copied_as_it_is(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"), codec=Codec.GZIP)
    put(log, (b"a", b"2"), (b"b", b"2"), codec=Codec.GZIP)
    before = [bytes(view) for _, view in _read(log)]
    compact(log)
    assert bytes(_read(log)[-1][1]) == before[-1]


def test_nothing_is_swapped_when_nothing_is_gained(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"))
    log.roll(build.NOW_MS)
    segment = log.sealed_segments[0]
    compact(log, rolls=False)
    assert log.sealed_segments == (segment,)
    assert log.cleaning.clean_offset == 1


def test_a_place_that_is_only_held_is_not_written_anew(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", bytes(100)))
    put(log, (b"b", bytes(100)))
    log.roll(build.NOW_MS)
    put(log, (b"b", bytes(100)))
    log.config = replace(CONFIG, segment_bytes=200)  # they are not merged
    compact(log)
    assert [(one.base_offset, one.record_count) for one in headers(log)] == [(0, 1), (1, 0), (2, 1)]
    segments = log.sealed_segments
    log.cleaning.clean_offset = Offset(0)
    compact(log, rolls=False)
    assert log.sealed_segments == segments


def test_a_record_outside_the_offsets_of_its_batch_is_not_taken_for_gone(
    files: MemoryFiles,
) -> None:
    """No client writes such a thing; whoever does shall not lose the last value of another key."""
    log = build.log(files, CONFIG)
    put(log, (b"first", b"0"))
    batch = build_batch([Record(timestamp_ms=build.NOW_MS, key=b"odd", value=b"1")])
    batch[HEADER_BYTES + 3] = 2 * 3  # the record's offset delta, zig-zag
    _stamp_crc(batch)
    log.append_as_leader(batch, LeaderEpoch(0), build.NOW_MS)
    put(log, (b"last", b"2"), (b"last", b"3"), (b"last", b"4"))
    compact(log)
    assert [key for _, key, _ in contents(log)] == [b"first", b"odd", b"last"]


def test_a_batch_that_cannot_be_read_stays(files: MemoryFiles) -> None:
    log = build.log(files, TopicConfig())
    put(log, (b"first", b"0"))
    batch = build_batch([Record(timestamp_ms=build.NOW_MS, key=b"torn", value=b"1")])
    batch[HEADER_BYTES] += 2  # the record's length
    _stamp_crc(batch)
    log.append_as_leader(batch, LeaderEpoch(0), build.NOW_MS)
    put(log, (b"first", b"2"))
    log.config = CONFIG
    compact(log)
    assert [(one.base_offset, one.record_count) for one in headers(log)] == [(0, 0), (1, 1), (2, 1)]


def test_keys_longer_than_their_digest_are_told_apart(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    first, second = b"x" * 40 + b"1", b"x" * 40 + b"2"
    put(log, (first, b"1"))
    put(log, (second, b"2"))
    put(log, (first, b"3"))
    compact(log)
    assert contents(log) == [(1, second, b"2"), (2, first, b"3")]


def test_what_is_not_sealed_stays_even_if_replaced(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"))
    log.roll(build.NOW_MS)
    put(log, (b"a", b"2"))
    put(log, (b"a", b"3"))
    compact(log, rolls=False)
    assert [offset for offset, _, _ in contents(log)] == [0, 1, 2]


def test_records_without_key_are_refused_by_compacted_topics_only(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    with pytest.raises(InvalidRecord, match="needs a key"):
        put(log, (b"a", b"1"), (None, b"2"), codec=Codec.ZSTD)
    assert log.end_offset == 0
    log.config = TopicConfig()
    assert put(log, (None, b"1")) == 0


def test_records_without_key_from_before_are_dropped(files: MemoryFiles) -> None:
    log = build.log(files, TopicConfig())
    put(log, (None, b"1"), (b"a", b"2"))
    log.config = CONFIG
    compact(log)
    assert contents(log) == [(1, b"a", b"2")]


def test_a_damaged_segment_is_left_alone(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.roll(build.NOW_MS)
    files.content(log.directory / f"{0:020d}.log")[65] ^= 4
    size_bytes = log.size_bytes
    cleaner = compact(log, rolls=False)
    assert (cleaner.failure_count, cleaner.pass_count) == (1, 0)
    assert log.size_bytes == size_bytes
    assert log.offline_reason is None


# Memory


def test_a_pass_ends_where_memory_is_full_and_the_next_goes_on(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    for number in range(6):
        put(log, (b"%d" % (number % 4), b"%d" % number))
    log.roll(build.NOW_MS)
    compact(log, memory_bytes=2 * KEY_COST_BYTES, rolls=False)
    assert log.cleaning.clean_offset == 2
    assert [offset for offset, _, _ in contents(log)] == [0, 1, 2, 3, 4, 5]
    compact(log, memory_bytes=2 * KEY_COST_BYTES, rolls=False)
    compact(log, memory_bytes=2 * KEY_COST_BYTES, rolls=False)
    assert log.cleaning.clean_offset == 6
    assert [offset for offset, _, _ in contents(log)] == [2, 3, 4, 5]


def test_what_memory_did_not_reach_is_copied_as_it_is(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"))
    put(log, (b"b", None), (b"b", None))
    before = [bytes(view) for _, view in _read(log)]
    log.roll(build.NOW_MS)
    compact(log, memory_bytes=KEY_COST_BYTES, rolls=False)
    assert log.cleaning.clean_offset == 1
    assert [bytes(view) for _, view in _read(log)] == before


# Tombstones


def test_a_tombstone_outlives_what_it_deletes_by_its_retention(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"))
    put(log, (b"a", None), (b"b", b"2"))
    compact(log)
    assert contents(log) == [(1, b"a", None), (2, b"b", b"2")]
    horizon = headers(log)[-1]
    assert horizon.attributes & DELETE_HORIZON
    assert horizon.delete_horizon_ms == build.NOW_MS + 1000
    times = [record.timestamp_ms for record in records(_read(log)[-1][1])]
    assert times == [build.NOW_MS, build.NOW_MS], "records keep their time"
    assert horizon.max_timestamp_ms == build.NOW_MS

    put(log, (b"c", b"3"), now_ms=build.NOW_MS + 999)
    compact(log, now_ms=build.NOW_MS + 999)
    assert (1, b"a", None) in contents(log)
    put(log, (b"d", b"4"), now_ms=build.NOW_MS + 1000)
    compact(log, now_ms=build.NOW_MS + 1000)
    assert [offset for offset, _, _ in contents(log)] == [2, 3, 4]


def test_a_horizon_is_not_put_off_by_later_passes(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", None))
    compact(log)
    put(log, (b"b", b"1"))
    compact(log, now_ms=build.NOW_MS + 500)
    assert headers(log)[0].delete_horizon_ms == build.NOW_MS + 1000


def test_clients_cannot_set_horizons(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    batch = build_batch([Record(timestamp_ms=build.NOW_MS, key=b"a")], is_control=False)
    batch[22] |= DELETE_HORIZON
    _stamp_crc(batch)
    with pytest.raises(InvalidRecord, match="horizon"):
        log.append_as_leader(batch, LeaderEpoch(0), build.NOW_MS)


# Producers and transactions


def test_an_emptied_batch_stays_for_its_producers_sequence(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"x", b"0"))
    put(log, (b"a", b"1"), (b"b", b"1"), producer_id=5, sequence=0)
    put(log, (b"a", b"2"), (b"b", b"2"))
    compact(log)
    kept = headers(log)[1]
    assert (kept.base_offset, kept.last_offset_delta, kept.record_count) == (1, 1, 0)
    assert (kept.producer_id, kept.producer_epoch, kept.base_sequence) == (5, 0, 0)
    log.producers.expire(TimestampMs(build.NOW_MS + 10), 1)
    put(log, (b"c", b"3"))
    compact(log)
    assert [header.base_offset for header in headers(log)] == [0, 3, 5]


def test_aborted_records_go_and_never_replace_anything(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"good"))
    put(log, (b"a", b"void"), producer_id=7, sequence=0, is_transactional=True)
    end(log, MarkerKind.ABORT, 7)
    compact(log)
    assert contents(log) == [(0, b"a", b"good")]


@pytest.mark.parametrize("kind", MarkerKind)
def test_a_marker_goes_when_nothing_of_its_transaction_is_left(
    files: MemoryFiles, kind: MarkerKind
) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"x", b"0"))
    put(log, (b"a", b"1"), producer_id=7, sequence=0, is_transactional=True)
    end(log, kind, 7)
    put(log, (b"a", b"2"))
    log.producers.expire(TimestampMs(build.NOW_MS + 10), 1)
    later_ms = int(build.NOW_MS)
    for number in range(4):
        put(log, (b"%d" % number, b"more"))
        compact(log, now_ms=later_ms)
        has_marker = any(header.is_control for header in headers(log))
        assert has_marker == (number < 3), number
        if number == 1:
            (marker,) = [header for header in headers(log) if header.is_control]
            assert marker.delete_horizon_ms == later_ms + 1000
            assert len(log.aborted_transactions(Offset(0), log.end_offset)) == (
                kind is MarkerKind.ABORT
            )
            later_ms += 999
        else:
            later_ms += 1
    assert log.aborted_transactions(Offset(0), log.end_offset) == []


def test_an_open_transaction_stops_compaction_before_it(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.roll(build.NOW_MS)
    put(log, (b"a", b"3"), producer_id=7, sequence=0, is_transactional=True)
    put(log, (b"a", b"4"))
    compact(log)
    assert [offset for offset, _, _ in contents(log)] == [1, 2, 3]
    assert log.cleaning.clean_offset == 2


# Segments


def test_small_segments_are_merged(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    for number in range(10):
        put(log, (b"%d" % number, b"1"))
        log.roll(build.NOW_MS)
    names = {entry.name for entry in files.list(log.directory)}
    compact(log, rolls=False)
    assert [segment.base_offset for segment in log.sealed_segments] == [0]
    assert len(contents(log)) == 10
    left = {entry.name for entry in files.list(log.directory)}
    assert f"{1:020d}.log" in names - left
    assert not {name for name in left if name.endswith((".cleaned", ".swap"))}


def test_segments_are_merged_by_what_is_left_of_them(files: MemoryFiles) -> None:
    config = replace(CONFIG, segment_bytes=1200)
    log = build.log(files, config)
    for number in range(12):
        put(log, (b"%d" % (number % 4), bytes(1000)))
    assert len(log.sealed_segments) == 11
    compact(log)
    assert [offset for offset, _, _ in contents(log)] == [8, 9, 10, 11]
    assert [one.base_offset for one in log.sealed_segments] == [0, 9, 10, 11]


def test_the_worker_closes_what_was_replaced(tmp_path: Path) -> None:
    """Freeing a segment's pages takes a while: the owner's loop must not be the one to do it."""
    log = build.log(OsFiles(), CONFIG, directory=tmp_path / "orders-0")
    for number in range(3):
        put(log, (b"a", b"%d" % number))
        log.roll(build.NOW_MS)
    log.flush()
    work = log.cleaning.begin(
        log.cleaning.cleanable(log.end_offset, build.NOW_MS), build.NOW_MS, 1 << 20
    )
    cleaned = work.run_next(OsFiles(), lambda: None)
    assert cleaned is not None
    swap = log.cleaning.begin_swap(work, cleaned)
    assert swap is not None
    swap.errand.run()
    log.cleaning.end_swap(swap)
    del swap
    assert len(replaced_but_open(tmp_path)) == 3
    assert work.run_next(OsFiles(), lambda: None) is None
    assert not replaced_but_open(tmp_path)


def test_segments_that_stay_as_they_are_are_not_kept_open(tmp_path: Path) -> None:
    config = replace(CONFIG, segment_bytes=1200)
    log = build.log(OsFiles(), config, directory=tmp_path / "orders-0")
    for number in range(12):
        put(log, (b"%d" % number, bytes(1000)))
    log.flush()
    work = log.cleaning.begin(
        log.cleaning.cleanable(log.end_offset, build.NOW_MS), build.NOW_MS, 1 << 20
    )
    before = open_file_count()
    assert work.run_next(OsFiles(), lambda: None) is None, "there is nothing to gain"
    assert open_file_count() <= before + 1


def replaced_but_open(directory: Path) -> list[str]:
    opened = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    names = [os.readlink(one) for one in opened if one.is_symlink()]
    return [name for name in names if name.startswith(str(directory)) and "(deleted)" in name]


def test_epochs_end_where_they_ended_although_their_records_are_gone(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    for epoch in range(3):
        put(log, (b"a", b"1"), epoch=epoch)
        put(log, (b"a", b"2"), epoch=epoch)
    compact(log)
    assert [offset for offset, _, _ in contents(log)] == [5]
    epochs = log.epochs
    assert [log.epoch_end(LeaderEpoch(epoch)) for epoch in range(3)] == [(0, 2), (1, 4), (2, 6)]
    assert log.epochs is epochs, "what is known fits the log and need not be read off it again"


def test_a_removed_offset_leads_to_the_next_batch(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    for number in range(20):
        put(log, (b"a", b"%d" % number))
    put(log, (b"b", b"1"))
    compact(log)
    found = log.read(Offset(7), log.end_offset, 1, at_least_one=True)
    assert found is not None
    assert [header.base_offset for header, _ in batches(log.read_bytes(found))] == [19]
    assert found.end_offset == 20


def test_a_reader_in_the_middle_goes_on_in_the_new_segment(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    for number in range(20):
        put(log, (b"a", b"%d" % number))
    log.roll(build.NOW_MS)
    first = log.read(Offset(0), log.end_offset, 500, at_least_one=True)
    assert first is not None
    assert 0 < first.end_offset < 19
    compact(log, rolls=False)
    then = log.read(first.end_offset, log.end_offset, 500, at_least_one=True)
    assert then is not None
    assert [header.base_offset for header, _ in batches(log.read_bytes(then))] == [19]


def test_whoever_reads_the_old_segment_can_finish(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    for number in range(5):
        put(log, (b"a", b"%d" % number))
    found = log.read(Offset(0), log.end_offset, 1 << 20, at_least_one=True)
    assert found is not None
    before = log.read_bytes(found)
    compact(log)
    assert log.read_bytes(found) == before
    assert len(contents(log)) == 1


def test_a_log_that_changed_meanwhile_is_not_touched(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    for number in range(6):
        put(log, (b"a", b"%d" % number))
    log.roll(build.NOW_MS)
    log.flush()
    work = log.cleaning.begin(
        log.cleaning.cleanable(log.end_offset, build.NOW_MS), build.NOW_MS, 1 << 20
    )
    cleaned = work.run_next(files, lambda: None)
    assert cleaned is not None
    log.truncate(Offset(3), build.NOW_MS)
    assert log.cleaning.begin_swap(work, cleaned) is None
    assert [offset for offset, _, _ in contents(log)] == [0, 1, 2]
    log.cleaning.end(work)
    assert log.cleaning.clean_offset == 0


def begin_swap(files: MemoryFiles, log: Log) -> Swap:
    """A pass over everything but the active segment, up to the moment a worker has to swap."""
    log.flush()
    part = log.cleaning.cleanable(log.end_offset, build.NOW_MS)
    work = log.cleaning.begin(part, build.NOW_MS, PLENTY_BYTES)
    cleaned = work.run_next(files, lambda: None)
    assert cleaned is not None
    swap = log.cleaning.begin_swap(work, cleaned)
    assert swap is not None
    return swap


def swapping(files: MemoryFiles) -> tuple[Log, Swap]:
    """Six records of one key in three segments, which are about to become one."""
    log = build.log(files, CONFIG)
    for number in range(6):
        put(log, (b"a", b"%d" % number))
        if number % 2:
            log.roll(build.NOW_MS)
    log.flushing.save()
    return log, begin_swap(files, log)


def test_readers_see_the_old_segments_until_the_owner_knows_of_the_new_one(
    files: MemoryFiles,
) -> None:
    log, swap = swapping(files)
    assert len(contents(log)) == 6
    swap.errand.run()
    assert len(contents(log)) == 6, "their names are gone, but they are open"
    log.cleaning.end_swap(swap)
    assert contents(log) == [(5, b"a", b"5")]
    assert log.size_bytes == sum(len(view) for _, view in _read(log))


def test_however_many_segments_are_replaced_all_of_them_can_be_read_meanwhile(
    files: MemoryFiles,
) -> None:
    log = build.log(files, CONFIG)
    for number in range(20):
        put(log, (b"a", b"%d" % number))
        log.roll(build.NOW_MS)
    log.flush()
    files = files.kill()
    log = build.log(files, CONFIG, recovery_point=20)
    swap = begin_swap(files, log)
    assert len(swap.old) == 20
    swap.errand.run()
    assert [offset for offset, _, _ in contents(log)] == list(range(20))
    log.cleaning.end_swap(swap)
    assert contents(log) == [(19, b"a", b"19")]


@pytest.mark.parametrize("has_run", [False, True])
def test_a_log_that_is_truncated_in_the_middle_of_a_swap_finishes_it_first(
    files: MemoryFiles, has_run: bool
) -> None:
    log, swap = swapping(files)
    put(log, (b"b", b"6"))
    if has_run:
        swap.errand.run()
    log.truncate(Offset(6), build.NOW_MS)
    swap.errand.run()
    log.cleaning.end_swap(swap)
    assert contents(log) == [(5, b"a", b"5")]
    assert contents(build.log(files.kill(), CONFIG, recovery_point=6)) == [(5, b"a", b"5")]


def test_a_log_that_begins_again_in_the_middle_of_a_swap_is_empty(files: MemoryFiles) -> None:
    log, swap = swapping(files)
    log.restart_at(Offset(100), build.NOW_MS)
    swap.errand.run()
    log.cleaning.end_swap(swap)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (100, 100, 0)
    assert contents(build.log(files.kill(), CONFIG, start_offset=100)) == []


@pytest.mark.parametrize("has_run", [False, True])
def test_what_is_being_replaced_is_deleted_afterwards(files: MemoryFiles, has_run: bool) -> None:
    log, swap = swapping(files)
    put(log, (b"b", b"6"))
    if has_run:
        swap.errand.run()
    log.advance_start(Offset(6))
    log.config = replace(CONFIG, cleanup_policy=("compact", "delete"))
    assert log.delete_old_segments(build.NOW_MS) == 0
    assert contents(log) == [(6, b"b", b"6")]
    swap.errand.run()
    log.cleaning.end_swap(swap)
    assert log.delete_old_segments(build.NOW_MS) == 1
    assert log.size_bytes == sum(len(view) for _, view in _read(log))
    names = [entry.name for entry in files.list(log.directory)]
    assert [name for name in names if name.endswith(".log")] == [f"{6:020d}.log"]


def test_damage_to_what_is_being_replaced_is_none_of_the_new_one(files: MemoryFiles) -> None:
    log, swap = swapping(files)
    damaged = log.sealed_segments[0]
    assert log.repair.note_damages(damaged, [Damage(Offset(0), Offset(2), Position(0), None)]) == []
    assert log.corrupt == []
    swap.errand.run()
    log.cleaning.end_swap(swap)
    assert contents(log) == [(5, b"a", b"5")]


def test_indexes_made_again_in_the_middle_of_a_swap_are_not_given_to_the_new_segment(
    files: MemoryFiles,
) -> None:
    log, swap = swapping(files)
    swap.errand.run()
    index = log.directory / file_name(Offset(0), TIME_INDEX)
    new = files.read_whole(index)
    swap.old[0].indexes.by_offset.append(0, Position(1))  # leads to no batch: made again
    assert log.read(Offset(0), log.end_offset, 1000, at_least_one=True) is not None
    assert len(swap.old[0].indexes.by_offset) == 0
    assert files.read_whole(index) == new


def test_nobody_touches_the_files_of_a_log_that_is_about_to_go(files: MemoryFiles) -> None:
    log, swap = swapping(files)
    log.retire("about to be deleted")
    before = files.list(log.directory)
    swap.errand.run()
    assert files.list(log.directory) == before


def test_truncation_makes_what_follows_dirty_again(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    for number in range(6):
        put(log, (b"%d" % number, b"1"))
    compact(log)
    assert log.cleaning.clean_offset == 6
    log.truncate(Offset(3), build.NOW_MS)
    assert log.cleaning.clean_offset == 3
    assert build.log(files.kill(), CONFIG).cleaning.clean_offset == 3


def test_a_damaged_checkpoint_means_beginning_again(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"))
    compact(log)
    log.close()
    files.create(log.directory / "cleaner-offset-checkpoint").append(b"1\n1\n7\ncrc32c 0\n")
    assert build.log(files.kill(), CONFIG, recovery_point=EVERYTHING).cleaning.clean_offset == 0


def test_compaction_alone_deletes_nothing_by_age(files: MemoryFiles) -> None:
    log = build.log(files, replace(CONFIG, retention_ms=1))
    put(log, (b"a", b"1"))
    log.roll(build.NOW_MS)
    assert log.delete_old_segments(TimestampMs(build.NOW_MS + 10**9)) == 0
    log.config = replace(CONFIG, retention_ms=1, cleanup_policy=("compact", "delete"))
    assert log.delete_old_segments(TimestampMs(build.NOW_MS + 10**9)) == 1


# Crashes


def test_a_stop_at_any_moment_leaves_the_old_or_the_new(files: MemoryFiles) -> None:
    """Every change to the disk that compaction makes is the last one once, both ways."""
    seen = set()
    stops = 0
    while True:
        disk = MemoryFiles()
        log = build.log(disk, CONFIG)
        for number in range(6):
            put(log, (b"%d" % (number % 2), b"%d" % number))
            if number % 2:
                log.roll(build.NOW_MS)
        log.flushing.save()
        log.flush()
        disk.stop_after = stops
        try:
            compact(log, rolls=False)
        except MachineStopped:
            pass
        else:
            break
        for after in (disk.kill(), disk.kill().cut_power(_Keeps()), disk.cut_power(_Keeps())):
            again = build.log(after, CONFIG, recovery_point=6)
            offsets = tuple(offset for offset, _, _ in contents(again))
            assert offsets in {(0, 1, 2, 3, 4, 5), (4, 5)}
            assert [one.end_offset for one in again.sealed_segments][-1] == 6
            assert not [
                entry.name
                for entry in after.list(again.directory)
                if entry.name.endswith((".cleaned", ".swap"))
            ]
            seen.add(offsets)
        stops += 1
    assert stops > 10
    assert len(seen) == 2


class _Keeps(Random):
    """Chance that keeps no name and no byte that was not synced."""

    def random(self) -> float:
        return 1.0

    def randint(self, low: int, high: int) -> int:
        return low

    def choice(self, options: Any) -> Any:
        return options[0]


def test_a_full_disk_ends_the_pass_and_nothing_else(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.roll(build.NOW_MS)
    files.fail_next("append", 28, suffix=".log.cleaned")
    cleaner = compact(log, rolls=False)
    assert cleaner.failure_count == 1
    assert log.offline_reason is None
    assert len(contents(log)) == 2
    assert not [e.name for e in files.list(log.directory) if e.name.endswith(".cleaned")]
    assert compact(log, rolls=False).pass_count == 1


@pytest.mark.parametrize("operation", ["sync", "rename"])  # to copy, and to swap
def test_a_failing_disk_takes_the_log_offline(files: MemoryFiles, operation: str) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.roll(build.NOW_MS)
    files.fail_next(operation, suffix=".log.cleaned")
    compact(log, rolls=False)
    assert log.offline_reason is not None


# Planning


def facts(*spans: tuple[int, int, int, int]) -> list[SegmentFacts]:
    return [
        SegmentFacts(Offset(base), Offset(end), size, TimestampMs(time_ms))
        for base, end, size, time_ms in spans
    ]


SEALED = facts((0, 10, 100, 1000), (10, 20, 50, 2000), (20, 30, 50, 3000))


def plan(dirty_start: int = 0, limit: int = 30, now_ms: int = 5000, **more: int) -> Cleanable:
    config = TopicConfig(**more)  # type: ignore[arg-type]
    return cleanable(SEALED, Offset(dirty_start), Offset(limit), config, TimestampMs(now_ms))


def test_only_whole_segments_below_the_limit_are_cleanable() -> None:
    assert plan()[:4] == (0, 30, 0, 200)
    assert plan(dirty_start=10)[:4] == (10, 30, 100, 100)
    assert plan(limit=29)[:4] == (0, 20, 0, 150)
    assert plan(dirty_start=30)[:4] == (30, 30, 200, 0)


def test_records_are_safe_for_the_minimum_lag() -> None:
    assert plan(min_compaction_lag_ms=2000).end == 30
    assert plan(min_compaction_lag_ms=2001).end == 20
    assert plan(min_compaction_lag_ms=4001).end == 0


def test_a_log_is_worth_it_when_dirty_enough_or_overdue() -> None:
    config = TopicConfig(min_cleanable_dirty_ratio=0.5)
    assert is_worth_it(plan(dirty_start=10), config)
    assert not is_worth_it(plan(dirty_start=20), config)
    assert is_worth_it(plan(dirty_start=20)._replace(is_overdue=True), config)
    assert not is_worth_it(plan(dirty_start=30)._replace(is_overdue=True), config)


def test_overdue_logs_go_first_then_the_dirtiest() -> None:
    slightly, very = plan(dirty_start=20), plan(dirty_start=10)
    assert dirtiest([slightly, very]) == 1
    assert dirtiest([slightly._replace(is_overdue=True), very]) == 0


def test_a_record_that_waited_too_long_is_sealed_and_compacted(files: MemoryFiles) -> None:
    config = replace(CONFIG, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=100)
    listener = FakeLogListener()
    log = build.log(files, config, listener=listener)
    put(log, (b"x", b"1"))
    compact(log)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    compact(log, rolls=False, now_ms=build.NOW_MS + 99)
    assert len(contents(log)) == 3
    listener.on_crowded = log.flush
    compact(log, rolls=False, now_ms=build.NOW_MS + 100)
    assert [offset for offset, _, _ in contents(log)] == [0, 2]


@pytest.mark.parametrize("is_overdue", [False, True])
def test_a_segment_is_compacted_only_when_its_indexes_are_on_disk(
    files: MemoryFiles, is_overdue: bool
) -> None:
    """A flush that stored them later would give them to the segment that took its place."""
    log = build.log(files, replace(CONFIG, max_compaction_lag_ms=100))
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    work = log.flushing.begin()
    assert work is not None
    if not is_overdue:
        log.roll(build.NOW_MS)
    work.run(files)
    log.flushing.end(work)
    assert log.durable_offset == log.end_offset
    now_ms = TimestampMs(build.NOW_MS + 100 * is_overdue)
    assert log.cleaning.cleanable(log.end_offset, now_ms).end == 0
    assert len(log.sealed_segments) == 1
    log.flush()
    assert log.cleaning.cleanable(log.end_offset, now_ms).end == 2


def test_a_segment_joins_those_before_it_if_there_is_room_for_all_of_it() -> None:
    first, second, third = SEALED
    assert fits([], 0, first, 10), "one is always taken, however large"
    assert fits([first], 50, second, 50 + second.size_bytes)
    assert not fits([first], 51, second, 50 + second.size_bytes)
    assert fits([first, second], 0, third, third.size_bytes)
    far = facts((0, 10, 1, 0), (10, 2**31 + 5, 1, 0))
    assert not fits(far[:1], 1, far[1], 100)
    small, large = (facts(*((at, at + 1, size, 0) for at in range(100))) for size in (1, 100))
    assert fits(small[:63], 63, small[63], 100)
    assert not fits(small[:64], 64, small[64], 100)
    assert fits(large[:15], 0, large[15], 100)
    assert not fits(large[:16], 0, large[16], 100), "their files are all open for a while"


def test_last_places_are_found_also_when_many_offsets_share_a_run() -> None:
    few = LastOffsets(100, 200)
    few.add(150)
    assert few.has_any(100, 150)
    assert few.has_any(150, 199)
    assert not few.has_any(100, 149)
    assert not few.has_any(151, 199)
    many = LastOffsets(100, 100 + (1 << 30))
    many.add(5_000_000)
    assert many.has_any(5_000_000, 5_000_000)
    assert many.has_any(100, 1 << 29)
    assert not many.has_any(6_000_000, 1 << 30)
