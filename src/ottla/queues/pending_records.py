"""The records of one partition that wait: a table by ticket in 28 bytes a row, and a calendar.

Everything in it follows from the partition's log: facts are applied in the order in which they
stand there (`waiting_facts`), and a ticket that was released or cancelled never waits again.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, islice, repeat
from typing import Final, NamedTuple

from ottla.model import NO_OFFSET, Offset
from ottla.queues.calendar import Calendar, Period
from ottla.queues.waiting_facts import NO_SCHEDULE, Arm, Facts
from ottla.records.hidden_records import TicketEnd

ENDED_KEPT: Final = 10_000  # tickets whose end is remembered, for refusals that say what happened
_GONE: Final = -1  # the offset of a row that waits no more
_DEAD_ROWS_MIN: Final = 1024
_ROWS_PER_LOOK: Final = 10_000  # about a millisecond
_NEVER_MS: Final = 2**63 - 1

DuePosition = tuple[int, int]  # due time in ms, and ticket: the order in which records are released


class Waiting(NamedTuple):
    """A record that waits."""

    ticket: int
    due_ms: int
    offset: int  # of the record that has its content
    schedule: int


class PendingRecords:
    """The records that wait, and those of transactions that are not decided."""

    def __init__(self) -> None:
        self._tickets = array("q")  # ascending
        self._due_ms = array("q")
        self._offsets = array("q")
        self._sizes = array("i")
        self._dead = 0  # rows
        self._schedules: dict[int, int] = {}  # the ticket of the next occurrence, by schedule
        self._schedule_of: dict[int, int] = {}  # by ticket
        self._undecided: dict[int, list[Arm]] = {}  # by producer
        self._ended: dict[int, TicketEnd] = {}  # how the latest tickets and schedules ended
        self._calendar = Calendar(self._dues_of)
        self.waiting_bytes = 0

    # What there is

    @property
    def count(self) -> int:
        """Records that wait, without those of undecided transactions."""
        return len(self._tickets) - self._dead

    @property
    def undecided_count(self) -> int:
        return sum(map(len, self._undecided.values()))

    @property
    def schedule_count(self) -> int:
        return len(self._schedules)

    def find(self, ticket: int) -> Waiting | None:
        """The record with this ticket, if it waits."""
        row = self._row(ticket)
        return None if row is None else self._waiting(row)

    def next_of(self, schedule: int) -> int | None:
        """The ticket of a schedule's next occurrence."""
        return self._schedules.get(schedule)

    def absence(self, ticket: int) -> str:
        """The reason why a ticket does not wait, in words."""
        if any(arm.ticket == ticket for arms in self._undecided.values() for arm in arms):
            return TicketEnd.UNDECIDED.about(ticket)
        return self._ended.get(ticket, TicketEnd.UNKNOWN).about(ticket)

    def size_of(self, ticket: int) -> int:
        """The bytes of the record with this ticket in its batch; 0 if it does not wait."""
        row = self._row(ticket)
        return 0 if row is None else self._sizes[row]

    def periods(
        self, from_ms: int, portion: int, *, schedules_only: bool
    ) -> Iterator[Period | None]:
        """Tickets in the order of time; see `Calendar.periods`. Those of schedules come together.

        Without those that were taken because they are due and not put back.
        """
        if schedules_only:
            return iter((Period(0, _NEVER_MS, array("q", self._schedule_of)),))
        return self._calendar.periods(from_ms, portion)

    def positions(
        self, tickets: Iterable[int], first: DuePosition, last: DuePosition
    ) -> Iterator[DuePosition]:
        """Of these tickets, those that wait and are due behind `first` and before `last`."""
        known = list(tickets)
        for ticket, due_ms in zip(known, self._dues_of(known), strict=True):
            if due_ms is not None and first < (due_ms, ticket) < last:
                yield due_ms, ticket

    def due_at(self, due_ms: int, after: int) -> tuple[list[int], int | None]:
        """Of some rows behind a ticket, in their order, the tickets of those due at a time.

        The second value is the ticket to go on behind; None if there are no more rows.
        """
        begin = bisect_left(self._tickets, after + 1)
        end = min(begin + _ROWS_PER_LOOK, len(self._tickets))
        rows = zip(
            self._due_ms[begin:end],
            self._tickets[begin:end],
            self._offsets[begin:end],
            strict=True,
        )
        found = [ticket for at_ms, ticket, offset in rows if at_ms == due_ms and offset != _GONE]
        return found, self._tickets[end - 1] if begin < end < len(self._tickets) else None

    def lowest_offset(self) -> Offset | None:
        """The lowest offset at which a record waits, undecided ones included."""
        lowest = min((one for one in self._offsets if one != _GONE), default=NO_OFFSET)
        open_ones = [arm.offset for arms in self._undecided.values() for arm in arms]
        offsets = [one for one in (lowest, *open_ones) if one != NO_OFFSET]
        return Offset(min(offsets)) if offsets else None

    def below(self, offset: int, after: int, count: int) -> tuple[list[Waiting], int | None]:
        """At most `count` records that wait at offsets below this one, behind a ticket.

        The second value is the ticket to go on behind; None if there are no more.
        """
        found: list[Waiting] = []
        first = bisect_left(self._tickets, after + 1)
        last = min(first + _ROWS_PER_LOOK, len(self._tickets))
        for row in range(first, last):
            if self._offsets[row] != _GONE and self._offsets[row] < offset:
                found.append(self._waiting(row))
                if len(found) >= count:
                    last = row + 1
                    break
        return found, self._tickets[last - 1] if first < last < len(self._tickets) else None

    def __iter__(self) -> Iterator[Waiting]:
        for row, offset in enumerate(self._offsets):
            if offset != _GONE:
                yield self._waiting(row)

    # Time

    def first_due_ms(self, until_ms: int, portion: int) -> tuple[int | None, bool]:
        """When to look again; see `Calendar.first_ms`."""
        return self._calendar.first_ms(until_ms, portion)

    def take_due(self, now_ms: int, portion: int) -> tuple[list[Waiting], bool]:
        """Records that are due, in the order of (due, ticket), and whether there may be more.

        They wait until a fact says that they were released: `put_back` those that were not.
        """
        tickets, has_more = self._calendar.take(now_ms, portion)
        run = self._run(tickets)
        if run is None:
            found = [self.find(ticket) for ticket in tickets]
            return [one for one in found if one is not None], has_more
        schedules: Iterable[int] = repeat(NO_SCHEDULE)
        if self._schedule_of:
            schedules = [self._schedule_of.get(ticket, NO_SCHEDULE) for ticket in tickets]
        rows = zip(tickets, self._due_ms[run], self._offsets[run], schedules, strict=False)
        return list(map(Waiting._make, rows)), has_more

    def put_back(self, waiting: Waiting) -> None:
        """Have a record that was taken looked at again."""
        self._calendar.add(waiting.ticket, waiting.due_ms)

    # Change

    def apply(self, facts: Facts, producer_id: int | None) -> None:
        """Apply the facts of a batch; `producer_id` is that of a transactional one."""
        self._end_all(facts.released, TicketEnd.DELIVERED)
        for ticket in facts.cancelled:
            self._end(self._schedules.get(ticket, ticket), TicketEnd.CANCELLED)
        if producer_id is None:
            for arm in facts.arms:
                self._arm(arm)
        elif facts.arms:
            self._undecided.setdefault(producer_id, []).extend(facts.arms)

    def decide(self, producer_id: int, *, is_committed: bool) -> None:
        """A producer's transaction has ended: its records wait from now on, or never have."""
        for arm in self._undecided.pop(producer_id, ()):
            if is_committed:
                self._arm(arm)

    def _arm(self, arm: Arm) -> None:
        row = bisect_left(self._tickets, arm.ticket)
        if row < len(self._tickets) and self._tickets[row] == arm.ticket:
            if self._offsets[row] != _GONE:  # else it has ended, and stays so
                self._offsets[row] = arm.offset
                self.waiting_bytes += arm.size_bytes - self._sizes[row]
                self._sizes[row] = arm.size_bytes
            return
        self._tickets.insert(row, arm.ticket)  # most often at the end
        self._due_ms.insert(row, arm.due_ms)
        self._offsets.insert(row, arm.offset)
        self._sizes.insert(row, arm.size_bytes)
        self.waiting_bytes += arm.size_bytes
        if arm.schedule != NO_SCHEDULE:
            self._schedules[arm.schedule] = arm.ticket
            self._schedule_of[arm.ticket] = arm.schedule
        self._calendar.add(arm.ticket, arm.due_ms)

    def _end_all(self, tickets: Sequence[int], how: TicketEnd) -> None:
        """End tickets, most often those of rows one behind the other."""
        run = self._run(tickets)
        if run is None or not self._schedule_of.keys().isdisjoint(tickets):
            for ticket in tickets:
                self._end(ticket, how)
            return
        self._offsets[run] = _gone(len(tickets))
        self._dead += len(tickets)
        self.waiting_bytes -= sum(self._sizes[run])
        self._note_ended(tickets, how)
        self._drop_dead_rows()

    def _end(self, ticket: int, how: TicketEnd) -> None:
        row = self._row(ticket)
        if row is None:
            return
        self._offsets[row] = _GONE
        self._dead += 1
        self.waiting_bytes -= self._sizes[row]
        schedule = self._schedule_of.pop(ticket, None)
        if schedule is not None:
            del self._schedules[schedule]
            if how is TicketEnd.CANCELLED:
                self._note_ended((schedule,), how)
        self._note_ended((ticket,), how)
        self._drop_dead_rows()

    def _note_ended(self, tickets: Sequence[int], how: TicketEnd) -> None:
        """Remember the end of tickets, the latest last."""
        ended = self._ended
        for ticket in tickets:
            ended.pop(ticket, None)
            ended[ticket] = how
        for oldest in list(islice(ended, max(len(ended) - ENDED_KEPT, 0))):
            del ended[oldest]

    def _drop_dead_rows(self) -> None:
        """Drop rows that wait no more, once they are many.

        What ends most often ends in the order of tickets. Then most of them are in front, and
        nothing else is looked at: with a million rows that would take a tenth of a second.
        """
        if self._dead <= max(_DEAD_ROWS_MIN, len(self._tickets) // 2):
            return
        first = self._dead_in_front()
        if first > self._dead // 2:
            for column in (self._tickets, self._due_ms, self._offsets, self._sizes):
                del column[:first]
            self._dead -= first
            return
        alive = bytes(offset != _GONE for offset in self._offsets)
        self._tickets = array("q", compress(self._tickets, alive))
        self._due_ms = array("q", compress(self._due_ms, alive))
        self._sizes = array("i", compress(self._sizes, alive))
        self._offsets = array("q", compress(self._offsets, alive))
        self._dead = 0

    def _dead_in_front(self) -> int:
        """How many of the first rows wait no more, in whole portions."""
        gone = _gone(_DEAD_ROWS_MIN)
        first = 0
        while self._offsets[first : first + _DEAD_ROWS_MIN] == gone:
            first += _DEAD_ROWS_MIN
        return first

    def _run(self, tickets: Sequence[int]) -> slice | None:
        """The rows of these tickets, if they lie one behind the other and all wait."""
        if not tickets:
            return None
        begin = bisect_left(self._tickets, tickets[0])
        run = slice(begin, begin + len(tickets))
        if self._tickets[run] != array("q", tickets) or _GONE in self._offsets[run]:
            return None
        return run

    def _row(self, ticket: int) -> int | None:
        row = bisect_left(self._tickets, ticket)
        if row < len(self._tickets) and self._tickets[row] == ticket:
            return row if self._offsets[row] != _GONE else None
        return None

    def _waiting(self, row: int) -> Waiting:
        ticket = self._tickets[row]
        schedule = self._schedule_of.get(ticket, NO_SCHEDULE)
        return Waiting(ticket, self._due_ms[row], self._offsets[row], schedule)

    def _due_of(self, ticket: int) -> int | None:
        row = self._row(ticket)
        return None if row is None else self._due_ms[row]

    def _dues_of(self, tickets: Sequence[int]) -> Iterable[int | None]:
        run = self._run(tickets)
        return map(self._due_of, tickets) if run is None else self._due_ms[run]


def _gone(count: int) -> "array[int]":
    """The offsets of rows that wait no more."""
    return array("q", (_GONE,)) * count
