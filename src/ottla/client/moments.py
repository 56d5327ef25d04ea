"""What people write after --from and --until: a place in a log, by offset or by time."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

from ottla.errors import UsageRefused
from ottla.model import Offset, TimestampMs

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO: Final = re.compile(r"-(\d+)([smhdw])")
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
    if ago := _AGO.fullmatch(word):
        return AtTime(_before(now_ms, int(ago[1]), _UNITS[ago[2]], text))
    return AtTime(_parse_time(word, text))


def _before(now_ms: TimestampMs, count: int, unit: str, text: str) -> TimestampMs:
    try:
        span_ms = timedelta(**{unit: count}) // timedelta(milliseconds=1)
    except OverflowError:
        raise UsageRefused(f"{text!r} is longer ago than time goes back") from None
    return TimestampMs(max(0, now_ms - span_ms))


def _parse_time(word: str, text: str) -> TimestampMs:
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise UsageRefused(f"{text!r} is no place in a log: write {_EXAMPLES}") from None
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
