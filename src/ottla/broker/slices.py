"""Work on the event loop in slices: a large request does not block the others.

A handler that does something for every item of a request does it in steps: a generator that
returns the response, and yields on its way how much it has done since the last yield, in units of
about five microseconds. `start` runs it. Work of one slice is done at once, without a task; longer
work goes on as a coroutine that yields to the loop between two slices. Units are counted and no
clock is read: the same request is cut in the same way every time.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from ottla.errors import ProtocolViolation, ResponseTooLarge
from ottla.protocol.codec import Steps

T = TypeVar("T")

UNITS_PER_SLICE: Final = 500  # a few milliseconds
UNITS_MAX: Final = 3_000_000  # of one handler: any response that a client can use takes fewer
_LARGE_BYTES_MAX: Final = 64 << 20  # of requests that wait for their turn
_TURN_S: Final = 1.0  # after that the next begins, even if this one still waits


def start(steps: Steps[T]) -> T | Coroutine[Any, Any, T]:
    """The result, if it takes no more than one slice; else a coroutine that goes on."""
    try:
        _run_slice(steps)
    except StopIteration as over:
        result: T = over.value
        return result
    return _continue(steps)


async def finish(steps: Steps[T]) -> T:
    """The same for a caller that is a coroutine already."""
    try:
        _run_slice(steps)
    except StopIteration as over:
        result: T = over.value
        return result
    return await _continue(steps)


async def _continue(steps: Steps[T]) -> T:
    pace = Pace()
    try:
        while True:
            await pace.spend(UNITS_PER_SLICE)
            _run_slice(steps)
    except StopIteration as over:
        result: T = over.value
        return result


def _run_slice(steps: Steps[T]) -> None:
    left = UNITS_PER_SLICE
    while left > 0:
        left -= next(steps)


def parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """The items in parts of at most `size`; of no items, one empty part."""
    assert size > 0, "a part has room for an item"
    return [items[first : first + size] for first in range(0, len(items), size)] or [items]


class Pace:
    """Slices of a coroutine that does much work and need not wait for anything."""

    __slots__ = ("_left", "_spent")

    def __init__(self) -> None:
        self._left = UNITS_PER_SLICE
        self._spent = 0

    async def spend(self, units: int = 1) -> None:
        """Count work; yield to the loop when a slice is full."""
        self._left -= units
        if self._left > 0:
            return
        self._spent += UNITS_PER_SLICE - self._left
        if self._spent > UNITS_MAX:
            raise ResponseTooLarge("the response would be too large: ask for less at a time")
        self._left = UNITS_PER_SLICE
        await asyncio.sleep(0)

    async def begin_slice(self) -> None:
        """Yield to the loop, unless a slice has just begun: work follows that is a slice itself."""
        if self._left < UNITS_PER_SLICE:
            await self.spend(self._left)


class LargeRequests:
    """Large requests one after the other, so that only one has to fit into memory decoded.

    The turn of a request ends with its response, or after a second: a join may wait for minutes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_busy = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._bytes = 0

    @asynccontextmanager
    async def turn(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait for a turn, which lasts as long as the context."""
        if self._bytes + size_bytes > _LARGE_BYTES_MAX:
            raise ProtocolViolation("too many large requests at once: send them one by one")
        self._bytes += size_bytes
        try:
            await self._wait()
        finally:
            self._bytes -= size_bytes
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._let_next()

        timer = self._loop.call_later(_TURN_S, end)
        try:
            yield
        finally:
            timer.cancel()
            end()

    async def _wait(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        mine = self._loop.create_future()
        self._waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._let_next()  # the turn was given to this request already
            raise

    def _let_next(self) -> None:
        while self._waiting:
            following = self._waiting.popleft()
            if not following.done():
                following.set_result(None)
                return
        self._is_busy = False
