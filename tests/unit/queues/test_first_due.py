"""The records that are due first, out of a calendar, without a look at all that waits."""

from collections.abc import Sequence
from random import Random

import pytest

from ottla.queues.calendar import TICKETS_MAX
from ottla.queues.first_due import BEFORE_ALL, TICKETS_PER_LOOK, FirstDue
from ottla.queues.pending_records import DuePosition, PendingRecords
from ottla.queues.waiting_facts import NO_SCHEDULE, Arm, Facts

NEVER_MS = 2**63 - 1


def pending_of(rows: list[tuple[int, int, bool]]) -> PendingRecords:
    """Records by ticket, due time, and whether they come again."""
    pending = PendingRecords()
    arms = [
        Arm(ticket, due_ms, ticket, 10, ticket if is_schedule else NO_SCHEDULE)
        for ticket, due_ms, is_schedule in rows
    ]
    pending.apply(Facts(arms, [], []), None)
    return pending


def page(
    pending: PendingRecords,
    after: DuePosition = BEFORE_ALL,
    before_ms: int = NEVER_MS,
    count: int = 100,
    *,
    schedules_only: bool = False,
    taken: Sequence[int] = (),
) -> tuple[list[DuePosition], int]:
    """A page, and how often something was looked at."""
    first = FirstDue(
        pending,
        after=after,
        before_ms=before_ms,
        count=count,
        schedules_only=schedules_only,
        taken=taken,
    )
    looks = 1
    while first.look():
        looks += 1
    return first.found(), looks


@pytest.mark.parametrize("count", [1, 7, 100, 8000])
@pytest.mark.parametrize("within_ms", [1, 500, 600_000, 10**10])
def test_pages_behind_each_other_are_all_that_waits_in_order(count: int, within_ms: int) -> None:
    rng = Random(count)
    rows = [(ticket, rng.randrange(within_ms), False) for ticket in range(8000)]
    pending = pending_of(rows)
    pending.apply(Facts([], list(range(0, 8000, 3)), []), None)
    wanted = sorted((due_ms, ticket) for ticket, due_ms, _ in rows if ticket % 3)
    after, found = BEFORE_ALL, list[DuePosition]()
    pages = min(20, len(wanted) // count + 1)
    for _ in range(pages):
        some, _ = page(pending, after, count=count)
        found += some
        after = some[-1] if some else after
    assert found == wanted[: pages * count]


@pytest.mark.parametrize("within_ms", [20_000_000, 100_000, 1])
def test_a_page_takes_few_looks_however_much_waits(within_ms: int) -> None:
    """Over hours, within two minutes, or all at the same time."""
    rng = Random(3)
    rows = [(ticket, rng.randrange(within_ms), False) for ticket in range(100_000)]
    pending = pending_of(rows)
    wanted = sorted((due_ms, ticket) for ticket, due_ms, _ in rows)
    after, found, looks = BEFORE_ALL, list[DuePosition](), list[int]()
    for _ in range(100):
        some, taken = page(pending, after, count=500)
        found += some
        looks.append(taken)
        after = some[-1]
    assert found == wanted[: 100 * 500]
    divided = TICKETS_MAX[-1] // TICKETS_PER_LOOK  # once
    assert max(looks) <= 10 + divided
    assert sum(looks) <= 300


def test_schedules_are_found_without_a_look_at_the_rest() -> None:
    pending = pending_of([(ticket, 7 * ticket, ticket % 10_000 == 5) for ticket in range(50_000)])
    found, looks = page(pending, schedules_only=True)
    assert found == [(7 * ticket, ticket) for ticket in range(5, 50_000, 10_000)]
    assert looks == 1


def test_what_was_taken_from_the_calendar_and_waits_is_found() -> None:
    pending = pending_of([(1, 50, False), (2, 10, True), (3, 40, False), (4, 30, False)])
    stuck, _ = pending.take_due(40, 100)
    assert [one.ticket for one in stuck] == [2, 4, 3]
    pending.apply(Facts([], [], [4]), None)
    assert page(pending)[0] == [(50, 1)]
    assert page(pending, taken=[2, 4, 3])[0] == [(10, 2), (40, 3), (50, 1)]
    assert page(pending, taken=[2, 4, 3], count=1)[0] == [(10, 2)]
    assert page(pending, after=(10, 2), taken=[2, 4, 3], before_ms=50)[0] == [(40, 3)]
    assert page(pending, taken=[2, 4, 3], schedules_only=True)[0] == [(10, 2)]


def test_due_times_and_schedules_limit_what_is_found() -> None:
    pending = pending_of([(1, 50, True), (2, 40, False), (3, 60, True), (4, 30, True)])
    assert page(pending)[0] == [(30, 4), (40, 2), (50, 1), (60, 3)]
    assert page(pending, before_ms=50)[0] == [(30, 4), (40, 2)]
    assert page(pending, schedules_only=True)[0] == [(30, 4), (50, 1), (60, 3)]
    assert page(pending, after=(30, 4), count=1, schedules_only=True)[0] == [(50, 1)]
    assert page(pending, after=(60, 3))[0] == []
    assert page(PendingRecords())[0] == []


def test_what_ends_between_two_looks_leaves_the_rest_in_place() -> None:
    pending = pending_of([(ticket, 1000 - ticket // 100, False) for ticket in range(30_000)])
    first = FirstDue(pending, after=BEFORE_ALL, before_ms=NEVER_MS, count=5, schedules_only=False)
    assert first.look()
    pending.apply(Facts([], list(range(20_000)), []), None)  # rows move: dead ones are dropped
    while first.look():
        pass
    assert first.found() == [(701, ticket) for ticket in range(29_900, 29_905)]


def test_what_the_calendar_divides_between_two_looks_is_found() -> None:
    rows = [(ticket, 5000 + ticket % 900, False) for ticket in range(30_000)]
    pending = pending_of(rows)
    first = FirstDue(pending, after=BEFORE_ALL, before_ms=NEVER_MS, count=700, schedules_only=False)
    for _ in range(12):
        assert first.look(), "some of the second is looked at, and not all of it"
    while not pending.first_due_ms(10_000, 500)[1]:
        pass
    while first.look():
        pass
    wanted = sorted((due_ms, ticket) for ticket, due_ms, _ in rows)
    assert first.found() == wanted[:700]


def test_what_was_taken_and_is_due_later_ends_no_page() -> None:
    pending = pending_of([(1, 1000, False), (2, 3_700_000, False), (3, 7_300_000, False)])
    taken, _ = pending.take_due(10_000_000, 100)
    for one in taken[:2]:
        pending.put_back(one)
    assert page(pending, count=2, taken=[3])[0] == [(1000, 1), (3_700_000, 2)]
