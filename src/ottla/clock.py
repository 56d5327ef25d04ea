"""Time as a dependency: whoever needs to know what time it is takes a Clock."""

import time
from typing import Protocol

from ottla.model import TimestampMs


class Clock(Protocol):
    """What may be asked of time. Production reads the machine's, simulation its own."""

    def now_ms(self) -> TimestampMs:
        """Wall-clock time: for timestamps that people and clients see. May step."""
        ...

    def monotonic_s(self) -> float:
        """Time that only goes forward: for deadlines and intervals."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000)

    def monotonic_s(self) -> float:
        return time.monotonic()
