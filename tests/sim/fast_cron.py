"""Cron in a simulation: a minute of an expression lasts a second, and times are known without it.

Cron knows no shorter time than a minute, and a simulation lasts half of one. So the clock of cron
expressions runs sixty times faster than the simulated one. It begins five minutes before the clock
is put forward in Prague.
"""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from ottla.queues.schedules import Schedule
from sim.loop import EPOCH_MS

MINUTE_MS: Final = 1000  # that a minute of an expression lasts
EVERY_MAX: Final = 4  # minutes
_BEGIN: Final = datetime(2024, 3, 31, 0, 55, tzinfo=UTC)
_BEGIN_MS: Final = int(_BEGIN.timestamp()) * 1000
_SPEED: Final = 60_000 // MINUTE_MS
# Full hours, with and without the change; a half and three quarters more than full ones.
_ZONES: Final = (None, "Europe/Prague", "America/St_Johns", "Asia/Kathmandu")


class Recurrence(NamedTuple):
    """Some minutes of every hour of a time zone; without one, of UTC."""

    first: int
    every: int
    zone: str | None

    @property
    def cron(self) -> str:
        return f"{self.first}-59/{self.every} * * * *"

    def due_ms(self, begin_ms: int, end_ms: int) -> tuple[int, ...]:
        """The simulated times behind `begin_ms` and before `end_ms`; found without cronsim."""
        zone = ZoneInfo(self.zone or "UTC")
        first = (begin_ms - EPOCH_MS) // MINUTE_MS + 1
        last = (end_ms - EPOCH_MS) // MINUTE_MS
        local = {at: (_BEGIN + timedelta(minutes=at)).astimezone(zone) for at in range(first, last)}
        return tuple(
            EPOCH_MS + at * MINUTE_MS
            for at, time in local.items()
            if time.minute >= self.first and (time.minute - self.first) % self.every == 0
        )


def draw_recurrence(rng: Random) -> Recurrence:
    every = rng.randint(1, EVERY_MAX)
    return Recurrence(rng.randrange(every), every, rng.choice(_ZONES))


def speed_up() -> None:
    """Let the clock of cron expressions run faster in this process, from now on."""
    real = Schedule.next_ms

    def next_ms(self: Schedule, after_ms: int) -> int:
        found_ms = real(self, _BEGIN_MS + (after_ms - EPOCH_MS) * _SPEED)
        return EPOCH_MS + (found_ms - _BEGIN_MS) // _SPEED

    setattr(Schedule, "next_ms", next_ms)  # noqa: B010  # mypy refuses to assign to a method
