"""Formats records for `consume`: by a template, or as one line of JSON."""

import base64
import json
import re
from collections.abc import Callable
from typing import Any, Final

from ottla.client.positions import format_time
from ottla.errors import UsageRefused
from ottla.model import TopicPartition
from ottla.records.batch import Record

Print = Callable[[TopicPartition, Record], bytes]  # formats one record

_EMPTY: Final = b""
_PLACEHOLDERS: Final[dict[str, Print]] = {
    "n": lambda tp, record: tp.topic.encode(),
    "p": lambda tp, record: b"%d" % tp.partition,
    "o": lambda tp, record: b"%d" % record.offset,
    "t": lambda tp, record: format_time(record.timestamp_ms).encode(),
    "T": lambda tp, record: b"%d" % record.timestamp_ms,
    "k": lambda tp, record: record.key or _EMPTY,
    "v": lambda tp, record: record.value or _EMPTY,
    "K": lambda tp, record: b"%d" % _length(record.key),
    "V": lambda tp, record: b"%d" % _length(record.value),
    "h": lambda tp, record: _headers_text(record.headers),
    "%": lambda tp, record: b"%",
}
FORMAT_HELP: Final = (
    "%v value, %k key, %o offset, %p partition, %t time, %T time in ms, %h headers, %n topic,"
    " %V and %K length of value and key (-1 for null), %% percent sign; escapes \\n \\t \\0 \\\\"
)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN: Final = re.compile(r"%(.?)|\\(.?)|([^%\\]+)", re.DOTALL)


def compile_template(template: str) -> Print:
    """Compile a template into a function; text outside of placeholders is printed as is."""
    parts = [_part(match) for match in _TOKEN.finditer(template)]
    return lambda tp, record: b"".join([part(tp, record) for part in parts])


def _part(match: re.Match[str]) -> Print:
    placeholder, escape, text = match.groups()
    if text is not None:
        return _constant(text.encode())
    if escape is not None:
        if escape not in _ESCAPES:
            raise UsageRefused(f"unknown escape \\{escape} in --format: {FORMAT_HELP}")
        return _constant(_ESCAPES[escape])
    if placeholder not in _PLACEHOLDERS:
        raise UsageRefused(f"unknown placeholder %{placeholder} in --format: {FORMAT_HELP}")
    return _PLACEHOLDERS[placeholder]


def _constant(text: bytes) -> Print:
    return lambda tp, record: text


def line_template(*, keys: bool, headers: bool) -> str:
    """The template without --format and --json."""
    return ("%h\\t" if headers else "") + ("%k\\t" if keys else "") + "%v\\n"


def json_line(tp: TopicPartition, record: Record) -> bytes:
    """The record as a line of JSON, which `produce --format json` accepts."""
    fields = {"topic": tp.topic, "partition": tp.partition, **json_fields(record)}
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def json_fields(record: Record) -> dict[str, Any]:
    """The JSON fields of a record; bytes that are not UTF-8 are base64 under another name."""
    fields: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **_field("key", record.key),
        **_field("value", record.value),
    }
    if record.headers:
        fields["headers"] = [
            {"key": name, **_field("value", value)} for name, value in record.headers
        ]
    return fields


def _field(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _headers_text(headers: tuple[tuple[str, bytes | None], ...]) -> bytes:
    return b",".join(name.encode() + b"=" + (value or _EMPTY) for name, value in headers)


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)
