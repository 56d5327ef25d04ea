"""Formats records for `consume`: by a template, or as one line of JSON."""

import base64
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from ottla.cli.record_columns import RecordColumns
from ottla.client.positions import format_time
from ottla.errors import UsageRefused
from ottla.model import TopicPartition
from ottla.records.batch import Record
from ottla.records.record_codec import Headers

Print = Callable[[TopicPartition, RecordColumns], bytes]  # formats all records
_Column = Callable[[TopicPartition, RecordColumns], Sequence[bytes | int]]

_EMPTY: Final = b""
_PLACEHOLDERS: Final[dict[str, _Column]] = {
    "n": lambda tp, records: [tp.topic.encode()] * len(records),
    "p": lambda tp, records: [tp.partition] * len(records),
    "o": lambda tp, records: records.offsets(),
    "t": lambda tp, records: [format_time(time).encode() for time in records.timestamps_ms()],
    "T": lambda tp, records: records.timestamps_ms(),
    "k": lambda tp, records: [key or _EMPTY for key in records.record_keys()],
    "v": lambda tp, records: [value or _EMPTY for value in records.record_values()],
    "K": lambda tp, records: list(map(_length, records.record_keys())),
    "V": lambda tp, records: list(map(_length, records.record_values())),
    "h": lambda tp, records: list(map(_headers_text, records.record_headers())),
}
_NUMBERS: Final = frozenset("poTKV")
FORMAT_HELP: Final = (
    "%v value, %k key, %o offset, %p partition, %t time, %T time in ms, %h headers, %n topic,"
    " %V and %K length of value and key (-1 for null), %% percent sign; escapes \\n \\t \\0 \\\\"
)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_quote: Final = json.JSONEncoder(ensure_ascii=False).encode
_TOKEN: Final = re.compile(r"%(.?)|\\(.?)|([^%\\]+)", re.DOTALL)


def compile_template(template: str) -> Print:
    """Compile a template into a function; text outside of placeholders is printed as is."""
    columns, line = _parse_template(template)

    def fill(tp: TopicPartition, records: RecordColumns) -> bytes:
        filled = [column(tp, records) for column in columns]
        return b"".join([line % row for row in zip(*filled, strict=True)])

    def fill_one(tp: TopicPartition, records: RecordColumns) -> bytes:
        """`fill` for one column of bytes: `join` puts the text between, not a line at a time."""
        values: Sequence[bytes] = columns[0](tp, records)  # type: ignore[assignment]
        return before + (after + before).join(values) + after if values else b""

    if not columns:
        return lambda tp, records: line % () * len(records)
    if len(columns) == 1 and b"%b" in line:
        before, after = (text % () for text in line.split(b"%b"))
        return fill_one
    return fill


def _parse_template(template: str) -> tuple[list[_Column], bytes]:
    """The columns of a template, and a %-format of bytes for one record."""
    columns = list[_Column]()
    line = b""
    for match in _TOKEN.finditer(template):
        placeholder, escape, text = match.groups()
        if text is not None:
            line += text.encode()
        elif escape is not None:
            line += _unescape(escape)
        elif placeholder == "%":
            line += b"%%"
        else:
            if placeholder not in _PLACEHOLDERS:
                raise UsageRefused(f"unknown placeholder %{placeholder} in --format: {FORMAT_HELP}")
            columns.append(_PLACEHOLDERS[placeholder])
            line += b"%d" if placeholder in _NUMBERS else b"%b"
    return columns, line


def _unescape(escape: str) -> bytes:
    if escape not in _ESCAPES:
        raise UsageRefused(f"unknown escape \\{escape} in --format: {FORMAT_HELP}")
    return _ESCAPES[escape]


def line_template(*, keys: bool, headers: bool) -> str:
    """The template without --format and --json."""
    return ("%h\\t" if headers else "") + ("%k\\t" if keys else "") + "%v\\n"


def json_lines(tp: TopicPartition, records: RecordColumns) -> bytes:
    """Each record as a line of JSON, which `produce --format json` accepts."""
    place = f'{{"topic": {_quote(tp.topic)}, "partition": {tp.partition}, "offset": '
    lines = [
        f'{place}{offset}, "timestamp": {time_ms}, {_member("key", key)}, {_member("value", value)}'
        f"{_headers_member(headers)}}}\n"
        for offset, time_ms, key, value, headers in zip(
            records.offsets(),
            records.timestamps_ms(),
            records.record_keys(),
            records.record_values(),
            records.record_headers(),
            strict=True,
        )
    ]
    return "".join(lines).encode()


def _member(name: str, value: bytes | None) -> str:
    """`_field` as text of JSON, without an object for each record."""
    if value is None:
        return f'"{name}": null'
    try:
        return f'"{name}": {_quote(value.decode())}'
    except UnicodeDecodeError:
        return f'"{name}_base64": "{base64.b64encode(value).decode()}"'


def _headers_member(headers: Headers) -> str:
    if not headers:
        return ""
    return f', "headers": {json.dumps(_headers_list(headers), ensure_ascii=False)}'


def json_fields(record: Record) -> dict[str, Any]:
    """The JSON fields of a record; bytes that are not UTF-8 are base64 under another name."""
    fields: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **_field("key", record.key),
        **_field("value", record.value),
    }
    if record.headers:
        fields["headers"] = _headers_list(record.headers)
    return fields


def _headers_list(headers: Headers) -> list[dict[str, str | None]]:
    return [{"key": name, **_field("value", value)} for name, value in headers]


def _field(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _headers_text(headers: Headers) -> bytes:
    return b",".join(name.encode() + b"=" + (value or _EMPTY) for name, value in headers)


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)
