"""Deadlines of all groups of a shard, in one heap.

A group's deadline moves with every heartbeat, nearly always into the future. So each group has one
entry, at a time that may be too early and is never too late.
"""

from collections.abc import Iterator
from heapq import heappop, heappush


class GroupDeadlines:
    """Owned by a shard's machine."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._noted_ms: dict[str, int] = {}  # of the one entry of each group that counts

    def note(self, group_id: str, deadline_ms: int | None) -> None:
        """Bring a group's entry forward if its deadline is earlier."""
        noted_ms = self._noted_ms.get(group_id)
        if deadline_ms is not None and (noted_ms is None or deadline_ms < noted_ms):
            self._noted_ms[group_id] = deadline_ms
            heappush(self._heap, (deadline_ms, group_id))

    def next_ms(self) -> int | None:
        """The first time at which a group may be due."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> Iterator[str]:
        """Remove and yield the ids of groups that may be due; each has to be noted again."""
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, group_id = heappop(self._heap)
            if self._noted_ms.get(group_id) == due_ms:
                del self._noted_ms[group_id]
                yield group_id
