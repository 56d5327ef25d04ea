"""Whatever records are packed into a batch come out of it again."""

import hypothesis.strategies as st
from hypothesis import given

from ottla.errors import ApiError
from ottla.model import Offset, TimestampMs
from ottla.records.batch import Record, build_batch, check_batch, check_stored, records
from ottla.records.compression import Codec

timestamps = st.integers(0, 2**42).map(TimestampMs)
written = st.builds(
    Record,
    timestamp_ms=timestamps,
    key=st.none() | st.binary(max_size=40),
    value=st.none() | st.binary(max_size=300),
    headers=st.lists(
        st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=4
    ).map(tuple),
)


@given(st.lists(written, min_size=1, max_size=20), st.sampled_from(Codec), st.integers(0, 2**60))
def test_records_come_out_as_they_went_in(
    sent: list[Record], codec: Codec, base_offset: int
) -> None:
    batch = build_batch(sent, codec=codec, base_offset=Offset(base_offset))
    header = check_batch(batch)
    received = list(records(batch))
    assert [record.offset for record in received] == [
        base_offset + number for number in range(len(sent))
    ]
    assert [(one.timestamp_ms, one.key, one.value, one.headers) for one in received] == [
        (one.timestamp_ms, one.key, one.value, one.headers) for one in sent
    ]
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in sent)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_refused(data: bytes) -> None:
    for check in (check_batch, check_stored):
        try:
            check(data)
        except ApiError:
            continue


@given(st.binary(max_size=100), st.sampled_from(Codec), st.integers(1, 50))
def test_any_payload_is_read_or_refused(payload: bytes, codec: Codec, count: int) -> None:
    batch = build_batch([Record()] * count)[:61] + payload
    batch[22] = codec
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    try:
        list(records(batch))
    except ApiError:
        return
