"""What `produce` makes of a line."""

import pytest

from ottla.cli.record_columns import DecodedRecords
from ottla.cli.record_input import InputFormat, LineReader, OutgoingRecord, parse_header
from ottla.cli.record_output import json_lines
from ottla.errors import UsageRefused
from ottla.model import Offset, TimestampMs, TopicPartition
from ottla.records.batch import Record

JSON = LineReader(format=InputFormat.JSON)


def test_a_line_is_a_value() -> None:
    assert LineReader().read(b"hello \xff") == OutgoingRecord(b"hello \xff")


def test_an_empty_line_is_an_empty_value_not_a_null() -> None:
    assert LineReader().read(b"") == OutgoingRecord(b"")


def test_a_key_separator_splits_once() -> None:
    record = LineReader(key_separator=b":").read(b"k:v:w")
    assert (record.key, record.value) == (b"k", b"v:w")


def test_a_line_without_the_separator_is_refused() -> None:
    with pytest.raises(UsageRefused, match=r"no key separator '\\t'"):
        LineReader(key_separator=b"\t").read(b"no tab here")


def test_options_hold_for_every_line() -> None:
    reader = LineReader(key=b"k", headers=(("h", b"1"),), partition=2)
    assert reader.read(b"v") == OutgoingRecord(b"v", b"k", (("h", b"1"),), None, 2)


def test_hexadecimal_digits_are_bytes() -> None:
    reader = LineReader(format=InputFormat.HEX, key_separator=b" ")
    record = reader.read(b"00ff 0a0B")
    assert (record.key, record.value) == (b"\x00\xff", b"\n\x0b")


@pytest.mark.parametrize("line", [b"0", b"zz", "é".encode()])
def test_other_digits_are_refused(line: bytes) -> None:
    with pytest.raises(UsageRefused, match="hexadecimal"):
        LineReader(format=InputFormat.HEX).read(line)


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b'{"value": "v"}', OutgoingRecord(b"v")),
        (b'{"value": null, "key": "k"}', OutgoingRecord(None, b"k")),
        (b'{"value_base64": "/wA="}', OutgoingRecord(b"\xff\x00")),
        (b'{"value": {"id": 1, "n": "\xc3\xa9"}}', OutgoingRecord('{"id":1,"n":"é"}'.encode())),
        (b'{"value": 7}', OutgoingRecord(b"7")),
        (b'{"value": "", "key": ""}', OutgoingRecord(b"", b"")),
        (
            b'{"value": "v", "timestamp": 5, "partition": 1}',
            OutgoingRecord(b"v", timestamp_ms=5, partition=1),
        ),
        (b'{"value": "v", "headers": {"a": "1"}}', OutgoingRecord(b"v", headers=(("a", b"1"),))),
        (
            b'{"value": "v", "headers": [{"key": "a", "value": null}, {"key": "a"}]}',
            OutgoingRecord(b"v", headers=(("a", None), ("a", None))),
        ),
    ],
)
def test_json_says_it_all(line: bytes, record: OutgoingRecord) -> None:
    assert JSON.read(line) == record


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"key": "k"}', 'no "value"'),
        (b'{"value": "v", "vlaue": 1}', "unknown field vlaue"),
        (b'{"value": "v", "value_base64": "eA=="}', "both value and value_base64"),
        (b'{"value_base64": "*"}', "not base64"),
        (b'{"value_base64": 1}', "not text"),
        (b'{"value": "v", "partition": -1}', "partition is not a whole number"),
        (b'{"value": "v", "partition": true}', "partition is not a whole number"),
        (b'{"value": "v", "timestamp": "now"}', "timestamp is not a whole number"),
        (b'{"value": "v", "headers": 1}', "neither a list nor an object"),
        (b'{"value": "v", "headers": ["a"]}', "a header is not"),
        (b'{"value": "\\ud800"}', "surrogate"),
    ],
)
def test_json_that_says_something_else_is_refused(line: bytes, reason: str) -> None:
    with pytest.raises(UsageRefused, match=reason):
        JSON.read(line)


def test_what_consume_prints_produce_reads() -> None:
    record = Record(
        offset=Offset(9),
        timestamp_ms=TimestampMs(5),
        key=b"\xff",
        value=b"v",
        headers=(("h", b"\xfe"),),
    )
    assert JSON.read(
        json_lines(TopicPartition("t", 1), DecodedRecords([record]))
    ) == OutgoingRecord(b"v", b"\xff", (("h", b"\xfe"),), timestamp_ms=5, partition=1)


def test_a_header_option_is_a_name_and_a_value() -> None:
    assert parse_header("a=b=c") == ("a", b"b=c")
    for wrong in ("a", "=b", ""):
        with pytest.raises(UsageRefused, match="NAME=VALUE"):
            parse_header(wrong)
