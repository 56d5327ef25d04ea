"""The records that are due first, out of a table that is sorted by ticket."""

from random import Random

import pytest

from ottla.queues.first_due import BEFORE_ALL, FirstDue
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
) -> tuple[list[DuePosition], int]:
    """A page, and how often the table was looked at."""
    first = FirstDue(
        pending, after=after, before_ms=before_ms, count=count, schedules_only=schedules_only
    )
    looks = 1
    while first.look():
        looks += 1
    return first.found(), looks


@pytest.mark.parametrize("count", [1, 7, 100, 25_000])
def test_pages_behind_each_other_are_all_that_waits_in_order(count: int) -> None:
    rng = Random(count)
    rows = [(ticket, rng.randrange(500), False) for ticket in range(25_000)]
    pending = pending_of(rows)
    pending.apply(Facts([], list(range(0, 25_000, 3)), []), None)
    wanted = sorted((due_ms, ticket) for ticket, due_ms, _ in rows if ticket % 3)
    after, found = BEFORE_ALL, list[DuePosition]()
    pages = min(20, len(wanted) // count + 1)
    for _ in range(pages):
        some, looks = page(pending, after, count=count)
        assert looks <= 3, "ten thousand rows in a look"
        found += some
        after = some[-1] if some else after
    assert found == wanted[: pages * count]


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
