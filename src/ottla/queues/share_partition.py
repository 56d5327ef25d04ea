"""A partition as a share group reads it: who has acquired which records, and what is finished.

The window reaches from the start offset, below which everything is finished, to the end offset,
from which on nothing has been acquired yet. Inside it adjacent offsets of one state are one range,
which is split when a part of it changes, and joined again with adjacent ranges that are equal.

                acquire                accept
    AVAILABLE ----------> ACQUIRED ----------------> ACKNOWLEDGED
        ^                  |    |  reject, gap, or released at the delivery limit
        +------------------+    +------------------> ARCHIVED
         release, lock ended,
         member gone

Nothing is written when records are acquired. Every other change returns a `StateWrite`; a caller
that cannot have it written drops the whole object and begins again from what was written last.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ottla.errors import InvalidRequest
from ottla.model import Offset
from ottla.queues.errors import InvalidRecordState
from ottla.queues.share_state import DeliveryState, StateBatch, StateRead, StateWrite

_AVAILABLE = DeliveryState.AVAILABLE
_ACQUIRED = DeliveryState.ACQUIRED
_ARCHIVED = DeliveryState.ARCHIVED


class AcknowledgeType(IntEnum):
    """Types of acknowledgements; the numbers are Kafka's."""

    GAP = 0  # there is no record at the offset
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4  # keep the record for another lock duration


class ShareLimits(NamedTuple):
    """Settings of a share group, as far as its partitions use them."""

    deliveries_max: int = 5
    locks_max: int = 2000  # unfinished records in the window
    lock_ms: int = 30_000
    allows_renewal: bool = True


class Stretch(NamedTuple):
    """Adjacent offsets of the log; half-open."""

    start: Offset
    end: Offset
    has_records: bool  # else nothing is delivered: markers, aborted transactions, gaps


class Acquired(NamedTuple):
    """Adjacent offsets that a member has acquired; `last` is inside, as on the wire."""

    first: Offset
    last: Offset
    deliveries: int  # this one included


class Acknowledgement(NamedTuple):
    """A member's acknowledgement of adjacent offsets: one type for all, or one for each."""

    first: Offset
    last: Offset
    types: Sequence[int]


class _Range:
    """Adjacent offsets of one state; `member` and `lock_ms` count while it is acquired."""

    __slots__ = ("count", "end", "lock_ms", "member", "start", "state")

    def __init__(self, start: int, end: int, state: DeliveryState, count: int) -> None:
        assert start < end, "a range is not empty"
        self.start = start
        self.end = end
        self.state = state
        self.count = count
        self.member = ""
        self.lock_ms = 0

    def is_like(self, other: "_Range") -> bool:
        """True if the two can be one; of finished records the count does not matter."""
        if self.state is not other.state:
            return False
        if self.state.is_final:
            return True
        if self.count != other.count:
            return False
        return self.state is _AVAILABLE or (
            (self.member, self.lock_ms) == (other.member, other.lock_ms)
        )


def _start(item: _Range) -> int:
    return item.start


