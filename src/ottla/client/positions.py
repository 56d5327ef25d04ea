"""What people write after --from and --until: a place in a log, by offset or by time."""

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
_SPAN_MS_MAX: Final = timedelta.max // timedelta(milliseconds=1)
_PART: Final = re.compile(r"(\d+)(ms|[smhdw])", re.ASCII)
_SPAN: Final = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_EXAMPLES: Final = "beginning, end, 42, 2026-11-15T00:00Z or -2h"


class Edge(Enum):
    """The two places every log has."""

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


Moment = Edge | AtOffset | AtTime


def parse_moment(text: str, now_ms: TimestampMs) -> Moment:
    """Read a moment; a time without a zone is UTC, `-2h` counts back from now."""
    word = text.strip()
    if word in {edge.value for edge in Edge}:
        return Edge(word)
    if word.isascii() and word.isdigit():
        return AtOffset(Offset(int(word)))
    if word.startswith("-") and _SPAN.fullmatch(word, 1):
        return AtTime(before(now_ms, parse_span_ms(word[1:])))
    return AtTime(parse_time(word, _EXAMPLES))


def parse_span_ms(text: str) -> int:
    """Read a span of time such as 90s, 2h or 1d12h."""
    if not _SPAN.fullmatch(text.strip()):
        raise UsageRefused(f"{text!r} is no span of time: write 90s, 30m, 2h, 1d12h or 500ms")
    span_ms = sum(int(count) * _UNITS_MS[unit] for count, unit in _PART.findall(text))
    if span_ms > _SPAN_MS_MAX:
        raise UsageRefused(f"{text!r} is longer ago than time goes back")
    return span_ms


def before(now_ms: TimestampMs, span_ms: int) -> TimestampMs:
    """So long ago; nothing is older than 1970."""
    return TimestampMs(max(0, now_ms - span_ms))


def parse_time(text: str, examples: str = "2026-11-15T00:00Z") -> TimestampMs:
    """Read a time as ISO 8601 writes it; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageRefused(f"{text!r} is no place in a log: write {examples}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since_1970 = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return TimestampMs(max(0, since_1970 // timedelta(milliseconds=1)))


def format_time(timestamp_ms: TimestampMs) -> str:
    """A timestamp as people read it; what cannot be a date stays a number."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
