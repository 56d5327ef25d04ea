"""The window of a share partition as ranges of adjacent offsets of one state.

The ranges cover the window without holes, in order. A range is split when a part of it changes; the
boundaries that a change has touched are remembered, and `settle` joins what is equal there again.
So a change costs as much as it touches, however many ranges there are.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from ottla.queues.share_state import Cause, DeliveryState, StateBatch

_AVAILABLE = DeliveryState.AVAILABLE
_ACQUIRED = DeliveryState.ACQUIRED
_ACKNOWLEDGED = DeliveryState.ACKNOWLEDGED
_ARCHIVING = DeliveryState.ARCHIVING
_ARCHIVED = DeliveryState.ARCHIVED
_NO_CAUSE = Cause.NONE  # a global is found sooner than a member of an enum


class Range:
    """Adjacent offsets of one state.

    `until_ms` is the end of the lock of an acquired range, and of the wait of an available one.
    """

    __slots__ = (
        "cause",
        "count",
        "end",
        "is_sending",
        "member",
        "reason",
        "start",
        "state",
        "until_ms",
    )

    def __init__(self, start: int, end: int, state: DeliveryState, count: int) -> None:
        assert start < end, "a range is not empty"
        self.start = start
        self.end = end
        self.state = state
        self.count = count
        self.member = ""
        self.until_ms = 0
        self.cause = _NO_CAUSE  # of the end of a range that is archiving
        self.is_sending = False  # its dead letters have a sequence number
        self.reason = ""  # that a consumer gave for rejecting it

    @property
    def size(self) -> int:
        return self.end - self.start

    def is_like(self, other: "Range") -> bool:
        """True if the two can be one; of finished records the count does not matter."""
        if self.state is not other.state:
            return False
        return self.state.is_final or self._detail() == other._detail()

    def _detail(self) -> tuple[int, str, int, Cause, bool, str]:
        return self.count, self.member, self.until_ms, self.cause, self.is_sending, self.reason

    def as_batch(self) -> StateBatch:
        """The range as it is written: without the end of a lock, for no other clock knows it."""
        return tuple.__new__(
            StateBatch,
            (
                self.start,
                self.end - 1,
                self.state,
                self.count,
                0 if self.state is _ACQUIRED else self.until_ms,
                self.cause,
                self.is_sending,
                self.member,
                self.reason,
            ),
        )

    def tail(self, offset: int) -> "Range":
        """Cut the range at an offset; returns the part from there on."""
        rest = Range(offset, self.end, self.state, self.count)
        rest.member, rest.until_ms = self.member, self.until_ms
        rest.cause, rest.is_sending, rest.reason = self.cause, self.is_sending, self.reason
        self.end = offset
        return rest


class Ranges:
    """The ranges between the start offset, below which all is finished, and the end offset."""

    def __init__(self, start: int) -> None:
        self.start_offset = start
        self.end_offset = start
        self._items: list[Range] = []
        self._starts: list[int] = []  # of `_items`
        self._counts = dict.fromkeys(DeliveryState, 0)  # records of each state
        self._touched: set[int] = set()  # boundaries that may have become needless

    def __iter__(self) -> Iterator[Range]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def count(self, state: DeliveryState) -> int:
        """How many records are in this state."""
        return self._counts[state]

    @property
    def unfinished_count(self) -> int:
        """Records of the window that may be delivered again."""
        return self._counts[_AVAILABLE] + self._counts[_ACQUIRED]

    @property
    def complete_count(self) -> int:
        """Records of the window that are finished."""
        return self._counts[_ACKNOWLEDGED] + self._counts[_ARCHIVED]

    def extend(self, end: int, state: DeliveryState, count: int) -> Range:
        """A new range from the end offset on."""
        start = self.end_offset
        item = Range(start, end, state, count)
        self._touched.add(start)
        self._items.append(item)
        self._starts.append(start)
        self._counts[state] += end - start
        self.end_offset = end
        return item

    def change(self, item: Range, state: DeliveryState, count: int) -> None:
        """Change a whole range; what belonged to its old state is reset."""
        size = item.end - item.start
        self._counts[item.state] -= size
        self._counts[state] += size
        item.state = state
        item.count = count
        item.member = item.reason = ""
        item.until_ms = 0
        item.cause = _NO_CAUSE
        item.is_sending = False
        self._touched.add(item.start)
        self._touched.add(item.end)

    def within(self, start: int, end: int) -> list[Range]:
        """The ranges of these offsets, split so that they begin and end there."""
        start = max(start, self.start_offset)
        end = min(end, self.end_offset)
        if start >= end:
            return []
        known = self.at(start)
        if known is not None and known.start == start and known.end == end:
            return [known]  # as for a record that was acquired alone
        self.split(start)
        self.split(end)
        return self.overlapping(start, end)

    def held_whole(self, member: str, first: int, last: int) -> Range | None:
        """The range of exactly these offsets, if the member holds it; `last` is inside."""
        item = self.at(first)
        if (
            item is not None
            and item.start == first
            and item.end == last + 1
            and item.state is _ACQUIRED
            and item.member == member
        ):
            return item
        return None

    def overlapping(self, start: int, end: int) -> list[Range]:
        first = max(bisect_right(self._starts, start) - 1, 0)
        last = bisect_left(self._starts, end)
        return [item for item in self._items[first:last] if item.end > start]

    def split(self, offset: int) -> None:
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return
        item = self._items[index]
        if item.start < offset < item.end:
            self._items.insert(index + 1, item.tail(offset))
            self._starts.insert(index + 1, offset)
            self._touched.add(offset)

    def settle(self) -> None:
        """Join adjacent ranges that are equal; move the start over finished ones."""
        touched, items = self._touched, self._items
        if not touched:
            return
        if len(items) > 1:
            for boundary in sorted(touched):
                self._join(boundary)
        touched.clear()
        finished = 0
        for item in items:
            if not item.state.is_final:
                break
            self._counts[item.state] -= item.end - item.start
            finished += 1
        if finished:
            del items[:finished]
            del self._starts[:finished]
        self.start_offset = items[0].start if items else self.end_offset

    def _join(self, boundary: int) -> None:
        index = bisect_left(self._starts, boundary)
        if not 0 < index < len(self._items) or self._starts[index] != boundary:
            return
        before, item = self._items[index - 1], self._items[index]
        if before.is_like(item):
            before.end = item.end
            del self._items[index]
            del self._starts[index]

    def first_available(self, now_ms: int) -> int:
        """The first offset that is available and does not wait; the end offset if there is none."""
        if self._counts[_AVAILABLE]:
            for item in self._items:
                if item.state is _AVAILABLE and item.until_ms <= now_ms:
                    return item.start
        return self.end_offset

    def waiting_count(self, now_ms: int) -> int:
        """Records that are available and wait."""
        return sum(
            item.size for item in self._items if item.state is _AVAILABLE and item.until_ms > now_ms
        )

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """The next time at which a lock or a wait ends."""
        return min(
            (
                item.until_ms
                for item in self._items
                if item.state is _ACQUIRED or (item.state is _AVAILABLE and item.until_ms > now_ms)
            ),
            default=None,
        )

    def at(self, offset: int) -> Range | None:
        """The range of an offset; None outside of the window."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or offset >= self._items[index].end:
            return None
        return self._items[index]

    def acquired(self) -> Iterable[Range]:
        return [item for item in self._items if item.state is _ACQUIRED]

    def archiving(self) -> list[Range]:
        if not self._counts[_ARCHIVING]:
            return []
        return [item for item in self._items if item.state is _ARCHIVING]