@dataclass(slots=True)
class SharePartition:
    """Owned by the leader of the partition; made by `restore`."""

    start_offset: int
    end_offset: int
    _ranges: list[_Range] = field(default_factory=list)  # they cover the window, in order
    _changed: list[StateBatch] = field(default_factory=list)  # since the last write

    @classmethod
    def restore(cls, state: StateRead) -> "SharePartition":
        """The share partition as it was last written; its start offset is decided."""
        start = int(state.start_offset)
        assert start >= 0, "a share partition begins when its start offset is decided"
        made = cls(start, start)
        for batch in state.batches:
            if batch.last < made.end_offset:
                continue
            first = max(int(batch.first), made.end_offset)
            if first > made.end_offset:  # acquired before the crash, and never written
                made._extend(first, _AVAILABLE, 0)
            made._extend(batch.last + 1, batch.state, batch.deliveries)
        made._join()
        return made

    # Acquiring

    def next_offset(self) -> int:
        """The first offset that can be acquired, as far as there is a record."""
        for item in self._ranges:
            if item.state is _AVAILABLE:
                return item.start
        return self.end_offset

    def has_room(self, limits: ShareLimits) -> bool:
        """True if records behind the end of the window may be acquired."""
        return self.unfinished_count < limits.locks_max

    @property
    def unfinished_count(self) -> int:
        """Records in the window that are not finished."""
        return sum(r.end - r.start for r in self._ranges if not r.state.is_final)

    def acquire(
        self,
        member: str,
        found: Iterable[Stretch],
        limits: ShareLimits,
        records_max: int,
        now_ms: int,
        *,
        is_strict: bool = False,
    ) -> list[Acquired]:
        """Acquire records for a member; `found` is the log from `next_offset` on, without holes.

        Whole batches are acquired, also if that is more than `records_max`, unless `is_strict`.
        Records that were delivered often already come in ever smaller portions, the last time one
        alone: what kills its consumer must not take others with it.
        """
        acquired: list[_Range] = []
        left = records_max
        for stretch in found:
            if left <= 0:
                break
            if not stretch.has_records:
                self._archive(stretch)
                continue
            cut = stretch.end
            if is_strict:
                cut = Offset(min(cut, max(stretch.start, self.next_offset()) + left))
            taken, is_throttled = self._take(stretch.start, cut, limits, bool(acquired))
            acquired += taken
            left -= sum(item.end - item.start for item in taken)
            if is_throttled or self.end_offset < cut:
                break
        for item in acquired:
            item.state, item.member = _ACQUIRED, member
            item.count += 1
            item.lock_ms = now_ms + limits.lock_ms
        result = _acquired(acquired)
        self._join()
        return result

    def _take(
        self, start: int, end: int, limits: ShareLimits, has_others: bool
    ) -> tuple[list[_Range], bool]:
        """The available ranges of a stretch, the window being extended; True if the next ones
        must not be in the same response."""
        taken: list[_Range] = []
        for item in self._within(start, min(end, self.end_offset)):
            if item.state is not _AVAILABLE:
                continue
            portion = portion_max(item.count, item.end - item.start, limits.deliveries_max)
            if portion is None:
                taken.append(item)
                continue
            if not (taken or has_others):
                self._split(item.start + portion)
                taken.append(item)
            return taken, True
        if end > self.end_offset and self.has_room(limits):
            assert start <= self.end_offset, "the log was read without holes"
            taken.append(self._extend(end, _AVAILABLE, 0))
        return taken, False

    def _archive(self, stretch: Stretch) -> None:
        for item in self._within(stretch.start, min(stretch.end, self.end_offset)):
            if item.state is _AVAILABLE:
                self._change(item, _ARCHIVED, item.count)
        if stretch.end > self.end_offset:
            assert stretch.start <= self.end_offset, "the log was read without holes"
            self._change(self._extend(stretch.end, _AVAILABLE, 0), _ARCHIVED, 0)

    # Acknowledging

    def acknowledge(
        self,
        member: str,
        acknowledgements: Sequence[Acknowledgement],
        limits: ShareLimits,
        now_ms: int,
        *,
        may_renew: bool,
    ) -> StateWrite | None:
        """Change all of these offsets, or none: then it raises why.

        Offsets below the start offset are finished already, and ignored.
        """
        runs = list(_runs(acknowledgements, self.start_offset, self.end_offset))
        for start, end, kind in runs:
            if kind is AcknowledgeType.RENEW and not (may_renew and limits.allows_renewal):
                raise InvalidRequest("renewing is not asked for by the request, or not allowed")
            for item in self._overlapping(start, end):
                if item.state is not _ACQUIRED or item.member != member:
                    raise InvalidRecordState(
                        f"offset {max(item.start, start)} is not acquired by this member"
                    )
        for start, end, kind in runs:
            for item in self._within(start, end):
                self._acknowledge(item, kind, limits, now_ms)
        return self.take_write()

    def _acknowledge(
        self, item: _Range, kind: AcknowledgeType, limits: ShareLimits, now_ms: int
    ) -> None:
        match kind:
            case AcknowledgeType.RENEW:
                item.lock_ms = now_ms + limits.lock_ms
            case AcknowledgeType.ACCEPT:
                self._change(item, DeliveryState.ACKNOWLEDGED, item.count)
            case AcknowledgeType.RELEASE:
                self._release(item, limits)
            case AcknowledgeType.REJECT | AcknowledgeType.GAP:
                self._change(item, _ARCHIVED, item.count)

    # Giving back

    def expire(self, limits: ShareLimits, now_ms: int) -> StateWrite | None:
        """End the locks whose time is over."""
        for item in self._ranges:
            if item.state is _ACQUIRED and item.lock_ms <= now_ms:
                self._release(item, limits)
        return self.take_write()

    def next_lock_ms(self) -> int | None:
        """The time at which `expire` next changes something."""
        return min((r.lock_ms for r in self._ranges if r.state is _ACQUIRED), default=None)

    def release_member(
        self, member: str, limits: ShareLimits, *, counts: bool
    ) -> StateWrite | None:
        """Give back what a member holds; unless it `counts`, as if it had not been delivered."""
        for item in self._ranges:
            if item.state is _ACQUIRED and item.member == member:
                if counts:
                    self._release(item, limits)
                else:
                    self._change(item, _AVAILABLE, item.count - 1)
        return self.take_write()

    def _release(self, item: _Range, limits: ShareLimits) -> None:
        is_last = item.count >= limits.deliveries_max
        self._change(item, _ARCHIVED if is_last else _AVAILABLE, item.count)

    def note_log_start(self, offset: int) -> StateWrite | None:
        """Forget records that the log has no longer."""
        if offset <= self.start_offset:
            return None
        if offset > self.end_offset:
            self._extend(offset, _AVAILABLE, 0)
        for item in self._within(self.start_offset, offset):
            item.state = _ARCHIVED
        self._changed.append(
            StateBatch(Offset(self.start_offset), Offset(offset - 1), _ARCHIVED, 0)
        )
        return self.take_write()

    # What is written

    def take_write(self) -> StateWrite | None:
        """The changes since the last write; None without any."""
        self._join()
        if not self._changed:
            return None
        start = self.start_offset
        batches = tuple(
            batch._replace(first=Offset(max(batch.first, start)))
            for batch in self._changed
            if batch.last >= start
        )
        self._changed = []
        complete = sum(r.end - r.start for r in self._ranges if r.state.is_final)
        return StateWrite(Offset(start), complete, batches)

    def _change(self, item: _Range, state: DeliveryState, count: int) -> None:
        item.state, item.count, item.member, item.lock_ms = state, count, "", 0
        self._changed.append(StateBatch(Offset(item.start), Offset(item.end - 1), state, count))

    # Ranges

    def _extend(self, end: int, state: DeliveryState, count: int) -> _Range:
        item = _Range(self.end_offset, end, state, count)
        self._ranges.append(item)
        self.end_offset = end
        return item

    def _within(self, start: int, end: int) -> list[_Range]:
        """The ranges of these offsets, split so that they begin and end there."""
        start = max(start, self.start_offset)
        if start >= end:
            return []
        self._split(start)
        self._split(end)
        return self._overlapping(start, end)

    def _overlapping(self, start: int, end: int) -> list[_Range]:
        first = max(bisect_right(self._ranges, start, key=_start) - 1, 0)
        found = []
        for item in self._ranges[first:]:
            if item.start >= end:
                break
            if item.end > start:
                found.append(item)
        return found

    def _split(self, offset: int) -> None:
        index = bisect_right(self._ranges, offset, key=_start) - 1
        if index < 0:
            return
        item = self._ranges[index]
        if not item.start < offset < item.end:
            return
        rest = _Range(offset, item.end, item.state, item.count)
        rest.member, rest.lock_ms = item.member, item.lock_ms
        item.end = offset
        self._ranges.insert(index + 1, rest)

    def _join(self) -> None:
        """Join adjacent ranges that are equal; move the start over finished ones."""
        joined: list[_Range] = []
        for item in self._ranges:
            if joined and joined[-1].is_like(item):
                joined[-1].end = item.end
            elif joined or not item.state.is_final:
                joined.append(item)
        self._ranges = joined
        self.start_offset = joined[0].start if joined else self.end_offset


