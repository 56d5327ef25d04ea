"""Fields of Produce and Fetch read by hand: never beyond the request, whatever it claims."""

import pytest

from ottla.errors import ProtocolViolation
from ottla.protocol.hot_fields import (
    check_element_count,
    read_compact_count,
    read_compact_string,
    read_compact_topic,
    read_count,
    read_slice,
    read_string,
    skip_tags,
    write_compact_string,
    write_compact_topic,
    write_string,
)


def view(text: str) -> memoryview:
    return memoryview(bytes.fromhex(text))


def test_strings_are_read_as_they_were_written() -> None:
    for write, read in ((write_string, read_string), (write_compact_string, read_compact_string)):
        out = bytearray(b"?")
        write(out, "gr\u00fcn")
        assert read(memoryview(out), 1) == ("gr\u00fcn", len(out))


def test_a_topic_is_a_name_or_an_id() -> None:
    for key in ("orders", bytes(range(16))):
        out = bytearray()
        write_compact_topic(out, key)
        assert read_compact_topic(memoryview(out), 0, isinstance(key, bytes)) == (key, len(out))


def test_null_is_a_length_of_its_own() -> None:
    assert read_string(view("ffff"), 0) == (None, 2)
    assert read_compact_string(view("00"), 0) == (None, 1)
    assert read_slice(view("00"), 0, -1) == (None, 0)


@pytest.mark.parametrize(
    "read",
    [
        lambda: read_string(view("0003 6161"), 0),
        lambda: read_compact_string(view("04 6161"), 0),
        lambda: read_slice(view("6161"), 0, 3),
        lambda: read_slice(view("6161"), 0, -2),
        lambda: read_count(view("00000002 00"), 0, 1),
        lambda: read_compact_count(view("03 00"), 0, 1),
        lambda: read_compact_count(view("00"), 0, 1),
        lambda: read_compact_topic(view("00"), 0, by_id=True),
        lambda: read_compact_topic(view("00"), 0, by_id=False),
        lambda: check_element_count(11, 10),
        lambda: skip_tags(view("09" + "0000" * 9), 0),
    ],
)
def test_what_exceeds_the_request_or_a_limit_is_a_violation(read: object) -> None:
    assert callable(read)
    with pytest.raises(ProtocolViolation):
        read()


def test_tags_are_skipped_whole() -> None:
    assert skip_tags(view("00 ff"), 0) == 1
    assert skip_tags(view("01 05 02 aaaa ff"), 0) == 5
