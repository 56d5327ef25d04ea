"""A partition as a share group reads it: who has acquired which records, and what is finished.

The window reaches from the start offset, below which everything is finished, to the end offset,
from which on nothing has been acquired yet. Inside it adjacent offsets of one state are one range.

                acquire                accept
    AVAILABLE ----------> ACQUIRED ----------------> ACKNOWLEDGED
        ^                  |    |  reject, gap, or released at the delivery limit
        +------------------+    +------------------> ARCHIVED, or ARCHIVING
         release, lock ended,                        until its dead letter is written
         member gone; it may have to wait

Acquiring is written only if the group's leases are durable. Every other change is a `StateWrite`; a
caller that cannot have it written drops the whole object and begins again from what was written.
All times are those of one clock, which does not jump.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.errors import InvalidRequest
from ottla.model import Offset
from ottla.queues.acknowledgements import (
    GROUP_BACKOFF,
    REASON_MAX,
    Acknowledgement,
    AcknowledgeType,
    Run,
    accepted_only,
    runs_of,
)
from ottla.queues.dead_records import DeadRecords
from ottla.queues.errors import InvalidRecordState
from ottla.queues.key_order import KeyOrder
from ottla.queues.share_limits import ShareLimits, portion_max
from ottla.queues.share_ranges import Range, Ranges
from ottla.queues.share_state import (
    Cause,
    DeliveryState,
    Sender,
    StateBatch,
    StateRead,
    StateWrite,
)

_AVAILABLE: Final = DeliveryState.AVAILABLE
_ACQUIRED: Final = DeliveryState.ACQUIRED
_ACKNOWLEDGED: Final = DeliveryState.ACKNOWLEDGED
_ARCHIVING: Final = DeliveryState.ARCHIVING
_ARCHIVED: Final = DeliveryState.ARCHIVED
_RENEW: Final = AcknowledgeType.RENEW
_DELIVERIES_MAX: Final = 2**15 - 1  # that are counted: the field on the wire has 16 bits


class Stretch(NamedTuple):
    """Adjacent offsets of the log; half-open."""

    start: Offset
    end: Offset
    has_records: bool  # else nothing is delivered: markers, aborted transactions, gaps
    is_expired: bool = False  # else they have no records, or are delivered


class Acquired(NamedTuple):
    """Adjacent offsets that a member has acquired; `last` is inside, as on the wire."""

    first: Offset
    last: Offset
    deliveries: int  # this one included


class SharePartition:
    """Owned by the leader of the partition; made by `restore`."""

    __slots__ = ("_changed", "_ranges", "dead", "order")

    def __init__(self, start: int, sender: Sender | None) -> None:
        self._ranges = Ranges(start)
        self._changed: list[StateBatch] = []  # since the last write
        self.dead = DeadRecords(self._ranges, sender, self._note)
        self.order: KeyOrder | None = None  # if records of a key are delivered one after the other

    @classmethod
    def restore(cls, state: StateRead, leased_until_ms: int = 0) -> "SharePartition":
        """The share partition as it was last written; its start offset is decided.

        Durable leases end at `leased_until_ms`.
        """
        start = int(state.start_offset)
        assert start >= 0, "a share partition begins when its start offset is decided"
        made = cls(start, state.sender)
        ranges = made._ranges
        for batch in state.batches:
            if batch.last < ranges.end_offset:
                continue
            if batch.first > ranges.end_offset:  # acquired before the crash, and never written
                ranges.extend(batch.first, _AVAILABLE, 0)
            item = ranges.extend(batch.last + 1, batch.state, batch.deliveries)
            is_held = batch.state is _ACQUIRED
            item.until_ms = leased_until_ms if is_held else batch.not_before_ms
            item.cause, item.is_sending = batch.cause, batch.is_sending
            item.member, item.reason = batch.member, batch.reason
        ranges.settle()
        return made

    @property
    def start_offset(self) -> int:
        return self._ranges.start_offset

    @property
    def end_offset(self) -> int:
        return self._ranges.end_offset

    # Acquiring

    def next_offset(self, now_ms: int) -> int:
        """The first offset that can be acquired, as far as there is a record."""
        return self._ranges.first_available(now_ms)

    def has_room(self, limits: ShareLimits, now_ms: int) -> bool:
        """True if records behind the end of the window may be acquired."""
        unfinished = self.unfinished_count
        if unfinished < limits.locks_max:
            return True
        if unfinished >= limits.locks_max + limits.waiting_max:
            return False
        return unfinished - self.waiting_count(now_ms) < limits.locks_max

    @property
    def unfinished_count(self) -> int:
        """Records in the window that may be delivered again."""
        return self._ranges.unfinished_count

    @property
    def acquired_count(self) -> int:
        """Records that members hold."""
        return self._ranges.count(_ACQUIRED)

    def held(self) -> Iterable[Range]:
        """The records that members hold."""
        return self._ranges.acquired()

    def waiting_count(self, now_ms: int) -> int:
        """Records that are not delivered before their time."""
        return self._ranges.waiting_count(now_ms)

    def acquire(
        self,
        member: str,
        found: Iterable[Stretch],
        limits: ShareLimits,
        records_max: int,
        now_ms: int,
        *,
        is_strict: bool = False,
        has_others: bool = False,
    ) -> list[Acquired]:
        """Acquire records for a member; `found` is the log from `next_offset` on, without holes.

        Whole batches are acquired, also if that is more than `records_max`, unless `is_strict`.
        Records that were delivered often already come in ever smaller portions, the last time one
        alone: what kills its consumer must not take others with it. None come if the member gets
        records of other partitions together with these: it `has_others`.
        """
        acquired: list[Range] = []
        left, ranges = records_max, self._ranges
        for stretch in found:
            start, end, has_records, _ = stretch
            if not has_records:
                self._finish(stretch, limits)
                continue
            cut = end
            if is_strict:
                cut = Offset(min(cut, max(start, self.next_offset(now_ms)) + left))
            is_behind = has_others or bool(acquired)
            taken, is_throttled = self._take(start, cut, limits, now_ms, is_behind)
            acquired += taken
            for item in taken:
                left -= item.end - item.start
            if left <= 0 or is_throttled or ranges.end_offset < end:
                break  # before the next stretch is read
        for item in acquired:
            self._acquire(item, member, limits, now_ms)
        result = _acquired(acquired)
        self._ranges.settle()
        return result

    # Acquiring in the order of keys

    def order_by_key(self, is_ordered: bool) -> None:
        """Deliver records of a key one after the other from now on, or not any more."""
        if is_ordered and self.order is None:
            self.order = KeyOrder(self.start_offset)
        elif not is_ordered:
            self.order = None

    @property
    def scan_offset(self) -> int:
        """The offset from which on keys are not known yet."""
        assert self.order is not None, "keys are looked at for their order"
        return max(self.order.scanned_to, self.start_offset)

    def can_scan(self, limits: ShareLimits) -> bool:
        """True if more of the log may be looked at for keys."""
        assert self.order is not None, "keys are looked at for their order"
        is_new = self.scan_offset >= self.end_offset
        return not is_new or self.unfinished_count < limits.key_window_max

    def scan(
        self,
        found: Iterable[Stretch],
        digests: Mapping[int, bytes | None],
        limits: ShareLimits,
    ) -> None:
        """Take the keys of more of the log into account, from where the last scan ended."""
        order = self.order
        assert order is not None, "keys are looked at for their order"
        for stretch in found:
            if not stretch.has_records:
                self._finish(stretch, limits)
            elif stretch.end > self.end_offset:
                self._ranges.extend(stretch.end, _AVAILABLE, 0)
            for item in self._ranges.overlapping(stretch.start, stretch.end):
                if item.state.is_final or item.state is _ARCHIVING:
                    continue
                until_ms = item.until_ms if item.state is _AVAILABLE else 0
                start = max(item.start, stretch.start, order.scanned_to)
                for at in range(start, min(item.end, stretch.end)):
                    order.add(at, digests.get(at), until_ms)
            order.scanned_to = max(order.scanned_to, stretch.end)

    def next_ready(self, now_ms: int) -> int | None:
        """The first offset that can be acquired, as far as keys are known."""
        order = self.order
        assert order is not None, "keys are looked at for their order"
        while (offset := order.pop_ready(now_ms)) is not None:
            item = self._ranges.at(offset)
            if item is None or item.state is not _AVAILABLE or not order.is_first(offset):
                continue  # acquired or finished meanwhile
            if item.until_ms > now_ms:
                order.push(offset, item.until_ms)
                continue
            order.push(offset)
            return offset
        return None

    def acquire_ready(
        self,
        member: str,
        end: int,
        limits: ShareLimits,
        records_max: int,
        now_ms: int,
        *,
        has_others: bool = False,
    ) -> list[Acquired]:
        """Acquire records below `end` that are the first ones of their keys.

        What was delivered so often that it comes in portions comes alone, as in `acquire`.
        """
        order = self.order
        assert order is not None, "keys are looked at for their order"
        acquired: list[Range] = []
        while len(acquired) < records_max and self.acquired_count < limits.locks_max:
            offset = self.next_ready(now_ms)
            if offset is None or offset >= end:
                break
            item = self._ranges.within(offset, offset + 1)[0]
            is_alone = portion_max(item.count, 1, limits.deliveries_max) is not None
            if is_alone and (acquired or has_others):
                break
            self._acquire(item, member, limits, now_ms)
            acquired.append(item)
            if is_alone:
                break
        result = _acquired(acquired)
        self._ranges.settle()
        return result

    def _acquire(self, item: Range, member: str, limits: ShareLimits, now_ms: int) -> None:
        self._ranges.change(item, _ACQUIRED, min(item.count + 1, _DELIVERIES_MAX))
        item.member = member
        item.until_ms = now_ms + limits.lock_ms
        if limits.is_lease_durable:
            self._note(item)

    def _take(
        self, start: int, end: int, limits: ShareLimits, now_ms: int, has_others: bool
    ) -> tuple[list[Range], bool]:
        """The available ranges of a stretch, the window being extended; True if the next ones
        must not be in the same response."""
        taken: list[Range] = []
        for item in self._ranges.within(start, end):
            if item.state is not _AVAILABLE or item.until_ms > now_ms:
                continue
            portion = portion_max(item.count, item.size, limits.deliveries_max)
            if portion is None:
                taken.append(item)
                continue
            if not (taken or has_others):
                self._ranges.split(item.start + portion)
                taken.append(item)
            return taken, True
        if end > self.end_offset and self.has_room(limits, now_ms):
            assert start <= self.end_offset, "the log was read without holes"
            taken.append(self._ranges.extend(end, _AVAILABLE, 0))
        return taken, False

    def _finish(self, stretch: Stretch, limits: ShareLimits) -> None:
        """Deliver nothing of a stretch: it has no records, or they have expired."""
        if stretch.end > self.end_offset:
            assert stretch.start <= self.end_offset, "the log was read without holes"
            self._ranges.extend(stretch.end, _AVAILABLE, 0)
        self.drop_available(stretch, limits)

    def drop_available(self, stretch: Stretch, limits: ShareLimits) -> None:
        """End those records of a stretch, in the window, that no member holds."""
        for item in self._ranges.within(stretch.start, stretch.end):
            if item.state is _AVAILABLE and stretch.is_expired:
                self._end(item, Cause.EXPIRED, limits)
            elif item.state is _AVAILABLE:
                self._change(item, _ARCHIVED, item.count)

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

        Offsets below the start offset are finished already, and ignored: whether this member had
        lost them before is for the caller to know.
        """
        ranges = self._ranges
        accepted = accepted_only(acknowledgements)
        if accepted is not None:  # most often just what was acquired together
            whole = ranges.held_whole(member, *accepted)
            if whole is not None:
                self._change(whole, _ACKNOWLEDGED, whole.count)
                return self.take_write()
        runs = runs_of(acknowledgements, ranges.start_offset, ranges.end_offset)
        for start, end, kind, _, _, _ in runs:
            if kind is _RENEW and not (may_renew and limits.allows_renewal):
                raise InvalidRequest("renewing is not asked for by the request, or not allowed")
            for item in ranges.overlapping(start, end):
                if item.state is not _ACQUIRED or item.member != member:
                    raise InvalidRecordState(
                        f"offset {max(item.start, start)} is not acquired by this member"
                    )
        for run in runs:
            start, end, *_ = run
            for item in ranges.within(start, end):
                self._acknowledge(item, run, limits, now_ms)
        return self.take_write()

    def _acknowledge(self, item: Range, run: Run, limits: ShareLimits, now_ms: int) -> None:
        match run.kind:
            case AcknowledgeType.ACCEPT:
                self._change(item, _ACKNOWLEDGED, item.count)
            case AcknowledgeType.RENEW:
                count, member = item.count, item.member
                self._ranges.change(item, _ACQUIRED, count)
                item.member, item.until_ms = member, now_ms + limits.lock_ms
            case AcknowledgeType.RELEASE:
                if run.is_uncounted:
                    delay_ms = max(run.delay_ms, 0)
                    self._change(item, _AVAILABLE, item.count - 1, _after(now_ms, delay_ms))
                else:
                    self._release(item, limits, now_ms, run.delay_ms)
            case AcknowledgeType.REJECT:
                self._end(item, Cause.REJECTED, limits, run.reason[:REASON_MAX])
            case AcknowledgeType.GAP:
                self._change(item, _ARCHIVED, item.count)

    # Giving back

    def expire(self, limits: ShareLimits, now_ms: int) -> StateWrite | None:
        """End the locks whose time is over."""
        for item in self._ranges.acquired():
            if item.until_ms <= now_ms:
                self._release(item, limits, now_ms)
        return self.take_write()

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """The next time at which a lock or a wait ends."""
        return self._ranges.next_deadline_ms(now_ms)

    def release_member(
        self, member: str, limits: ShareLimits, now_ms: int, *, counts: bool
    ) -> StateWrite | None:
        """Give back what a member holds; unless it `counts`, as if it had not been delivered."""
        for item in self._ranges.acquired():
            if item.member == member:
                if counts:
                    self._release(item, limits, now_ms)
                else:
                    self._change(item, _AVAILABLE, item.count - 1)
        return self.take_write()

    def _release(
        self, item: Range, limits: ShareLimits, now_ms: int, delay_ms: int = GROUP_BACKOFF
    ) -> None:
        if 0 < limits.deliveries_max <= item.count:
            self._end(item, Cause.DELIVERY_LIMIT, limits)
            return
        if delay_ms == GROUP_BACKOFF:
            delay_ms = limits.retry_delay_ms(item.count)
        self._change(item, _AVAILABLE, item.count, _after(now_ms, delay_ms))

    def _end(self, item: Range, cause: Cause, limits: ShareLimits, reason: str = "") -> None:
        """Deliver a record no more."""
        if limits.has_dead_letters:
            self.dead.add(item, cause, reason)
        else:
            self._change(item, _ARCHIVED, item.count)

    def note_log_start(self, offset: int) -> StateWrite | None:
        """Forget records that the log has no longer, but for those that get a dead letter."""
        if offset <= self.start_offset:
            return None
        if offset > self.end_offset:
            self._ranges.extend(offset, _AVAILABLE, 0)
        for item in self._ranges.within(self.start_offset, offset):
            if not item.state.is_final and item.state is not _ARCHIVING:
                self._change(item, _ARCHIVED, item.count)
        return self.take_write()

    # What is written

    def take_write(self) -> StateWrite | None:
        """The changes since the last write; None without any."""
        sender = self.dead.sender if self.dead.has_new_sender else None
        ranges = self._ranges
        ranges.settle()
        if not self._changed and sender is None:
            return None
        start = ranges.start_offset
        batches = tuple(
            [  # below the start everything is finished, as most often all of it is
                batch if batch.first >= start else batch._replace(first=Offset(start))
                for batch in self._changed
                if batch.last >= start
            ]
        )
        self._changed = []
        self.dead.has_new_sender = False
        return tuple.__new__(StateWrite, (start, ranges.complete_count, batches, sender))

    def _change(
        self, item: Range, state: DeliveryState, count: int, not_before_ms: int = 0
    ) -> None:
        self._ranges.change(item, state, count)
        item.until_ms = not_before_ms
        self._note(item)

    def _note(self, item: Range) -> None:
        """Have the state of a range written."""
        if self.order is not None and item.state is not _ACQUIRED:
            self.order.note(item)
        self._changed.append(item.as_batch())


def _after(now_ms: int, delay_ms: int) -> int:
    """The end of a wait; 0 if there is none."""
    return now_ms + delay_ms if delay_ms > 0 else 0


def _acquired(ranges: Sequence[Range]) -> list[Acquired]:
    found: list[Acquired] = []
    for item in ranges:
        last = found[-1] if found else None
        if last is not None and last.last + 1 == item.start and last.deliveries == item.count:
            found[-1] = last._replace(last=Offset(item.end - 1))
        else:
            found.append(tuple.__new__(Acquired, (item.start, item.end - 1, item.count)))
    return found
