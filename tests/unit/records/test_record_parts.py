"""Records that are copied in parts are the same as decoded and encoded ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import InvalidRecord
from ottla.records.record_codec import Headers, read_record, write_record
from ottla.records.record_parts import (
    encode_header,
    encode_varint,
    read_headers,
    read_parts,
    write_parts,
)

# Lengths and deltas where a varint becomes longer are as likely as all others together.
BOUNDS = [0, 1, 57, 58, 63, 64, 127, 128, 8100, 8191, 8192, 16_383, 16_384, 70_000]
BYTES = st.none() | st.binary(max_size=200) | st.sampled_from(BOUNDS).map(bytes)
DELTAS_MS = st.integers(-(2**40), 2**40) | st.sampled_from([*BOUNDS, -1, -64, -65, -8192, -8193])
HEADERS = st.lists(st.tuples(st.text(max_size=80), BYTES), max_size=4).map(tuple)


@given(DELTAS_MS, st.integers(0, 2**31 - 1), BYTES, BYTES, HEADERS, st.binary())
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
    found_ms, key_and_value, encoded = read_parts(bytes(payload), len(before), len(payload))
    assert found_ms == delta_ms
    parts = read_headers(encoded)
    assert [(one.name.decode(), one.value) for one in parts] == list(headers)
    kept = [*(one.encoded for one in parts[1:]), encode_header("ottla.ticket", b"x" * 70)]
    copy = bytearray()
    write_parts(copy, 7, key_and_value, encode_varint(len(kept)) + b"".join(kept))
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
        _, key_and_value, encoded = read_parts(damaged, 0, len(damaged))
        assert len(encoded) + len(key_and_value) <= len(damaged)
        headers = read_headers(encoded)
    except InvalidRecord:
        return
    assert sum(len(one.encoded) for one in headers) <= len(encoded)


def test_a_header_without_a_name_is_refused() -> None:
    payload = bytearray()
    write_record(payload, 0, 0, None, None, (("n", b"v"),))
    at = payload.index(b"n") - 1
    payload[at : at + 2] = b"\x01"
    payload[0] -= 2
    _, _, encoded = read_parts(bytes(payload), 0, len(payload))
    with pytest.raises(InvalidRecord, match="without a name"):
        read_headers(encoded)
