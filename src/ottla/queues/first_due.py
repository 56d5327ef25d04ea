"""The records that are due first, selected from a calendar, some tickets at a time."""

from collections.abc import Iterable, Iterator
from typing import Final

from ottla.queues.calendar import TICKETS_MAX, WIDTHS_MS, Period
from ottla.queues.pending_records import DuePosition, PendingRecords

BEFORE_ALL: Final = (-1, -1)
TICKETS_PER_LOOK: Final = 1000  # a millisecond or two


class FirstDue:
    """The first `count` records behind a position. Call `look` until it returns False.

    Only periods are looked at that hold what is wanted, and at most twice `count` positions are
    kept beside those of one look. What changes in periods that were looked at is not seen.
    """

    def __init__(
        self,
        pending: PendingRecords,
        *,
        after: DuePosition,
        before_ms: int,
        count: int,
        schedules_only: bool,
        taken: Iterable[int] = (),
    ) -> None:
        """`taken` are tickets that were taken from the calendar, and wait all the same."""
        assert count > 0, "a page has room for a record"
        self._pending = pending
        self._after = after
        self._before: DuePosition = (before_ms, -1)
        self._count = count
        self._schedules_only = schedules_only
        # Those of schedules are found without the calendar.
        beside = () if schedules_only else taken
        self._kept = set(pending.positions(beside, after, self._before))
        self._left = TICKETS_PER_LOOK
        self._looks = self._select()

    def look(self) -> bool:
        """Look at some more tickets; returns whether there may be more."""
        self._left = TICKETS_PER_LOOK
        return next(self._looks, None) is not None

    def found(self) -> list[DuePosition]:
        """The records found, in the order of due times."""
        return sorted(self._kept)[: self._count]

    def _select(self) -> Iterator[object]:
        """Yields when so many tickets were looked at, until the first of them are known."""
        periods = self._pending.periods(
            max(self._after[0], 0), TICKETS_PER_LOOK, schedules_only=self._schedules_only
        )
        for period in periods:
            if period is None:
                yield True
                continue
            if (period.begin_ms, -1) >= self._before:
                return
            is_one_time = period.end_ms - period.begin_ms == WIDTHS_MS[-1]
            if is_one_time and len(period.tickets) > TICKETS_MAX[-1]:
                yield from self._select_at(period.begin_ms)
            else:
                yield from self._select_from(period)
            self._trim()
            if len(self._kept) == self._count and self._before < (period.end_ms, -1):
                return

    def _select_from(self, period: Period) -> Iterator[object]:
        tickets = period.tickets[:]  # the calendar may divide them between two looks
        for first in range(0, len(tickets), TICKETS_PER_LOOK):
            some = tickets[first : first + TICKETS_PER_LOOK]
            self._kept.update(self._pending.positions(some, self._after, self._before))
            if len(self._kept) > 2 * self._count:
                self._trim()
            self._left -= len(some)
            if self._left <= 0:
                yield True

    def _select_at(self, due_ms: int) -> Iterator[object]:
        """Of very many that are due at the same time, the first ones are found by ticket."""
        ticket: int | None = self._after[1] if self._after[0] == due_ms else -1
        count = 0
        while ticket is not None and count < self._count:
            found, ticket = self._pending.due_at(due_ms, ticket)
            positions = [(due_ms, one) for one in found[: self._count - count]]
            self._kept.update(one for one in positions if one < self._before)
            count += len(positions)
            yield True

    def _trim(self) -> None:
        if len(self._kept) >= self._count:
            kept = sorted(self._kept)[: self._count]
            self._kept = set(kept)
            self._before = kept[-1]
