"""Records as slices of their batch."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ottla.errors import ApiError, InvalidRecord
from ottla.model import Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs
from ottla.records.batch import Record, build_batch, read_header, records
from ottla.records.compression import Codec
from ottla.records.record_slices import (
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
