"""Records as slices of their batch."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ottla.errors import ApiError, InvalidRecord
from ottla.model import TimestampMs
from ottla.records.batch import Record, build_batch, read_header, records
from ottla.records.compression import Codec
from ottla.records.record_slices import check_keys, find_letters, payload_of, rebuild

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


@given(letters=some_records, codec=st.sampled_from(Codec))
def test_what_is_found_is_what_is_there(letters: list[Record], codec: Codec) -> None:
    batch = build_batch(letters, codec=codec)
    header = read_header(batch)
    found = find_letters(payload_of(batch, header, BYTES_MAX), header.record_count)
    assert [(key, is_tombstone) for *_, key, is_tombstone in found] == [
        (letter.key, letter.value is None) for letter in letters
    ]


@given(
    letters=some_records,
    horizon_ms=st.one_of(st.none(), st.integers(0, 2**42).map(TimestampMs)),
    data=st.data(),
)
def test_a_rebuilt_batch_holds_the_chosen_records_unchanged(
    letters: list[Record], horizon_ms: TimestampMs | None, data: st.DataObject
) -> None:
    batch = build_batch(letters)
    header = read_header(batch)
    payload = payload_of(batch, header, BYTES_MAX)
    chosen = sorted(data.draw(st.sets(st.integers(0, len(letters) - 1), min_size=1)))
    found = find_letters(payload, header.record_count)
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
        found = find_letters(payload, count)
    except ApiError:
        return
    assert found[-1][1] == len(payload)


def test_a_record_without_key_is_refused() -> None:
    batch = build_batch([Record(key=b""), Record(value=b"no key")], codec=Codec.LZ4)
    with pytest.raises(InvalidRecord, match="needs a key"):
        check_keys(batch, read_header(batch), decompressed_bytes_max=BYTES_MAX)
