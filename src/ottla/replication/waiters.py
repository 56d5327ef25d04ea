"""Waiters for a partition's high watermark, or durable offset, to pass an offset; watchers.

A watcher returns again and again, and is notified when the partition is worth another read.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

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


class PartitionWatcher(Protocol):
    """A reader's session, as far as a partition calls it. Reads nothing in these calls."""

    def note_appended(self) -> None:
        """There is more in the log, committed or not. Called only if it watches appends."""
        ...

    def note_committed(self) -> None:
        """The high watermark has risen, or the log's start."""
        ...

    def note_changed(self) -> None:
        """The partition has another leader, epoch or replicas, or must know of every fetch."""
        ...


class Watchers:
    """The watchers of one partition: those of followers watch appends, those of consumers not."""

    __slots__ = ("_of_commits", "of_appends")

    def __init__(self) -> None:
        self.of_appends: dict[PartitionWatcher, None] = {}  # to be iterated only
        self._of_commits: dict[PartitionWatcher, None] = {}

    def watch_commits(self, watcher: PartitionWatcher) -> None:
        """Notify `watcher` of commits and changes until `remove`."""
        self._of_commits[watcher] = None

    def watch_appends(self, watcher: PartitionWatcher) -> None:
        """Notify `watcher` of appends, commits and changes until `remove`."""
        self.of_appends[watcher] = None
        self._of_commits[watcher] = None

    def remove(self, watcher: PartitionWatcher) -> None:
        self.of_appends.pop(watcher, None)
        self._of_commits.pop(watcher, None)

    def note_appended(self) -> None:
        for watcher in self.of_appends:
            watcher.note_appended()

    def note_committed(self) -> None:
        for watcher in self._of_commits:
            watcher.note_committed()

    def note_changed(self) -> None:
        for watcher in self._of_commits:
            watcher.note_changed()
