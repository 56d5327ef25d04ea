"""Time as a dependency: code that needs the time takes a Clock."""

import time
from typing import Protocol

from ottla.model import TimestampMs


class Clock(Protocol):
    """A source of time: the machine's in production, a simulated one in tests."""

    def now_ms(self) -> TimestampMs:
        """Wall-clock time, for timestamps that clients see. May jump."""
        ...

    def monotonic_s(self) -> float:
        """Monotonic time, for deadlines and intervals."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000)

    # The function itself: two calls for each request are worth to be short.
    monotonic_s = staticmethod(time.monotonic)
