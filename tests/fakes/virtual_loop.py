"""Time that passes only when everybody waits for it: no test has to be fast enough."""

import asyncio
import selectors

from ottla.model import TimestampMs


class _JumpingSelector(selectors.SelectSelector):
    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        assert ready or timeout is not None, "deadlock: every task waits and no timer is set"
        if not ready and timeout:
            self.loop.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer, and which is also the stores' clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s

    def now_ms(self) -> TimestampMs:
        return TimestampMs(int(self.now_s * 1000))
