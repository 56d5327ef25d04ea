"""One heap for all groups: a deadline may be found too early, and never too late."""

from ottla.coordinator.groups.group_deadlines import GroupDeadlines


def test_groups_are_due_in_the_order_of_their_deadlines() -> None:
    deadlines = GroupDeadlines()
    for group_id, deadline_ms in (("late", 30), ("early", 10), ("middle", 20)):
        deadlines.note(group_id, deadline_ms)
    assert deadlines.next_ms() == 10
    assert list(deadlines.take_due(20)) == ["early", "middle"]
    assert deadlines.next_ms() == 30


def test_a_deadline_that_moved_away_is_found_at_its_old_time() -> None:
    deadlines = GroupDeadlines()
    deadlines.note("g", 10)
    deadlines.note("g", 50)
    assert list(deadlines.take_due(10)) == ["g"], "too early; its owner notes it again"
    assert deadlines.next_ms() is None
    deadlines.note("g", 50)
    assert list(deadlines.take_due(49)) == []
    assert list(deadlines.take_due(50)) == ["g"]


def test_a_deadline_that_came_forward_is_found_once() -> None:
    deadlines = GroupDeadlines()
    deadlines.note("g", 50)
    deadlines.note("g", 10)
    assert list(deadlines.take_due(10)) == ["g"]
    assert list(deadlines.take_due(100)) == []


def test_a_group_without_a_deadline_is_not_kept() -> None:
    deadlines = GroupDeadlines()
    deadlines.note("g", None)
    assert deadlines.next_ms() is None