def portion_max(count: int, size: int, deliveries_max: int) -> int | None:
    """How many records that were delivered `count` times are acquired at once; None for any.

    From half of the limit on, and not before the second delivery, each portion is half as large as
    the last; before the last delivery it is one record.
    """
    first = max(2, deliveries_max // 2)
    if count < first:
        return None
    if count + 1 >= deliveries_max:
        return 1
    return max(1, size >> (count - first + 1))


def _acquired(ranges: Sequence[_Range]) -> list[Acquired]:
    found: list[Acquired] = []
    for item in ranges:
        last = found[-1] if found else None
        if last is not None and last.last + 1 == item.start and last.deliveries == item.count:
            found[-1] = last._replace(last=Offset(item.end - 1))
        else:
            found.append(Acquired(Offset(item.start), Offset(item.end - 1), item.count))
    return found


def _runs(
    acknowledgements: Sequence[Acknowledgement], start: int, end: int
) -> Iterator[tuple[int, int, AcknowledgeType]]:
    """Adjacent offsets with one type, half-open, from `start` on."""
    before = -1
    for first, last, types in acknowledgements:
        if not before < first <= last:
            raise InvalidRequest("acknowledged offsets must ascend and not overlap")
        before = last
        if not types or len(types) not in {1, last - first + 1}:
            raise InvalidRequest("an acknowledgement has one type, or one for each offset")
        if not all(0 <= kind <= AcknowledgeType.RENEW for kind in types):
            raise InvalidRequest("0 to 4 are the types of acknowledgements")
        if last >= end:
            raise InvalidRequest(f"offset {last} was never acquired")
        if len(types) == 1:
            if last >= start:
                yield max(first, start), last + 1, AcknowledgeType(types[0])
            continue
        run = max(first, start)
        for at in range(run, last + 1):
            if at == last or types[at + 1 - first] != types[at - first]:
                yield run, at + 1, AcknowledgeType(types[at - first])
                run = at + 1
