"""Waiters for a partition's high watermark, or durable offset, to pass an offset."""

from collections import deque
from collections.abc import Callable

from ottla.errors import ApiError
from ottla.model import Offset

Settled = Callable[[ApiError | None], None]


class OffsetWaiters:
    """A queue, woken in order: appends give out rising offsets."""

    __slots__ = ("queue",)

    def __init__(self) -> None:
        self.queue: deque[tuple[Offset, Settled]] = deque()  # to be looked at only

    def __len__(self) -> int:
        return len(self.queue)

    def add(self, offset: Offset, settled: Settled) -> None:
        """Call `settled` once `offset` is reached, or with an error if it cannot be any more."""
        self.queue.append((offset, settled))

    def advance(self, reached: Offset) -> None:
        queue = self.queue
        while queue and queue[0][0] <= reached:
            queue.popleft()[1](None)

    def fail(self, error: ApiError) -> None:
        """The partition has been lost: fail all waiters."""
        queue, self.queue = self.queue, deque()
        for _, settled in queue:
            settled(error)


class Readers(dict[Callable[[], None], None]):
    """Callbacks that are called when there is more to read, in the order in which they came.

    `soon` runs a callback in the loop's next turn.
    """

    __slots__ = ("_is_waking", "_soon")

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        super().__init__()
        self._soon = soon
        self._is_waking = False

    def wake_soon(self) -> None:
        if not self._is_waking:
            self._is_waking = True
            self._soon(self.wake)

    def wake(self) -> None:
        self._is_waking = False
        for wake in list(self):
            wake()
