"""Parses a line of input for `produce`: text, hexadecimal digits, or JSON."""

import base64
import binascii
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ottla.errors import UsageRefused

Header = tuple[str, bytes | None]

_JSON_FIELDS: Final = frozenset(
    {"key", "key_base64", "value", "value_base64", "headers", "timestamp", "partition"}
)
# `consume --json` prints these; a copy of a topic gets its own.
_JSON_IGNORED: Final = frozenset({"topic", "offset"})
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class InputFormat(StrEnum):
    """The format of a line of input."""

    LINES = "lines"
    JSON = "json"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to write; partition and time are optional."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineReader:
    """Parses lines into records; `key`, `headers` and `partition` are the defaults."""

    format: InputFormat = InputFormat.LINES
    key_separator: bytes | None = None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None

    def read(self, line: bytes) -> OutgoingRecord:
        """The record that `line` (without its newline) describes, or UsageRefused."""
        if self.format is InputFormat.JSON:
            return self._read_json(line)
        decode = _from_hex if self.format is InputFormat.HEX else bytes
        if self.key_separator is None:
            return OutgoingRecord(decode(line), self.key, self.headers, None, self.partition)
        key, separator, value = line.partition(self.key_separator)
        if not separator:
            raise UsageRefused(no_separator(self.key_separator))
        return OutgoingRecord(decode(value), decode(key), self.headers, None, self.partition)

    def _read_json(self, line: bytes) -> OutgoingRecord:
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as problem:
            raise UsageRefused(f"not JSON: wrong at column {problem.colno}") from None
        except ValueError:  # bytes in no encoding of JSON
            raise UsageRefused("not JSON: it is not UTF-8") from None
        if not isinstance(fields, dict):
            raise UsageRefused('not a JSON object such as {"key": "k", "value": "v"}')
        if unknown := sorted(fields.keys() - _JSON_FIELDS - _JSON_IGNORED):
            raise UsageRefused(
                f"unknown field {', '.join(unknown)}: known are {', '.join(sorted(_JSON_FIELDS))}"
            )
        if not fields.keys() & {"value", "value_base64"}:
            raise UsageRefused('no "value"; write "value": null for a tombstone')
        has_key = fields.keys() & {"key", "key_base64"}
        partition = _number(fields, "partition", _INT32_MAX)
        return OutgoingRecord(
            value=_bytes_of(fields, "value"),
            key=_bytes_of(fields, "key") if has_key else self.key,
            headers=self.headers + _headers_of(fields.get("headers")),
            timestamp_ms=_number(fields, "timestamp", _INT64_MAX),
            partition=self.partition if partition is None else partition,
        )


def no_separator(separator: bytes) -> str:
    """The error of a line without a key."""
    return f"no key separator {separator.decode(errors='backslashreplace')!r}"


def parse_header(text: str) -> Header:
    """Parse the NAME=VALUE of --header."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageRefused(f"--header {text!r} is not NAME=VALUE")
    return name, value.encode()


def _from_hex(digits: bytes) -> bytes:
    try:
        return bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        raise UsageRefused("not hexadecimal digits, two for each byte") from None


def _bytes_of(fields: dict[str, Any], name: str) -> bytes | None:
    """Text as UTF-8, base64 decoded, anything else as compact JSON; null is null."""
    coded = f"{name}_base64"
    if coded in fields:
        if name in fields:
            raise UsageRefused(f"both {name} and {coded}: leave one out")
        return _from_base64(fields[coded], coded)
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return _utf8(value, name)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageRefused(f"{name} has half a surrogate pair: use {name}_base64") from None


def _from_base64(text: object, name: str) -> bytes:
    if not isinstance(text, str):
        raise UsageRefused(f"{name} is not text")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UsageRefused(f"{name} is not base64") from None


def _headers_of(headers: object) -> tuple[Header, ...]:
    """Headers from a list of {"key": ..., "value": ...}, or from an object."""
    match headers:
        case None:
            return ()
        case dict():
            return tuple(
                (name, _bytes_of({"value": value}, "value")) for name, value in headers.items()
            )
        case list():
            return tuple(_header_of(header) for header in headers)
        case _:
            raise UsageRefused("headers is neither a list nor an object")


def _header_of(header: object) -> Header:
    if not isinstance(header, dict) or not isinstance(header.get("key"), str):
        raise UsageRefused('a header is not {"key": "name", "value": "text"}')
    return header["key"], _bytes_of(header, "value")


def _number(fields: dict[str, Any], name: str, high: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
        raise UsageRefused(f"{name} is not a whole number between 0 and {high}")
    return value
