"""The table of what waits, held to a dictionary: neighbours that end together, and alone."""

from random import Random

import pytest

from ottla.queues.pending_records import ENDED_KEPT, PendingRecords, Waiting
from ottla.queues.waiting_facts import NO_SCHEDULE, Arm, Facts


def armed(rows: list[Waiting]) -> PendingRecords:
    pending = PendingRecords()
    arms = [Arm(one.ticket, one.due_ms, one.offset, one.ticket % 50, one.schedule) for one in rows]
    pending.apply(Facts(arms, [], []), None)
    return pending


def check(pending: PendingRecords, waits: dict[int, Waiting]) -> None:
    assert list(pending) == [waits[ticket] for ticket in sorted(waits)]
    assert pending.count == len(waits)
    assert pending.waiting_bytes == sum(ticket % 50 for ticket in waits)
    assert pending.schedule_count == sum(one.schedule != NO_SCHEDULE for one in waits.values())
    assert pending.lowest_offset() == min((one.offset for one in waits.values()), default=None)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("cancelled", [0, 40, 2000])
@pytest.mark.parametrize("portion", [7, 300, 4000])
def test_what_is_due_is_taken_and_ends_in_order_whoever_its_neighbours_are(
    step: int, cancelled: int, portion: int
) -> None:
    """Tickets side by side or not, some of them cancelled, some of schedules, in many portions."""
    rng = Random(portion)
    rows = [
        Waiting(ticket, ticket // 100 % 7 * step, ticket + 3, ticket if ticket % 997 == 0 else -1)
        for ticket in range(0, 5000 * step, step)
    ]
    waits = {one.ticket: one for one in rows}
    pending = armed(rows)
    for ticket in rng.sample(sorted(waits), cancelled):
        pending.apply(Facts([], [], [ticket]), None)
        del waits[ticket]
    check(pending, waits)
    has_more = True
    wanted = sorted((one.due_ms, one.ticket) for one in waits.values())
    found: list[tuple[int, int]] = []
    while has_more:
        due, has_more = pending.take_due(1000, portion)
        assert due == [waits[one.ticket] for one in due]
        kept = len(due) * 3 // 4 + 1
        found += [(one.due_ms, one.ticket) for one in due[:kept]]
        for one in reversed(due[kept:]):
            pending.put_back(one)
        pending.apply(Facts([], [one.ticket for one in due[:kept]], []), None)
        for one in due[:kept]:
            del waits[one.ticket]
        has_more = has_more or len(due) > kept
        if rng.random() < 0.02:
            check(pending, waits)
    assert found == wanted
    check(pending, {})


def test_what_ended_before_does_not_end_again_among_its_neighbours() -> None:
    pending = armed([Waiting(ticket, 5, ticket, NO_SCHEDULE) for ticket in range(10)])
    pending.apply(Facts([], [], [4]), None)
    pending.apply(Facts([], [3, 4, 5], []), None)
    assert pending.absence(4) == "ticket 4 was cancelled"
    assert pending.absence(5) == "ticket 5 was delivered"
    assert (pending.count, pending.waiting_bytes) == (7, 0 + 1 + 2 + 6 + 7 + 8 + 9)
    due, _ = pending.take_due(5, 100)
    assert [one.ticket for one in due] == [0, 1, 2, 6, 7, 8, 9]


def test_of_many_that_end_together_the_latest_are_remembered() -> None:
    count = ENDED_KEPT + 100
    pending = armed([Waiting(ticket, 5, ticket, NO_SCHEDULE) for ticket in range(count)])
    pending.apply(Facts([], list(range(count)), []), None)
    assert pending.absence(99).endswith("is unknown, or ended long ago")
    assert pending.absence(100) == "ticket 100 was delivered"
    assert pending.count == 0


@pytest.mark.parametrize("portion", [1000, 1024])
def test_rows_in_front_that_ended_are_cut_and_no_other(portion: int) -> None:
    waits = {ticket: Waiting(ticket, 5, ticket, NO_SCHEDULE) for ticket in range(6000)}
    pending = armed(list(waits.values()))
    assert pending.first_due_ms(5, 100_000) == (5, True)  # sorted by time, all of them
    for _ in range(5):
        due, _ = pending.take_due(5, portion)
        pending.apply(Facts([], [one.ticket for one in due], []), None)
        for one in due:
            del waits[one.ticket]
        check(pending, waits)
    pending.apply(Facts([], [], [5500]), None)
    del waits[5500]
    check(pending, waits)


def test_a_ticket_that_has_ended_never_waits_again() -> None:
    pending = PendingRecords()
    pending.apply(Facts([Arm(4, 100, 4, 10)], [], []), None)
    pending.apply(Facts([], [4], []), None)
    pending.apply(Facts([Arm(4, 100, 9, 10)], [], []), None)
    assert (pending.count, pending.waiting_bytes, pending.find(4)) == (0, 0, None)
    assert pending.take_due(1000, 10) == ([], False)
    assert pending.absence(4) == "ticket 4 was delivered"


def test_only_so_many_ended_tickets_are_remembered() -> None:
    pending = PendingRecords()
    for ticket in range(ENDED_KEPT + 1):
        pending.apply(Facts([Arm(ticket, 100, ticket, 10)], [], []), None)
        pending.apply(Facts([], [ticket], []), None)
    assert pending.absence(0) == "ticket 0 is unknown, or ended long ago"
    assert pending.absence(1) == "ticket 1 was delivered"
    assert pending.count == 0
