"""Producers: repeated batches, gaps, epochs, transactions and snapshots."""

import struct

import pytest
from crc32c import crc32c

from fakes import build
from ottla.config import TopicConfig
from ottla.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    PolicyViolation,
)
from ottla.model import Offset, ProducerEpoch, ProducerId, TimestampMs
from ottla.records.batch import (
    BatchHeader,
    Marker,
    MarkerKind,
    build_marker,
    read_header,
    stamp_time,
)
from ottla.storage.index import AbortedTransaction
from ottla.storage.producers import (
    ProducedBatch,
    Producers,
    SnapshotDamaged,
    snapshots_newest_first,
)

ABORT = Marker(MarkerKind.ABORT, 0)
COMMIT = Marker(MarkerKind.COMMIT, 0)


def header(
    sequence: int, *, count: int = 1, epoch: int = 0, producer: int = 9, transactional: bool = False
) -> BatchHeader:
    return read_header(
        build.batch(
            count,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )
    )


def append(producers: Producers, batch: BatchHeader, offset: int) -> ProducedBatch | None:
    """What a log does: check, then note, unless it is a repeated batch."""
    known = producers.check(batch)
    if known is None:
        producers.note(batch, Offset(offset), build.NOW_MS)
    return known


def end(
    producers: Producers, marker: Marker, offset: int, *, producer: int = 9, epoch: int = 0
) -> AbortedTransaction | None:
    batch = build_marker(
        marker,
        producer_id=ProducerId(producer),
        producer_epoch=ProducerEpoch(epoch),
        timestamp_ms=build.NOW_MS,
    )
    return producers.note_marker(read_header(batch), Offset(offset), marker, build.NOW_MS)


def test_a_repeated_batch_is_told_by_its_sequences_and_keeps_its_place() -> None:
    producers = Producers()
    for number in range(6):
        assert append(producers, header(number * 2, count=2), 100 + number * 2) is None
    for number in range(1, 6):
        known = append(producers, header(number * 2, count=2), 999)
        base_offset = Offset(100 + number * 2)
        last_offset = Offset(101 + number * 2)
        assert known == ProducedBatch(
            number * 2, number * 2 + 1, base_offset, last_offset, build.NOW_MS
        )


def test_only_the_last_five_batches_can_be_repeated() -> None:
    producers = Producers()
    for number in range(6):
        append(producers, header(number), number)
    with pytest.raises(OutOfOrderSequence):
        producers.check(header(0))


def test_a_batch_that_overlaps_a_known_one_is_no_repetition() -> None:
    producers = Producers()
    append(producers, header(0, count=2), 0)
    for overlapping in (header(0, count=3), header(1), header(0)):
        with pytest.raises(OutOfOrderSequence):
            producers.check(overlapping)


def test_a_gap_is_refused() -> None:
    producers = Producers()
    append(producers, header(0), 0)
    with pytest.raises(OutOfOrderSequence, match="expected is 1"):
        producers.check(header(2))


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert append(Producers(), header(4711), 0) is None


def test_sequences_wrap() -> None:
    producers = Producers()
    append(producers, header(2**31 - 2, count=2), 0)
    assert append(producers, header(0, count=2), 2) is None
    assert append(producers, header(2**31 - 2, count=2), 4) is not None
    producers = Producers()
    append(producers, header(2**31 - 1, count=3), 0)  # wraps within the batch
    assert append(producers, header(2), 3) is None


def test_an_older_epoch_is_fenced() -> None:
    producers = Producers()
    append(producers, header(0, epoch=3), 0)
    with pytest.raises(InvalidProducerEpoch):
        producers.check(header(1, epoch=2))
    with pytest.raises(InvalidProducerEpoch):
        producers.check_marker(ProducerId(9), ProducerEpoch(2), 0)
    producers.check_marker(ProducerId(9), ProducerEpoch(3), 0)


def test_a_coordinator_that_was_replaced_ends_nothing() -> None:
    producers = Producers()
    append(producers, header(0, transactional=True), 0)
    end(producers, Marker(MarkerKind.COMMIT, 5), 1)
    with pytest.raises(CoordinatorFenced):
        producers.check_marker(ProducerId(9), ProducerEpoch(0), 4)
    producers.check_marker(ProducerId(9), ProducerEpoch(0), 5)
    producers.check_marker(ProducerId(8), ProducerEpoch(0), 0)  # nothing is known of this one


