"""The clock that says what is due: a wall clock that jumps ahead releases nothing early."""

from typing import Final

from ottla.model import TimestampMs

AHEAD_MS: Final = 600_000  # how long a wall clock is ahead until it is believed
_TOLERANCE_MS: Final = 50  # a wall clock is adjusted all the time


class DueClock:
    """The lesser of the wall clock and of the time since an anchor by a clock that never jumps.

    A wall clock that was set back is followed at once, and moves the anchor: records come late
    then, never early. One that was set forward is followed after ten minutes, also if that corrects
    a step back: a delay that began in between would else end early.
    """

    def __init__(self, wall_ms: int, steady_ms: int) -> None:
        self._anchor_ms = wall_ms - steady_ms
        self._ahead_since_ms: int | None = None
        self.moved_ms = 0  # by how much the anchor was moved last, until it is read

    def now_ms(self, wall_ms: int, steady_ms: int) -> TimestampMs:
        """The time that is compared with due times."""
        steady_now_ms = self._anchor_ms + steady_ms
        ahead_ms = wall_ms - steady_now_ms
        if ahead_ms <= 0:
            self._anchor_ms = wall_ms - steady_ms
            self._ahead_since_ms = None
            return TimestampMs(wall_ms)
        if ahead_ms <= _TOLERANCE_MS:
            self._ahead_since_ms = None
            return TimestampMs(steady_now_ms)
        if self._ahead_since_ms is None:
            self._ahead_since_ms = steady_ms
        if steady_ms - self._ahead_since_ms < AHEAD_MS:
            return TimestampMs(steady_now_ms)
        self._anchor_ms = wall_ms - steady_ms
        self._ahead_since_ms = None
        self.moved_ms = ahead_ms
        return TimestampMs(wall_ms)
