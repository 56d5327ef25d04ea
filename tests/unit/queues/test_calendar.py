"""The calendar gives what is due, in order, in portions, however much lies in one place."""

from random import Random

from ottla.queues.calendar import Calendar


def test_tickets_come_in_the_order_of_due_time_and_number() -> None:
    rng = Random(7)
    due = {
        ticket: rng.choice([5, 999, 60_000, 3_600_000, rng.randrange(10**10)])
        for ticket in range(3000)
    }
    calendar = Calendar(due.get)
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
    calendar = Calendar(due.get)
    calendar.add(1, due[1])
    assert calendar.first_ms(20_000_000, 100) == (10_000_000, True)
    calendar.add(2, due[2])
    assert calendar.first_ms(20_000_000, 100) == (100, True)
    calendar.add(3, due[3])
    assert calendar.take(200, 100) == ([3, 2], False)
    assert calendar.first_ms(20_000_000, 100) == (10_000_000, True)


def test_far_times_are_known_by_the_hour_only() -> None:
    due = {1: 3_700_000}
    calendar = Calendar(due.get)
    calendar.add(1, due[1])
    assert calendar.first_ms(0, 100) == (3_600_000, True)
    assert calendar.first_ms(3_600_000, 100) == (
        3_660_000,
        True,
    )  # the minute, of an hour that begins
    assert calendar.first_ms(3_700_000, 100) == (3_700_000, True)


def test_much_in_one_hour_is_divided_in_portions() -> None:
    due = {ticket: 1000 + ticket for ticket in range(1000)}
    calendar = Calendar(due.get)
    for ticket, due_ms in due.items():
        calendar.add(ticket, due_ms)
    turns = 0
    while not calendar.first_ms(2000, 100)[1]:
        turns += 1
    assert turns >= 10
    assert calendar.first_ms(2000, 100) == (1000, True)


def test_a_ticket_that_waits_no_more_is_left_out() -> None:
    due = {1: 5, 2: 5, 3: 6}
    calendar = Calendar(due.get)
    for ticket in (3, 2, 1):
        calendar.add(ticket, due[ticket])
    del due[2]
    assert calendar.take(10, 100) == ([1, 3], False)
    assert calendar.first_ms(10, 100) == (None, True)
