"""Deadlines of members: the first of any kind counts, and a removed member has none."""

from ottla.coordinator.groups.member_deadlines import MemberDeadlines


def test_a_member_that_misses_several_deadlines_is_named_once() -> None:
    deadlines = MemberDeadlines()
    deadlines.session["a"] = 10
    deadlines.revocation["a"] = 5
    deadlines.sync["b"] = 10
    deadlines.rejoin["c"] = 11
    assert deadlines.next_ms() == 5
    assert deadlines.passed(10) == ["a", "b"]


def test_a_forgotten_member_misses_nothing() -> None:
    deadlines = MemberDeadlines()
    for kind in (deadlines.session, deadlines.revocation, deadlines.rejoin, deadlines.sync):
        kind["a"] = 1
    deadlines.forget("a")
    assert deadlines.passed(10) == []
    assert deadlines.next_ms() is None
