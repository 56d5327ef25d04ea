"""Records that are copied in parts are the same as decoded and encoded ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import InvalidRecord
from ottla.records.record_codec import Headers, read_record, write_record
from ottla.records.record_parts import encode_header, read_parts, write_parts

BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=80), BYTES), max_size=4).map(tuple)


@given(st.integers(-(2**40), 2**40), st.integers(0, 2**31 - 1), BYTES, BYTES, HEADERS, st.binary())
def test_a_copy_has_the_key_the_value_and_the_wanted_headers(
    delta_ms: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    before: bytes,
) -> None:
    payload = bytearray(before)
    write_record(payload, delta_ms, offset_delta, key, value, headers)
    parts = read_parts(bytes(payload), len(before))
    assert parts.timestamp_delta_ms == delta_ms
    assert [(one.name.decode(), one.value) for one in parts.headers] == list(headers)
    kept = [one.encoded for one in parts.headers[1:]]
    copy = bytearray()
    write_parts(copy, 7, parts.key_and_value, [*kept, encode_header("ottla.ticket", b"x" * 70)])
    expected = (0, 7, key, value, (*headers[1:], ("ottla.ticket", b"x" * 70)), len(copy))
    assert read_record(copy, 0) == expected


@given(st.data())
def test_a_record_that_is_cut_or_changed_is_refused_or_read_within_its_bounds(
    data: st.DataObject,
) -> None:
    payload = bytearray()
    write_record(payload, 0, 1, b"key", b"value", (("name", b"content"), ("other", None)))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    try:
        parts = read_parts(damaged, 0)
    except InvalidRecord:
        return
    taken = sum(len(one.encoded) for one in parts.headers) + len(parts.key_and_value)
    assert taken <= len(damaged)


def test_a_header_without_a_name_is_refused() -> None:
    payload = bytearray()
    write_record(payload, 0, 0, None, None, (("n", b"v"),))
    at = payload.index(b"n") - 1
    payload[at : at + 2] = b"\x01"
    payload[0] -= 2
    with pytest.raises(InvalidRecord, match="without a name"):
        read_parts(bytes(payload), 0)
