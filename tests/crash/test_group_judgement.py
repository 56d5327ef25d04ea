"""The judges of groups see what they are there to see."""

import signal

from crash.group_judgement import (
    Deliveries,
    Diary,
    Entry,
    Partition,
    Signal,
    overlaps,
    zombie_commits,
)
from crash.offsets_log import Written

TP: Partition = ("t", 0)


def said(at_s: float, what: str, offset: int | None = None) -> Entry:
    return Entry(at_s, what, frozenset({TP}), () if offset is None else ((TP, offset),))


def test_one_claim_after_the_other_is_as_it_should_be() -> None:
    first = Diary((said(1, "assigned"), said(2, "committed", 5), said(3, "revoked")))
    second = Diary((said(4, "assigned"), said(5, "revoked")))
    assert overlaps([first, second]) == []


def test_a_claim_inside_another_is_seen() -> None:
    first = Diary((said(1, "assigned"), said(9, "revoked")))
    second = Diary((said(4, "assigned"), said(5, "revoked")))
    third = Diary((said(6, "assigned"), said(7, "revoked")))
    assert len(overlaps([first, second, third])) == 2


def test_a_frozen_members_claim_ends_with_the_signal() -> None:
    frozen = Diary(
        (said(1, "assigned"), said(9, "read", 3), said(10, "lost")),
        (Signal(2, signal.SIGSTOP), Signal(8, signal.SIGCONT)),
    )
    other = Diary((said(7, "assigned"),))
    assert overlaps([frozen, other]) == []


def test_a_zombie_whose_commit_is_accepted_is_seen_twice() -> None:
    frozen = Diary(
        (said(1, "assigned"), said(9, "committed", 3), said(10, "lost")),
        (Signal(2, signal.SIGSTOP), Signal(8, signal.SIGCONT)),
    )
    other = Diary((said(7, "assigned"),))
    assert len(overlaps([frozen, other])) == 1
    assert zombie_commits(frozen) == [said(9, "committed", 3)]


def test_a_commit_that_was_asked_for_before_the_sleep_is_no_zombies() -> None:
    frozen = Diary(
        (said(1, "assigned"), said(1.9, "committed", 3), said(10, "lost")),
        (Signal(2, signal.SIGSTOP), Signal(8, signal.SIGCONT)),
    )
    assert zombie_commits(frozen) == []


def test_a_member_that_owns_something_anew_is_no_zombie() -> None:
    frozen = Diary(
        (said(1, "assigned"), said(9, "lost"), said(10, "assigned"), said(11, "committed", 3)),
        (Signal(2, signal.SIGSTOP), Signal(8, signal.SIGCONT)),
    )
    assert zombie_commits(frozen) == []


def test_repeated_and_missing_records_are_counted() -> None:
    delivered = Deliveries.of([Diary((said(1, "read", 0), said(2, "read", 2), said(3, "read", 2)))])
    assert (delivered.total, delivered.repeated) == (3, 1)
    assert delivered.missing(TP, 4) == [1, 3]


def test_a_commit_that_goes_back_is_seen() -> None:
    assert Written(commits={TP: [1, 4, 4, 3]}).steps_back() == [(TP, 4, 3)]
