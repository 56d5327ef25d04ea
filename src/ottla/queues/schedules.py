"""Schedules: cron expressions in a time zone, and when they are due next."""

from datetime import UTC, datetime, timedelta
from typing import Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_ZONE_NAME_MAX = 64
_CRON_MAX = 128


class InvalidSchedule(Exception):
    """A cron expression or a time zone that cannot be read, or that is never due."""


class Schedule:
    """A cron expression (five fields, as Debian's cron reads them) in a time zone.

    A time that a change of the clock skips is due right after it; one that comes twice, once. For
    expressions with a wildcard hour or minute, elapsed time counts instead.
    """

    def __init__(self, cron: str, zone: ZoneInfo) -> None:
        self._cron = cron
        self._zone = zone

    @classmethod
    def read(cls, cron: bytes | None, zone: bytes | None) -> Self:
        """From the headers of a record; without a zone the expression is in UTC."""
        try:
            text = (cron or b"").decode("ascii").strip()
            name = (zone or b"UTC").decode("ascii").strip()
        except UnicodeDecodeError:
            raise InvalidSchedule("ottla.cron and ottla.timezone must be ASCII") from None
        if len(text) > _CRON_MAX or len(text.split()) != 5:
            raise InvalidSchedule(f"ottla.cron must have five fields, not {text[:_CRON_MAX]!r}")
        if not name or len(name) > _ZONE_NAME_MAX:
            raise InvalidSchedule(f"ottla.timezone {name[:_ZONE_NAME_MAX]!r} is unknown")
        try:
            found = ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            raise InvalidSchedule(
                f"ottla.timezone {name!r} is unknown: use a name such as Europe/Prague"
            ) from None
        try:
            CronSim(text, datetime(2026, 1, 1, tzinfo=found))
        except CronSimError as problem:
            raise InvalidSchedule(f"ottla.cron {text!r} cannot be read: {problem}") from None
        return cls(text, found)

    def next_ms(self, after_ms: int) -> int:
        """The first time after `after_ms`."""
        after = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=after_ms)
        try:
            due = next(CronSim(self._cron, after.astimezone(self._zone)))
        except (StopIteration, CronSimError, OverflowError):
            raise InvalidSchedule(f"ottla.cron {self._cron!r} is never due") from None
        return int(due.astimezone(UTC).timestamp()) * 1000
