"""Positions in a log as users write them (--from, --until): an end, an offset or a time."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

from ottla.errors import UsageRefused
from ottla.model import Offset, TimestampMs

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 24 * 3_600_000,
    "w": 7 * 24 * 3_600_000,
}
_UNITS_SHOWN: Final = 2
_DURATION_MS_MAX: Final = timedelta.max // timedelta(milliseconds=1)
_PART: Final = re.compile(r"(\d+)(ms|[smhdw])", re.ASCII)
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_EXAMPLES: Final = "beginning, end, 42, -10, 2026-11-15T00:00Z or -2h"
_OFFSET_MAX: Final = 2**63 - 1


class Edge(Enum):
    """The two ends of a log."""

    BEGINNING = "beginning"
    END = "end"


@dataclass(frozen=True, slots=True)
class AtOffset:
    """The record with this offset, in every partition that is read."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that is not older than this."""

    timestamp_ms: TimestampMs


@dataclass(frozen=True, slots=True)
class BeforeEnd:
    """An offset counted back from the end of every partition that is read."""

    count: int


LogPosition = Edge | AtOffset | BeforeEnd | AtTime


def parse_log_position(text: str, now_ms: TimestampMs) -> LogPosition:
    """Parse a position; without a zone a time is UTC, `-2h` is before now, `-10` before the end."""
    word = text.strip()
    if word in {edge.value for edge in Edge}:
        return Edge(word)
    digits = word.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        if int(digits) > _OFFSET_MAX:
            raise UsageRefused(f"offset too large: {word}; the largest is {_OFFSET_MAX}")
        return AtOffset(Offset(int(word))) if digits == word else BeforeEnd(int(digits))
    if word.startswith("-") and _DURATION.fullmatch(word, 1):
        return AtTime(time_before(now_ms, parse_duration_ms(word[1:])))
    return AtTime(parse_time(word, _EXAMPLES))


def parse_duration_ms(text: str) -> int:
    """Parse a duration such as 90s, 2h or 1d12h."""
    if not _DURATION.fullmatch(text.strip()):
        raise UsageRefused(f"not a duration: {text!r}; write 90s, 30m, 2h, 1d12h or 500ms")
    duration_ms = sum(int(count) * _UNITS_MS[unit] for count, unit in _PART.findall(text))
    if duration_ms > _DURATION_MS_MAX:
        raise UsageRefused(f"duration too long: {text}")
    return duration_ms


def format_duration(duration_ms: int) -> str:
    """A duration as `parse_duration_ms` reads it, in its two largest units: 1d12h, 2h5m, 300ms."""
    parts, left_ms = list[str](), duration_ms
    for unit in ("w", "d", "h", "m", "s", "ms"):
        count, left_ms = divmod(left_ms, _UNITS_MS[unit])
        if count and not (unit == "ms" and parts):
            parts.append(f"{count}{unit}")
        if len(parts) == _UNITS_SHOWN:
            break
    return "".join(parts) or "0ms"


def time_before(now_ms: TimestampMs, duration_ms: int) -> TimestampMs:
    """The time `duration_ms` before now, but not before 1970."""
    return TimestampMs(max(0, now_ms - duration_ms))


def parse_time(text: str, examples: str = "2026-11-15T00:00Z") -> TimestampMs:
    """Parse an ISO 8601 time; without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageRefused(f"not a position in a log: {text!r}; write {examples}") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    since_1970 = time - datetime(1970, 1, 1, tzinfo=UTC)
    return TimestampMs(max(0, since_1970 // timedelta(milliseconds=1)))


def format_local_time(timestamp_ms: int) -> str:
    """A timestamp as ISO 8601 in the local time zone; the plain number if it is out of range."""
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
        return time.astimezone().isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)


def format_time(timestamp_ms: TimestampMs) -> str:
    """A timestamp as ISO 8601; the plain number if it is out of range."""
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
