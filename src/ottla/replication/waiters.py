"""Those who wait until a partition's mark passes an offset."""

from collections import deque
from collections.abc import Callable

from ottla.errors import ApiError
from ottla.model import Offset

Settled = Callable[[ApiError | None], None]


class OffsetWaiters:
    """First come, first woken: appends give out rising offsets, so a queue is already in order."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[tuple[Offset, Settled]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, offset: Offset, settled: Settled) -> None:
        """Call `settled` once the mark is at `offset` or beyond, or there is no hope for it."""
        self._queue.append((offset, settled))

    def advance(self, reached: Offset) -> None:
        queue = self._queue
        while queue and queue[0][0] <= reached:
            queue.popleft()[1](None)

    def fail(self, error: ApiError) -> None:
        """Nobody will reach anything any more: the partition has been lost."""
        queue, self._queue = self._queue, deque()
        for _, settled in queue:
            settled(error)
