"""One pass of compaction: which records stay, and what becomes of batches."""

from dataclasses import replace
from pathlib import Path

import pytest

from fakes import build
from fakes.compacted_logs import CONFIG, compact, contents, end, headers, put, read_batches
from fakes.memory_files import MemoryFiles
from fakes.opened import open_below
from ottla.config import TopicConfig
from ottla.errors import InvalidRecord
from ottla.model import (
    LeaderEpoch,
    Offset,
    TimestampMs,
)
from ottla.records.batch import (
    DELETE_HORIZON,
    HEADER_BYTES,
    MarkerKind,
    Record,
    _stamp_crc,
    batches,
    build_batch,
    records,
)
from ottla.records.compression import Codec
from ottla.storage.compaction_pass import KEY_COST_BYTES, LastOffsets
from ottla.storage.files import OsFiles


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
    before = [bytes(view) for _, view in read_batches(log)]
    compact(log)
    assert bytes(read_batches(log)[-1][1]) == before[-1]


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
    before = [bytes(view) for _, view in read_batches(log)]
    log.roll(build.NOW_MS)
    compact(log, memory_bytes=KEY_COST_BYTES, rolls=False)
    assert log.cleaning.clean_offset == 1
    assert [bytes(view) for _, view in read_batches(log)] == before


def test_a_tombstone_outlives_what_it_deletes_by_its_retention(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"))
    put(log, (b"a", None), (b"b", b"2"))
    compact(log)
    assert contents(log) == [(1, b"a", None), (2, b"b", b"2")]
    horizon = headers(log)[-1]
    assert horizon.attributes & DELETE_HORIZON
    assert horizon.delete_horizon_ms == build.NOW_MS + 1000
    times = [record.timestamp_ms for record in records(read_batches(log)[-1][1])]
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
    before = open_below(tmp_path)
    assert work.run_next(OsFiles(), lambda: None) is None, "there is nothing to gain"
    assert len(open_below(tmp_path)) <= len(before) + 1


def replaced_but_open(directory: Path) -> list[str]:
    return [path for path in open_below(directory) if path.endswith("(deleted)")]


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
