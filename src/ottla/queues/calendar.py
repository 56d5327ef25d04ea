"""A calendar of tickets: what is due first, in eight bytes for each.

Tickets lie in arrays by the hour in which they are due. The first hour is divided into minutes, its
first minute into seconds, and that into milliseconds, when they are about to be due: only there an
order is needed. Dividing goes in portions, because an hour may hold a million.
"""

from array import array
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

WIDTHS_MS: Final = (3_600_000, 60_000, 1000, 1)
_LAST: Final = len(WIDTHS_MS) - 1

Tickets = array  # of signed 64-bit integers


class _Page:
    """The tickets of one period, by the periods of the next width; `rest` is not divided yet."""

    __slots__ = ("order", "parts", "rest")

    def __init__(self, rest: "Tickets[int]") -> None:
        self.parts: dict[int, Tickets[int] | _Page] = {}
        self.order: list[int] = []  # a heap of the periods
        self.rest = rest


class Calendar:
    """Tickets by due time. `due_of` gives the due time of a ticket; None if it waits no more."""

    def __init__(self, due_of: Callable[[int], int | None]) -> None:
        self._due_of = due_of
        self._root = _Page(array("q"))

    def add(self, ticket: int, due_ms: int) -> None:
        page = self._root
        for width_ms in WIDTHS_MS:
            period = due_ms // width_ms
            part = page.parts.get(period)
            if isinstance(part, _Page):
                page = part
                continue
            if part is None:
                part = page.parts[period] = array("q")
                heappush(page.order, period)
            part.append(ticket)
            return
        raise AssertionError("milliseconds are not divided")

    def first_ms(self, until_ms: int, portion: int) -> tuple[int | None, bool]:
        """When the first ticket is due, and whether that is known; (None, True) without tickets.

        Behind `until_ms` it is the beginning of a period, which is not divided: nothing is due
        before. (0, False) if more than `portion` tickets had to be divided: call it again.
        """
        page, level, left = self._root, 0, portion
        path: list[_Page] = []
        while True:
            left = self._divide(page, level, left)
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

    def _divide(self, page: _Page, level: int, portion: int) -> int:
        """Divide at most `portion` tickets; returns how many more may be."""
        width_ms = WIDTHS_MS[level]
        rest, parts = page.rest, page.parts
        while rest and portion > 0:
            portion -= 1
            ticket = rest.pop()
            due_ms = self._due_of(ticket)
            if due_ms is None:
                continue
            period = due_ms // width_ms
            part = parts.get(period)
            if part is None:
                part = parts[period] = array("q")
                heappush(page.order, period)
            assert not isinstance(part, _Page), "a page is divided before its parts are"
            part.append(ticket)
        return portion

    def take(self, now_ms: int, portion: int) -> tuple[list[int], bool]:
        """Remove tickets that are due, in the order of (due, ticket), some at a time.

        The second value is True if there may be more. Tickets that wait no more are left out.
        """
        taken: list[int] = []
        while len(taken) < portion:
            first_ms, is_known = self.first_ms(now_ms, portion)
            if not is_known:
                return taken, True
            if first_ms is None or first_ms > now_ms:
                return taken, False
            taken += self._take_first(first_ms)
        return taken, True

    def _take_first(self, due_ms: int) -> list[int]:
        page = self._root
        for width_ms in WIDTHS_MS[:-1]:
            part = page.parts[due_ms // width_ms]
            assert isinstance(part, _Page), "first_ms has divided it"
            page = part
        heappop(page.order)
        found = page.parts.pop(due_ms)
        return sorted(ticket for ticket in set(found) if self._due_of(ticket) == due_ms)  # type: ignore[arg-type]
