"""One record: its encoding, and the malformed ones that are refused."""

import struct

import pytest

from fakes import build
from ottla.errors import InvalidRecord
from ottla.records.batch import HEADER_BYTES, records
from ottla.records.record_codec import read_record, write_first_record, write_record


def test_a_record_is_decoded_as_it_was_encoded() -> None:
    headers = (("trace", b"1"), ("empty", b""), ("null", None))
    out = bytearray(b"??")
    write_record(out, -3, 7, b"key", None, headers)
    assert read_record(out, 2) == (-3, 7, b"key", None, headers, len(out))


def test_a_record_is_byte_for_byte_what_the_format_says() -> None:
    out = bytearray()
    write_record(out, 0, 1, b"k", b"", [("h", None)])
    assert out.hex(" ") == "14 00 00 02 02 6b 00 02 02 68 01"


@pytest.mark.parametrize(
    "body",
    [
        "20 00 00 00 01 01 00",  # longer than the batch
        "01",  # a negative length
        "0a 00 00 00 40 01",  # a key that reaches beyond its record
        "0e 00 00 00 01 01 02 01 00",  # a header without a name
        "0c 00 00 00 01 01 01",  # a negative count of headers
        "ff ff ff ff ff ff",  # a varint without an end
        "10 00 00 00 01 01 02 02 ff 01",  # a name that is not UTF-8
        "0e 00 00 00 01 01 00 00 00",  # bytes after the last header
    ],
)
def test_a_malformed_record_is_invalid(body: str) -> None:
    batch = build.batch()[:HEADER_BYTES] + bytes.fromhex(body)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with pytest.raises(InvalidRecord):
        list(records(batch))


@pytest.mark.parametrize("key_bytes", [0, 1, 63, 64, 9_000])
@pytest.mark.parametrize("value_bytes", [0, 1, 63, 64, 9_000])
def test_the_first_record_of_a_batch_is_written_like_any_other(
    key_bytes: int, value_bytes: int
) -> None:
    key, value = b"k" * key_bytes, b"v" * value_bytes
    first, any_other = bytearray(b"before"), bytearray(b"before")
    for _ in range(2):  # the second one is made of what is remembered
        write_first_record(first, key, value)
        write_record(any_other, 0, 0, key, value, ())
    assert first == any_other
