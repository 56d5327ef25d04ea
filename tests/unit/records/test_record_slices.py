"""Records as slices of their batch."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fakes import build
from ottla.errors import ApiError, InvalidRecord
from ottla.model import Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs
from ottla.records.batch import (
    HEADER_BYTES,
    Record,
    assemble,
    build_batch,
    read_header,
    records,
    stamp_time,
)
from ottla.records.compression import Codec
from ottla.records.record_slices import (
    SEARCHED_RECORDS_MAX,
    are_empty_batches,
    check_keys,
    empty_batch,
    first_since,
    payload_of,
    rebuild,
    slice_records,
)

BYTES_MAX = 1 << 20

some_records = st.lists(
    st.builds(
        Record,
        timestamp_ms=st.integers(0, 2**41).map(TimestampMs),
        key=st.one_of(st.none(), st.binary(max_size=200)),
        value=st.one_of(st.none(), st.binary(max_size=300)),
        headers=st.lists(st.tuples(st.text(max_size=3), st.none())).map(tuple),
    ),
    min_size=1,
    max_size=90,
)


@given(written=some_records, codec=st.sampled_from(Codec))
def test_what_is_found_is_what_is_there(written: list[Record], codec: Codec) -> None:
    batch = build_batch(written, codec=codec)
    header = read_header(batch)
    found = slice_records(payload_of(batch, header, BYTES_MAX), header.record_count)
    assert [(key, is_tombstone) for *_, key, is_tombstone in found] == [
        (record.key, record.value is None) for record in written
    ]


@given(
    written=some_records,
    horizon_ms=st.one_of(st.none(), st.integers(0, 2**42).map(TimestampMs)),
    data=st.data(),
)
def test_a_rebuilt_batch_holds_the_chosen_records_unchanged(
    written: list[Record], horizon_ms: TimestampMs | None, data: st.DataObject
) -> None:
    batch = build_batch(written)
    header = read_header(batch)
    payload = payload_of(batch, header, BYTES_MAX)
    chosen = sorted(data.draw(st.sets(st.integers(0, len(written) - 1), min_size=1)))
    found = slice_records(payload, header.record_count)
    smaller = rebuild(header, payload, [found[at] for at in chosen], delete_horizon_ms=horizon_ms)
    whole = list(records(batch))
    assert list(records(smaller)) == [whole[at] for at in chosen]
    again = read_header(smaller)
    assert (again.base_offset, again.last_offset) == (header.base_offset, header.last_offset)
    assert again.delete_horizon_ms == horizon_ms
    assert again.max_timestamp_ms == max(whole[at].timestamp_ms for at in chosen)


@given(payload=st.binary(max_size=60), count=st.integers(1, 5))
def test_garbage_is_refused_and_nothing_else(payload: bytes, count: int) -> None:
    try:
        found = slice_records(payload, count)
    except ApiError:
        return
    assert found[-1][1] == len(payload)


def test_a_record_without_key_is_refused() -> None:
    batch = build_batch([Record(key=b""), Record(value=b"no key")], codec=Codec.LZ4)
    with pytest.raises(InvalidRecord, match="needs a key"):
        check_keys(batch, read_header(batch), decompressed_bytes_max=BYTES_MAX)
    keyed = build_batch([Record(key=b""), Record(key=b"k")], codec=Codec.LZ4)
    check_keys(keyed, read_header(keyed), decompressed_bytes_max=BYTES_MAX)


@given(written=some_records, start=st.integers(0, 90), wanted_ms=st.integers(0, 2**42))
def test_the_first_record_since_a_time_is_the_one_a_full_decode_finds(
    written: list[Record], start: int, wanted_ms: int
) -> None:
    batch = build_batch(written)
    expected = [
        (record.offset, record.timestamp_ms)
        for record in records(batch)
        if record.offset >= start and record.timestamp_ms >= wanted_ms
    ]
    found = first_since(
        batch, Offset(start), TimestampMs(wanted_ms), decompressed_bytes_max=BYTES_MAX
    )
    assert found == (expected[0] if expected else None)


def test_an_empty_batch_keeps_its_offsets_and_its_producer_if_wanted() -> None:
    written = [Record(value=b"one"), Record(value=b"two")]
    producer = (ProducerId(5), ProducerEpoch(2), Sequence(40))
    header = read_header(
        build_batch(
            written,
            base_offset=Offset(10),
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
        )
    )
    kept = read_header(empty_batch(header, keeps_producer=True))
    assert (kept.base_offset, kept.last_offset, kept.record_count) == (10, 11, 0)
    assert (kept.producer_id, kept.producer_epoch, kept.last_sequence) == (5, 2, 41)
    bare = read_header(empty_batch(header, keeps_producer=False))
    assert (bare.base_offset, bare.last_offset, bare.record_count) == (10, 11, 0)
    assert (bare.producer_id, bare.producer_epoch, bare.base_sequence) == (-1, -1, -1)


def test_numbers_of_every_width_are_found_as_a_full_decode_finds_them() -> None:
    """One, two and three bytes of length, time, offset and key: each is read in its own way."""
    sizes = (0, 1, 63, 64, 8191, 8192, 20_000)
    written = [
        Record(
            timestamp_ms=TimestampMs(1_000_000 + sign * size),
            key=bytes(size),
            value=None if size == 64 else bytes(other),
        )
        for size in sizes
        for other in sizes
        for sign in (-1, 1)
    ]
    written += [Record(timestamp_ms=TimestampMs(number), key=None) for number in range(9000)]
    batch = build_batch(written)
    header = read_header(batch)
    payload = payload_of(batch, header, 1 << 24)
    found = slice_records(payload, header.record_count)
    assert [
        (header.base_timestamp_ms + time_ms, delta, key, is_tombstone)
        for _, _, time_ms, delta, key, is_tombstone in found
    ] == [
        (record.timestamp_ms, number, record.key, record.value is None)
        for number, record in enumerate(written)
    ]
    assert [end for _, end, *_ in found[:-1]] == [start for start, *_ in found[1:]]
    assert (found[0][0], found[-1][1]) == (0, len(payload))


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ("14 00 00 00 01 01 00", "a record exceeds its batch"),
        ("01 00 00 00 01 01 00", "a record exceeds its batch"),
        ("0a 00 00 00 04 61", "a key exceeds its record"),
        ("0a 00 00 00 02 61", "a key exceeds its record"),  # there is no room for a value
        ("0c 00 00 00 01 01 00 ff", "bytes are left over after the last record"),
        ("", "a record cannot be decoded"),
        ("ff ff ff ff ff ff", "a record cannot be decoded"),
    ],
)
def test_a_payload_that_is_no_record_is_refused_by_name(payload: str, complaint: str) -> None:
    with pytest.raises(InvalidRecord, match=complaint):
        slice_records(bytes.fromhex(payload), 1)


def test_a_batch_without_records_has_no_payload_whatever_its_codec_says() -> None:
    header = read_header(build_batch([Record(value=b"one")], codec=Codec.GZIP))
    empty = empty_batch(header, keeps_producer=True)
    claimed = read_header(empty)._replace(attributes=Codec.GZIP)
    assert payload_of(empty, claimed, BYTES_MAX) == b""
    assert slice_records(b"", 0) == []


def test_in_log_append_time_all_records_have_the_batchs() -> None:
    batch = build_batch([Record(value=b"v")] * 3, base_offset=Offset(10))
    stamp_time(batch, TimestampMs(900))

    def since(start: int, wanted_ms: int) -> tuple[int, int] | None:
        return first_since(
            batch, Offset(start), TimestampMs(wanted_ms), decompressed_bytes_max=BYTES_MAX
        )

    assert since(0, 900) == (10, 900)
    assert since(12, 1) == (12, 900)
    assert since(13, 900) is None
    assert since(0, 901) is None


def test_a_search_for_a_time_ends_after_so_many_records() -> None:
    batch = build_batch([Record(timestamp_ms=TimestampMs(5))] * (SEARCHED_RECORDS_MAX + 2))
    found = first_since(batch, Offset(0), TimestampMs(6), decompressed_bytes_max=BYTES_MAX)
    assert found == (SEARCHED_RECORDS_MAX, 5), "all before are older"
    behind = Offset(SEARCHED_RECORDS_MAX + 1)
    assert first_since(batch, behind, TimestampMs(6), decompressed_bytes_max=BYTES_MAX) == (
        behind,
        5,
    )


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ("14 00 00", "a record of 10 bytes exceeds its batch"),
        ("01 00 00", "a record of -1 bytes exceeds its batch"),
        ("ff ff ff ff ff ff", "a record cannot be decoded"),
    ],
)
def test_a_search_for_a_time_refuses_what_is_no_record(payload: str, complaint: str) -> None:
    header = read_header(build_batch([Record(value=b"v")]))
    batch = assemble(header, bytes.fromhex(payload))
    with pytest.raises(InvalidRecord, match=complaint):
        first_since(batch, Offset(0), TimestampMs(0), decompressed_bytes_max=BYTES_MAX)


def test_a_rebuilt_batch_in_log_append_time_keeps_its_time() -> None:
    written = [Record(timestamp_ms=TimestampMs(ms), key=b"k") for ms in (100, 50)]
    batch = build_batch(written)
    stamp_time(batch, TimestampMs(900))
    header = read_header(batch)
    payload = payload_of(batch, header, BYTES_MAX)
    smaller = rebuild(header, payload, slice_records(payload, 2)[1:])
    assert read_header(smaller).max_timestamp_ms == 900
    assert [(record.offset, record.timestamp_ms) for record in records(smaller)] == [(1, 900)]


@pytest.mark.parametrize("count", [1, 2, 500])
def test_batches_without_records_are_told_from_all_others(count: int) -> None:
    header = read_header(build.batch(3, producer_id=7, producer_epoch=1, base_sequence=5))
    empty = bytes(empty_batch(header, keeps_producer=True))
    assert are_empty_batches(empty * count)
    assert not are_empty_batches(empty * count + bytes(build.batch()))
    assert not are_empty_batches(empty * count + empty[:-1])
    long = bytes(build.batch(value=bytes(54)))  # two headers long, as it happens
    assert len(long) % HEADER_BYTES == 0
    assert not are_empty_batches(empty * count + long)
