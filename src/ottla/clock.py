"""Time as a dependency: code that needs the time takes a Clock."""

import time
from collections.abc import Callable
from typing import Final, Protocol

from ottla.model import TimestampMs

_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


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

    def boot_s(self) -> float:
        """Monotonic time that goes on while the machine sleeps."""
        return time.clock_gettime(_BOOT_CLOCK)

    # The function itself: two calls for each request are worth to be short.
    monotonic_s = staticmethod(time.monotonic)


def steady_clock(clock: Clock) -> Callable[[], float]:
    """The function that tells time which never jumps, also while the machine sleeps if it can."""
    return clock.boot_s if isinstance(clock, SystemClock) else clock.monotonic_s
