"""Those who wait until a partition's mark passes an offset."""

from collections import deque
from collections.abc import Callable

from ottla.errors import ApiError
from ottla.model import Offset

Settled = Callable[[ApiError | None], None]


class OffsetWaiters:
    """First come, first woken: appends give out rising offsets, so a queue is already in order."""

    __slots__ = ("queue",)

    def __init__(self) -> None:
        self.queue: deque[tuple[Offset, Settled]] = deque()  # to be looked at only

    def __len__(self) -> int:
        return len(self.queue)

    def add(self, offset: Offset, settled: Settled) -> None:
        """Call `settled` once the mark is at `offset` or beyond, or there is no hope for it."""
        self.queue.append((offset, settled))

    def advance(self, reached: Offset) -> None:
        queue = self.queue
        while queue and queue[0][0] <= reached:
            queue.popleft()[1](None)

    def fail(self, error: ApiError) -> None:
        """Nobody will reach anything any more: the partition has been lost."""
        queue, self.queue = self.queue, deque()
        for _, settled in queue:
            settled(error)
