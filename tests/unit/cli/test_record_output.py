"""What `consume` prints for a record."""

import json
from dataclasses import replace

import pytest

from ottla.cli.record_columns import DecodedRecords
from ottla.cli.record_output import Print, compile_template, json_lines, line_template
from ottla.errors import UsageRefused
from ottla.model import Offset, TimestampMs, TopicPartition
from ottla.records.batch import Record

TP = TopicPartition("orders", 3)
RECORD = Record(
    offset=Offset(42),
    timestamp_ms=TimestampMs(1_794_700_800_000),
    key=b"k1",
    value=b"hello",
    headers=(("trace", b"abc"), ("empty", None)),
)


def printed_by(printer: Print, *records: Record) -> bytes:
    return printer(TP, DecodedRecords(list(records)))


TOMBSTONE = replace(RECORD, value=None, key=None, headers=())


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("%v\\n", b"hello\n"),
        ("%n[%p]@%o %t %T", b"orders[3]@42 2026-11-15T00:00:00.000Z 1794700800000"),
        ("%k=%v (%h)", b"k1=hello (trace=abc,empty=)"),
        ("%K %V", b"2 5"),
        ("100%%\\t\\\\", b"100%\t\\"),
        ("ünïcode %v", "ünïcode hello".encode()),
        ("", b""),
    ],
)
def test_a_template_is_filled_from_the_record(template: str, text: bytes) -> None:
    assert printed_by(compile_template(template), RECORD) == text


def test_null_prints_as_nothing_and_has_length_minus_one() -> None:
    assert printed_by(compile_template("[%k][%v][%h]%K%V"), TOMBSTONE) == b"[][][]-1-1"


@pytest.mark.parametrize("template", ["%x", "%", "\\q", "trailing \\"])
def test_an_unknown_place_is_refused_and_the_known_ones_are_named(template: str) -> None:
    with pytest.raises(UsageRefused, match="%v value, %k key"):
        compile_template(template)


def test_a_value_that_looks_like_a_template_is_printed_as_it_is() -> None:
    assert printed_by(compile_template("%v"), replace(RECORD, value=b"%k\\n")) == b"%k\\n"


@pytest.mark.parametrize(
    ("keys", "headers", "text"),
    [
        (False, False, b"hello\n"),
        (True, False, b"k1\thello\n"),
        (True, True, b"trace=abc,empty=\tk1\thello\n"),
    ],
)
def test_keys_and_headers_come_before_the_value(keys: bool, headers: bool, text: bytes) -> None:
    assert printed_by(compile_template(line_template(keys=keys, headers=headers)), RECORD) == text


def test_json_has_everything_on_one_line() -> None:
    line = printed_by(json_lines, replace(RECORD, value=b"two\nlines"))
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp": 1_794_700_800_000,
        "key": "k1",
        "value": "two\nlines",
        "headers": [{"key": "trace", "value": "abc"}, {"key": "empty", "value": None}],
    }


def test_bytes_that_are_no_text_are_base64_in_json() -> None:
    printed = json.loads(printed_by(json_lines, replace(RECORD, key=b"\xff\x00", value=None)))
    assert printed["key_base64"] == "/wA="
    assert "key" not in printed
    assert printed["value"] is None
