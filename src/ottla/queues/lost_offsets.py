"""Offsets that a member of a share group had acquired and lost before it acknowledged them.

They may be finished by another member. Below the start offset of a share partition that cannot be
seen any more, and acknowledgements are ignored there, as in Kafka: without this memory the first
member's late acknowledgement would succeed for what another one has finished.
"""

from bisect import bisect_left, bisect_right
from typing import Final

_RANGES_MAX: Final = 1000  # of a member in a partition; the lowest offsets are forgotten first


class LostOffsets:
    """Half-open ranges of offsets, in order, that do not touch."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, end: int) -> None:
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]
        if len(self._starts) > _RANGES_MAX:
            del self._starts[0], self._ends[0]

    def discard(self, start: int, end: int) -> None:
        """Forget offsets, for the member has acquired them again."""
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if first >= last:
            return
        kept = [(self._starts[first], start), (end, self._ends[last - 1])]
        kept = [one for one in kept if one[0] < one[1]]
        self._starts[first:last] = [one[0] for one in kept]
        self._ends[first:last] = [one[1] for one in kept]

    def first_in(self, start: int, end: int) -> int | None:
        """The first lost offset of a range; None if there is none."""
        index = bisect_right(self._ends, start)
        if index == len(self._starts):
            return None
        found = max(self._starts[index], start)
        return found if found < end else None
