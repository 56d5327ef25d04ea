"""Batches: what a header says, what is refused, and what stamping changes."""

import struct

import pytest
from crc32c import crc32c

from fakes import build
from ottla.errors import (
    ApiError,
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    UnsupportedCompression,
)
from ottla.model import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from ottla.records.batch import (
    ATTRIBUTES_AT,
    CONTROL,
    CRC_AT,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Marker,
    MarkerKind,
    Record,
    batches,
    build_batch,
    build_marker,
    check_batch,
    check_plain,
    check_stored,
    decompressed_bytes_max,
    read_header,
    read_marker,
    recompress,
    records,
    stamp,
    stamp_time,
)
from ottla.records.compression import Codec
from ottla.records.record_slices import empty_batch


def with_field(batch: bytearray, position: int, layout: str, value: int) -> bytearray:
    """The batch with one field changed and a CRC that is right again."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, CRC_AT, crc32c(changed[ATTRIBUTES_AT:]))
    return changed


def test_a_batch_is_byte_for_byte_what_the_format_says() -> None:
    record = Record(
        timestamp_ms=TimestampMs(1000), key=b"k", value=b"v", headers=(("h", b"x"), ("n", None))
    )
    batch = build_batch([record], base_offset=Offset(7), leader_epoch=LeaderEpoch(2))
    assert batch.hex(" ", 4) == bytes.fromhex(
        "0000000000000007"  # base offset
        "00000041"  # length
        "00000002"  # leader epoch
        "02"  # magic
        "b39a888c"  # CRC-32C
        "0000"  # attributes
        "00000000"  # last offset delta
        "00000000000003e8"
        "00000000000003e8"  # base and max timestamp
        "ffffffffffffffff"
        "ffff"
        "ffffffff"  # producer id, producer epoch, base sequence
        "00000001"  # record count
        "1e"  # 15 bytes of record
        "00"
        "00"
        "00"  # attributes, timestamp delta, offset delta
        "026b"
        "0276"  # key, value
        "04"
        "0268"
        "0278"
        "026e"
        "01"  # two headers, the second null
    ).hex(" ", 4)


def test_a_header_knows_its_batch() -> None:
    header = check_batch(
        build.batch(
            3, producer_id=9, producer_epoch=1, base_sequence=2**31 - 2, is_transactional=True
        )
    )
    assert (header.record_count, header.last_offset, header.next_offset) == (3, 2, 3)
    assert header.last_sequence == 0, "sequences wrap"
    assert header.is_transactional
    assert not header.is_control
    assert not header.is_log_append_time
    assert header.codec is Codec.NONE
    assert header.max_timestamp_ms == header.base_timestamp_ms + 2


def test_a_batch_without_sequences_has_no_last_sequence() -> None:
    assert read_header(build.batch(3)).last_sequence == -1


def test_every_flipped_bit_under_the_crc_is_noticed() -> None:
    batch = build.batch()
    for position in range(CRC_AT, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x10
        with pytest.raises(ApiError):
            check_batch(damaged)


@pytest.mark.parametrize(
    ("batch", "refusal"),
    [
        (bytearray(), CorruptBatch),
        (build.batch()[: HEADER_BYTES - 1], CorruptBatch),
        (build.batch()[:-1], CorruptBatch),
        (build.batch() + build.batch(), InvalidRecord),
        (with_field(build.batch(), 8, ">i", 3), CorruptBatch),
        (with_field(build.batch(), 8, ">i", -1), CorruptBatch),
        (with_field(build.batch(), 16, ">b", 1), InvalidRecord),
        (with_field(build.batch(), 16, ">b", 3), InvalidRecord),
        (with_field(build.batch(), ATTRIBUTES_AT, ">h", 5), UnsupportedCompression),
        (with_field(build.batch(), ATTRIBUTES_AT, ">h", CONTROL), InvalidRecord),
        (with_field(build.batch(), ATTRIBUTES_AT, ">h", TRANSACTIONAL), InvalidRecord),
        (with_field(build.batch(), 23, ">i", 1), InvalidRecord),
        (with_field(build.batch(), 57, ">i", 0), InvalidRecord),
        (with_field(build.batch(), 57, ">i", 2**31 - 1), InvalidRecord),
        (with_field(build.batch(producer_id=4), 51, ">h", 0), InvalidRecord),
        (with_field(build.batch(producer_id=4), 53, ">i", 0), InvalidRecord),
    ],
)
def test_what_no_producer_may_send_is_refused(batch: bytearray, refusal: type[ApiError]) -> None:
    with pytest.raises(refusal):
        check_batch(batch)


def test_a_stored_batch_may_have_fewer_records_than_offsets() -> None:
    compacted = with_field(build.batch(3), 57, ">i", 2)
    assert check_stored(compacted).next_offset == 3


def test_stamping_a_place_leaves_the_crc_true() -> None:
    batch = build.batch(2)
    stamp(batch, Offset(100), LeaderEpoch(7))
    header = check_batch(batch)
    assert (header.base_offset, header.leader_epoch, header.last_offset) == (100, 7, 101)


def test_stamping_time_gives_every_record_the_brokers() -> None:
    batch = build.batch(2, timestamp_ms=5)
    stamp_time(batch, TimestampMs(900))
    header = check_stored(batch)
    assert header.attributes & LOG_APPEND_TIME
    assert header.max_timestamp_ms == 900
    assert [record.timestamp_ms for record in records(batch)] == [900, 900]


def test_a_buffer_of_batches_is_walked_to_the_last_whole_one() -> None:
    first, second = build.batch(1), build.batch(2)
    found = [(header.record_count, len(view)) for header, view in batches(first + second)]
    assert found == [(1, len(first)), (2, len(second))]
    assert len(list(batches((first + second)[:-1]))) == 1
    assert list(batches(first[:20])) == []
    with pytest.raises(CorruptBatch):
        list(batches(first + bytes(100)))


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("other", Codec)
def test_records_survive_another_codec(codec: Codec, other: Codec) -> None:
    written = [
        Record(
            offset=Offset(number),
            timestamp_ms=TimestampMs(50 - number),
            key=b"key" if number % 2 else None,
            value=b"value" * number,
        )
        for number in range(20)
    ]
    batch = recompress(build_batch(written, codec=codec), other, decompressed_bytes_max=1 << 20)
    assert check_batch(batch).codec is other
    assert list(records(batch)) == written


@pytest.mark.parametrize("count", [0, 2, 2**31 - 1])
def test_a_record_count_that_lies_is_noticed_when_records_are_read(count: int) -> None:
    with pytest.raises(InvalidRecord):
        list(records(with_field(build.batch(1, value=b"x"), 57, ">i", count)))


def test_an_unknown_codec_cannot_be_opened() -> None:
    with pytest.raises(UnsupportedCompression):
        list(records(with_field(build.batch(), ATTRIBUTES_AT, ">h", 7)))


@pytest.mark.parametrize("kind", MarkerKind)
def test_a_marker_says_how_a_transaction_ended(kind: MarkerKind) -> None:
    marker = Marker(kind, 12)
    batch = build_marker(
        marker,
        producer_id=ProducerId(4),
        producer_epoch=ProducerEpoch(1),
        timestamp_ms=build.NOW_MS,
    )
    header = check_stored(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 1, -1)
    assert read_marker(batch) == marker
    (record,) = records(batch)
    assert record.key == bytes([0, 0, 0, kind])
    assert record.value == bytes([0, 0, 0, 0, 0, 12])


def test_other_control_records_end_no_transaction() -> None:
    leader_change = build_batch([Record(key=bytes([0, 0, 0, 2]), value=b"")], is_control=True)
    assert read_marker(leader_change) is None


@pytest.mark.parametrize(
    "record",
    [Record(key=None, value=b""), Record(key=b"\0", value=b""), Record(key=bytes(4), value=b"\0")],
)
def test_a_control_record_that_is_too_short_is_invalid(record: Record) -> None:
    with pytest.raises(InvalidRecord):
        read_marker(build_batch([record], is_control=True))


def test_every_topic_may_expand_a_batch_to_eight_mebibytes() -> None:
    assert decompressed_bytes_max(1000) == 8 << 20
    assert decompressed_bytes_max(1 << 20) == 16 << 20


def test_attributes_that_only_a_broker_sets_are_refused_by_name() -> None:
    for attributes, refusal, text in (
        (CONTROL, InvalidRecord, "control batches are written by brokers only"),
        (LOG_APPEND_TIME, InvalidTimestamp, "log append time is set by brokers only"),
        (DELETE_HORIZON, InvalidRecord, "delete horizons are set by brokers only"),
        *(
            (bit, InvalidRecord, "attribute bits 7 to 15 are set by brokers only")
            for bit in (0x80, 0x100, 0x200, 0x400, 0x800, 0x4000, -0x8000)
        ),
    ):
        with pytest.raises(refusal, match=text):
            check_batch(with_field(build.batch(), ATTRIBUTES_AT, ">h", attributes))


@pytest.mark.parametrize(
    "batch", [build.batch(), build.batch(producer_id=4, producer_epoch=0, base_sequence=0)]
)
def test_attributes_of_brokers_are_refused_from_every_producer(batch: bytearray) -> None:
    with pytest.raises(InvalidRecord, match="attribute bits 7 to 15"):
        check_batch(with_field(batch, ATTRIBUTES_AT, ">h", 0x80 | Codec.GZIP))


def test_a_control_batch_whose_record_was_compacted_away_ends_no_transaction() -> None:
    marker = build_marker(
        Marker(MarkerKind.COMMIT, 1),
        producer_id=ProducerId(4),
        producer_epoch=ProducerEpoch(1),
        timestamp_ms=build.NOW_MS,
    )
    empty = empty_batch(read_header(marker), keeps_producer=True)
    assert check_stored(empty).is_control
    assert read_marker(empty) is None


def test_a_batch_without_a_producer_is_checked_in_short() -> None:
    plain = build.batch(3, timestamp_ms=50, codec=Codec.LZ4)
    assert check_plain(plain) == (2, 50, 52)
    damaged = bytearray(plain)
    damaged[-1] ^= 1
    for other in (
        damaged,
        plain[: HEADER_BYTES - 1],
        plain + plain,
        build.batch(producer_id=4, producer_epoch=0, base_sequence=0),
        with_field(plain, 16, ">b", 1),
        with_field(plain, 57, ">i", 2),
        with_field(plain, ATTRIBUTES_AT, ">h", LOG_APPEND_TIME),
    ):
        assert check_plain(other) is None
