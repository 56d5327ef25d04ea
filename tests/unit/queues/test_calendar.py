"""The calendar gives what is due, in order, in portions, however much lies in one place."""

from collections.abc import Callable
from random import Random

import pytest

from ottla.queues.calendar import TICKETS_MAX, WIDTHS_MS, Calendar


def calendar_of(due_of: Callable[[int], int | None]) -> Calendar:
    return Calendar(lambda tickets: map(due_of, tickets))


def test_tickets_come_in_the_order_of_due_time_and_number() -> None:
    rng = Random(7)
    due = {
        ticket: rng.choice([5, 999, 60_000, 3_600_000, rng.randrange(10**10)])
        for ticket in range(3000)
    }
    calendar = calendar_of(due.get)
    for ticket, due_ms in due.items():
        calendar.add(ticket, due_ms)
    taken: list[int] = []
    for now_ms in (5, 998, 999, 70_000, 10**9, 10**10):
        has_more = True
        while has_more:
            some, has_more = calendar.take(now_ms, 17)
            taken += some
        expected = sorted((at, ticket) for ticket, at in due.items() if at <= now_ms)
        assert taken == [ticket for _, ticket in expected]
    assert len(taken) == 3000


def test_one_that_is_added_before_what_was_first_comes_first() -> None:
    due = {1: 10_000_000, 2: 100, 3: 50}
    calendar = calendar_of(due.get)
    calendar.add(1, due[1])
    assert calendar.first_ms(20_000_000, 100) == (10_000_000, True)
    calendar.add(2, due[2])
    assert calendar.first_ms(20_000_000, 100) == (100, True)
    calendar.add(3, due[3])
    assert calendar.take(200, 100) == ([3, 2], False)
    assert calendar.first_ms(20_000_000, 100) == (10_000_000, True)


def test_far_times_are_known_by_the_hour_only() -> None:
    due = {1: 3_700_000}
    calendar = calendar_of(due.get)
    calendar.add(1, due[1])
    assert calendar.first_ms(0, 100) == (3_600_000, True)
    assert calendar.first_ms(3_600_000, 100) == (
        3_660_000,
        True,
    )  # the minute, of an hour that begins
    assert calendar.first_ms(3_700_000, 100) == (3_700_000, True)


def test_much_in_one_hour_is_divided_in_portions() -> None:
    due = {ticket: 1000 + ticket for ticket in range(1000)}
    calendar = calendar_of(due.get)
    for ticket, due_ms in due.items():
        calendar.add(ticket, due_ms)
    turns = 0
    while not calendar.first_ms(2000, 100)[1]:
        turns += 1
    assert turns >= 10
    assert calendar.first_ms(2000, 100) == (1000, True)


def test_a_ticket_that_waits_no_more_is_left_out() -> None:
    due = {1: 5, 2: 5, 3: 6}
    calendar = calendar_of(due.get)
    for ticket in (3, 2, 1):
        calendar.add(ticket, due[ticket])
    del due[2]
    assert calendar.take(10, 100) == ([1, 3], False)
    assert calendar.first_ms(10, 100) == (None, True)


def test_of_very_many_that_are_due_at_once_a_portion_costs_a_portion() -> None:
    """Each is looked at once, also if some are put back and others are added meanwhile."""
    rng = Random(3)
    due = dict.fromkeys(range(20_000), 5)
    looked_at = list[int]()

    def due_of(ticket: int) -> int | None:
        looked_at.append(ticket)
        return due.get(ticket)

    calendar = calendar_of(due_of)
    tickets = list(due)
    rng.shuffle(tickets)
    for ticket in tickets:
        calendar.add(ticket, 5)
    assert calendar.first_ms(5, 100_000) == (5, True)
    looked_at.clear()  # those that were divided
    taken = list[int]()
    has_more = True
    added = 20_000
    while has_more:
        some, has_more = calendar.take(5, 32)
        assert len(some) <= 32
        taken += some[:30]
        for ticket in reversed(some[30:]):
            calendar.add(ticket, 5)
        if added < 20_100:
            due[added] = 5
            calendar.add(added, 5)
            added += 1
    assert taken == sorted(due)
    assert len(looked_at) < 1.1 * len(due), "and the two of each portion that were put back"


def in_order(calendar: Calendar, from_ms: int) -> list[list[int]]:
    """The tickets of the periods from a time on."""
    found = list[list[int]]()
    last_ms = 0
    for period in calendar.periods(from_ms, 100):
        if period is not None:
            assert last_ms <= period.begin_ms < period.end_ms, "in order"
            last_ms = period.end_ms
            found.append(sorted(period.tickets))
    return found


@pytest.mark.parametrize("within_ms", [1, 700, 50_000, 3_000_000, 10**9])
def test_periods_hold_few_tickets_and_all_of_them(within_ms: int) -> None:
    """Also while some are due and taken, and some come again."""
    rng = Random(within_ms)
    due = {ticket: 10**12 + rng.randrange(within_ms) for ticket in range(40_000)}
    calendar = calendar_of(due.get)
    for ticket, due_ms in due.items():
        calendar.add(ticket, due_ms)
    for turn in range(4):
        periods = in_order(calendar, 0)
        assert sorted(ticket for tickets in periods for ticket in tickets) == sorted(due)
        bounds = {len(tickets) for tickets in periods}
        assert within_ms == 1 or max(bounds) <= TICKETS_MAX[-1]
        middle_ms = sorted(due.values())[len(due) // 2]
        later = {ticket for tickets in in_order(calendar, middle_ms) for ticket in tickets}
        assert {ticket for ticket, due_ms in due.items() if due_ms >= middle_ms} <= later
        assert all(due[ticket] // WIDTHS_MS[0] >= middle_ms // WIDTHS_MS[0] for ticket in later)
        now_ms = 10**12 + within_ms * (turn + 1) // 8
        taken, has_more = list[int](), True
        while has_more:
            some, has_more = calendar.take(now_ms, 500)
            taken += some
        assert taken == [
            one for _, one in sorted((at, one) for one, at in due.items() if at <= now_ms)
        ]
        for ticket in taken[::2]:
            due[ticket] = now_ms + 1 + rng.randrange(within_ms)
            calendar.add(ticket, due[ticket])
        for ticket in taken[1::2]:
            del due[ticket]


def test_what_is_added_to_a_time_of_which_some_were_taken_has_its_place() -> None:
    due = dict.fromkeys(range(10, 100, 10), 5)
    calendar = calendar_of(due.get)
    for ticket in due:
        calendar.add(ticket, 5)
    assert calendar.first_ms(5, 100) == (5, True)
    assert calendar.take(5, 2) == ([10, 20], True)
    for ticket in (500, 35, 20, 1):
        due[ticket] = 5
        calendar.add(ticket, 5)
    found = [calendar.take(5, 3)[0] for _ in range(4)]
    assert found == [[1, 20, 30], [35, 40, 50], [60, 70, 80], [90, 500]]
