"""A calendar of tickets: what is due first, in eight bytes for each.

Tickets lie in arrays by the hour in which they are due. The first hour is divided into minutes, its
first minute into seconds, and that into milliseconds, when they are about to be due: only there an
order is needed. Dividing goes in portions. A period with very many tickets is divided as well, so
that some of what waits is found in order without a look at all of it: what comes later goes to its
parts at once, and what lies in it already when a reader wants it in order.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from operator import neg
from typing import Final, NamedTuple

WIDTHS_MS: Final = (3_600_000, 60_000, 1000, 1)
TICKETS_MAX: Final = (2048, 2048, 32_768)  # of a period that is not divided; each part costs memory
_LAST: Final = len(WIDTHS_MS) - 1

Tickets = array  # of signed 64-bit integers
DuesOf = Callable[[Sequence[int]], Iterable[int | None]]


class _Page:
    """The tickets of one period, by the periods of the next width; `rest` is not divided yet."""

    __slots__ = ("order", "parts", "rest")

    def __init__(self, rest: "Tickets[int]") -> None:
        self.parts: dict[int, Tickets[int] | _Page] = {}
        self.order: list[int] = []  # a heap of the periods
        self.rest = rest


class _Sorted(array):  # type: ignore[type-arg]
    """Tickets of one millisecond of which some were taken: descending, the first one is the last.

    Sorted once, however many there are: each portion takes from the end.
    """

    __slots__ = ()

    def put(self, ticket: int) -> None:
        if not self or ticket < self[-1]:
            self.append(ticket)
        else:
            self.insert(bisect_left(self, -ticket, key=neg), ticket)

    def take(self, count: int) -> "Tickets[int]":
        taken = self[-count:]
        del self[-count:]
        return taken


class Period(NamedTuple):
    """Tickets that are due in a time, in no order; some of them may wait no more."""

    begin_ms: int
    end_ms: int
    tickets: "Tickets[int]"  # not a copy


class Calendar:
    """Tickets by due time.

    `dues_of` gives the due times of tickets, and None for those that wait no more.
    """

    def __init__(self, dues_of: DuesOf) -> None:
        self._dues_of = dues_of
        self._root = _Page(array("q"))

    def add(self, ticket: int, due_ms: int) -> None:
        page, level = self._root, 0
        while True:
            period = due_ms // WIDTHS_MS[level]
            part = page.parts.get(period)
            if isinstance(part, _Page):
                page = part
            elif part is None:
                page.parts[period] = array("q", (ticket,))
                heappush(page.order, period)
                return
            elif isinstance(part, _Sorted):
                part.put(ticket)
                return
            elif level == _LAST or len(part) < TICKETS_MAX[level]:
                part.append(ticket)
                return
            else:
                page.parts[period] = page = _Page(part)
            level += 1

    def periods(self, from_ms: int, portion: int) -> Iterator[Period | None]:
        """Periods that are not divided, in order, from that of `from_ms` on.

        None comes whenever `portion` tickets were divided on the way. What is added or taken while
        the caller does something else may be left out.
        """
        return self._periods(self._root, 0, from_ms, portion)

    def _periods(
        self, page: _Page, level: int, from_ms: int, portion: int
    ) -> Iterator[Period | None]:
        while page.rest:
            self._divide(page, portion)
            yield None
        width_ms = WIDTHS_MS[level]
        first = from_ms // width_ms
        for period in sorted(period for period in page.parts if period >= first):
            part = page.parts.get(period)
            if isinstance(part, _Page):
                yield from self._periods(part, level + 1, from_ms, portion)
            elif part is not None:
                yield Period(period * width_ms, (period + 1) * width_ms, part)

    def first_ms(self, until_ms: int, portion: int) -> tuple[int | None, bool]:
        """When the first ticket is due, and whether that is known; (None, True) without tickets.

        Behind `until_ms` it is the beginning of a period, which is not divided: nothing is due
        before. (0, False) if more than `portion` tickets had to be divided: call it again.
        """
        page, level, left = self._root, 0, portion
        path: list[_Page] = []
        while True:
            left = self._divide(page, left)
            if page.rest:
                return 0, False
            if not page.order:
                if not path:
                    return None, True
                page, level = path.pop(), level - 1
                del page.parts[heappop(page.order)]
                continue
            period = page.order[0]
            part = page.parts[period]
            begin_ms = period * WIDTHS_MS[level]
            if isinstance(part, _Page):
                path.append(page)
                page, level = part, level + 1
            elif level == _LAST or begin_ms > until_ms:
                return begin_ms, True
            else:
                page.parts[period] = _Page(part)

    def _divide(self, page: _Page, portion: int) -> int:
        """Divide at most `portion` tickets; returns how many more may be."""
        rest = page.rest
        if not rest or portion <= 0:
            return portion
        tickets = rest[-portion:]
        del rest[-portion:]
        for ticket, due_ms in zip(tickets, self._dues_of(tickets), strict=True):
            if due_ms is not None:
                self.add(ticket, due_ms)  # the page has its place, and parts on the way to it
        return portion - len(tickets)

    def take(self, now_ms: int, portion: int) -> tuple[list[int], bool]:
        """Remove at most `portion` tickets that are due, in the order of (due, ticket).

        The second value is True if there may be more. Tickets that wait no more are left out.
        """
        taken: list[int] = []
        left = portion
        while left > 0:
            first_ms, is_known = self.first_ms(now_ms, portion)
            if not is_known:
                return taken, True
            if first_ms is None or first_ms > now_ms:
                return taken, False
            found = self._take_first(first_ms, left)
            left -= len(found) + 1  # to find a time takes as long as a ticket
            # Fewer than found if some wait no more, or were put back twice.
            tickets = sorted(set(found))
            dues = zip(tickets, self._dues_of(tickets), strict=True)
            taken += [ticket for ticket, due_ms in dues if due_ms == first_ms]
        return taken, True

    def _take_first(self, due_ms: int, count: int) -> "Tickets[int]":
        page = self._root
        for width_ms in WIDTHS_MS[:-1]:
            part = page.parts[due_ms // width_ms]
            assert isinstance(part, _Page), "first_ms has divided it"
            page = part
        found = page.parts[due_ms]
        assert not isinstance(found, _Page), "a millisecond is not divided"
        if not isinstance(found, _Sorted):
            found = page.parts[due_ms] = _Sorted("q", sorted(found, reverse=True))
        taken = found.take(count)
        if not found:
            assert page.order[0] == due_ms, "the first period of its page is taken"
            heappop(page.order)
            del page.parts[due_ms]
        return taken