def test_a_transaction_is_open_in_its_epoch_until_its_marker() -> None:
    producers = Producers()
    append(producers, header(0, epoch=3, transactional=True), 0)
    known = producers.get(ProducerId(9))
    assert known is not None
    assert known.has_open(3)
    assert not known.has_open(4)
    assert known.marker_count == 0
    end(producers, COMMIT, 1, epoch=4)
    assert not known.has_open(3)
    assert not known.has_open(4)
    assert known.marker_count == 1


def test_a_new_epoch_begins_at_zero() -> None:
    producers = Producers()
    append(producers, header(0), 0)
    with pytest.raises(OutOfOrderSequence, match="instead of 0"):
        producers.check(header(1, epoch=1))
    assert append(producers, header(0, epoch=1), 1) is None
    with pytest.raises(OutOfOrderSequence):
        producers.check(header(5, epoch=1))


def test_producers_do_not_know_each_other() -> None:
    producers = Producers()
    append(producers, header(0, producer=1), 0)
    assert append(producers, header(0, producer=2), 1) is None


def test_plain_records_inside_a_transaction_are_refused() -> None:
    producers = Producers()
    append(producers, header(0, transactional=True), 0)
    with pytest.raises(InvalidTxnState):
        producers.check(header(1))
    end(producers, COMMIT, 1)
    assert append(producers, header(1), 2) is None


def test_everything_is_stable_without_transactions() -> None:
    producers = Producers()
    append(producers, header(0), 0)
    assert producers.first_unstable(Offset(1)) is None


def test_the_first_open_transaction_is_where_stability_ends() -> None:
    producers = Producers()
    append(producers, header(0, producer=1, transactional=True), 5)
    append(producers, header(0, producer=2, transactional=True), 7)
    append(producers, header(1, producer=1, transactional=True), 8)
    assert producers.first_unstable(Offset(9)) == 5
    end(producers, COMMIT, 9, producer=1)
    assert producers.first_unstable(Offset(10)) == 7
    end(producers, COMMIT, 10, producer=2)
    assert producers.first_unstable(Offset(11)) is None


def test_a_decided_transaction_is_unstable_until_its_marker_can_be_seen() -> None:
    producers = Producers()
    append(producers, header(0, transactional=True), 5)
    end(producers, COMMIT, 6)
    assert producers.first_unstable(Offset(6)) == 5
    assert producers.first_unstable(Offset(7)) is None


def test_an_aborted_transaction_says_what_to_skip() -> None:
    producers = Producers()
    append(producers, header(0, producer=1, transactional=True), 5)
    append(producers, header(0, producer=2, transactional=True), 7)
    assert end(producers, ABORT, 9, producer=2) == (2, 7, 9, 5)
    assert end(producers, ABORT, 10, producer=1) == (1, 5, 10, 11)


def test_a_marker_without_a_transaction_changes_only_the_epoch() -> None:
    producers = Producers()
    assert end(producers, ABORT, 0, epoch=4) is None
    with pytest.raises(InvalidProducerEpoch):
        producers.check(header(0, epoch=3))
    assert append(producers, header(0, epoch=4), 1) is None


def test_silent_producers_are_forgotten_unless_a_transaction_is_open() -> None:
    producers = Producers()
    append(producers, header(0, producer=1), 0)
    append(producers, header(0, producer=2, transactional=True), 1)
    later_ms = TimestampMs(build.NOW_MS + 1000)
    assert producers.expire(later_ms, 1001) == 0
    assert producers.expire(later_ms, 1000) == 1
    assert producers.get(ProducerId(1)) is None
    assert producers.get(ProducerId(2)) is not None


def test_a_snapshot_brings_everything_back() -> None:
    producers = Producers()
    for number in range(7):
        append(producers, header(number * 3, count=3), 50 + number * 3)
    append(producers, header(4, producer=2, epoch=1, transactional=True), 90)
    append(producers, header(0, producer=1, transactional=True), 80)
    end(producers, COMMIT, 95, producer=3, epoch=2)
    again = Producers.decode(producers.encode()).producers
    assert again.encode() == producers.encode()
    assert again.first_unstable(Offset(100)) == 80
    known = append(again, header(6, count=3), 999)
    assert known is not None
    assert known.base_offset == 56, "all five batches are remembered, not only the last"


def test_a_snapshot_begins_in_kafkas_format() -> None:
    producers = Producers()
    append(producers, header(5, count=2, epoch=1, transactional=True), 40)
    data = producers.encode()
    version, crc, count = struct.unpack_from(">hIi", data)
    assert (version, crc, count) == (1, crc32c(data[6:]), 1)
    assert struct.unpack_from(">qhiqiqiq", data, 10) == (
        9, 1, 6, 41, 1, build.NOW_MS, -1, 40,
    )  # fmt: skip


def test_a_snapshot_that_kafka_wrote_has_one_batch_per_producer() -> None:
    body = struct.pack(">iqhiqiqiq", 1, 9, 0, 6, 41, 1, build.NOW_MS, -1, -1)
    producers = Producers.decode(struct.pack(">hI", 1, crc32c(body)) + body).producers
    assert producers.check(header(7)) is None
    assert producers.check(header(5, count=2)) == (5, 6, 40, 41, build.NOW_MS)


def test_a_damaged_snapshot_is_not_believed() -> None:
    producers = Producers()
    append(producers, header(0), 0)
    whole = producers.encode()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        with pytest.raises(SnapshotDamaged):
            Producers.decode(bytes(damaged))
        with pytest.raises(SnapshotDamaged):
            Producers.decode(whole[:position])


TWO = TopicConfig(producers_max=2)


def test_a_producer_too_many_takes_the_place_of_one_that_went_silent() -> None:
    producers = Producers()
    append(producers, header(0, producer=1), 0)
    append(producers, header(0, producer=2, transactional=True), 1)
    later_ms = TimestampMs(build.NOW_MS + 600_000)
    assert producers.admit(header(0, producer=3), TWO, later_ms) is None
    assert producers.get(ProducerId(1)) is None
    assert producers.get(ProducerId(2)) is not None, "its transaction is open"


def test_a_producer_too_many_is_refused_while_all_others_may_repeat_what_they_sent() -> None:
    producers = Producers()
    append(producers, header(0, producer=1), 0)
    append(producers, header(0, producer=2), 1)
    with pytest.raises(PolicyViolation, match=r"max\.producers allows 2"):
        producers.admit(header(0, producer=3), TWO, TimestampMs(build.NOW_MS + 599_999))
    assert producers.admit(header(0, producer=1), TWO, build.NOW_MS) is not None
    assert len(producers) == 2


def test_a_batch_with_the_brokers_time_was_appended_then_whenever_it_is_noted() -> None:
    batch = build.batch(producer_id=9, producer_epoch=0, base_sequence=0)
    stamp_time(batch, TimestampMs(700))
    producers = Producers()
    producers.note(read_header(batch), Offset(3), build.NOW_MS)
    producers.note(header(1), Offset(4), build.NOW_MS)
    ((producer_id, producer),) = producers.items()
    assert producer_id == 9
    assert [one.appended_ms for one in producer.batches] == [700, build.NOW_MS]


@pytest.mark.parametrize("crc", [None, 0, 0xFFFFFFFF])
def test_a_snapshot_carries_the_checksum_of_aborted_transactions(crc: int | None) -> None:
    producers = Producers()
    append(producers, header(0), 0)
    append(producers, header(1), 1)
    found = Producers.decode(producers.encode(crc))
    assert found.aborted_crc == crc
    assert found.producers.encode() == producers.encode()


def test_the_newest_snapshot_is_tried_first_and_none_beyond_the_log() -> None:
    offsets = [Offset(offset) for offset in (10, 40, 20, 30)]
    assert list(snapshots_newest_first(offsets, Offset(30))) == [30, 20, 10]
    assert list(snapshots_newest_first(offsets, Offset(9))) == []
