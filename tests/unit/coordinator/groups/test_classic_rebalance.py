"""When a rebalance ends: with the last join, at its deadline, or when no more members come."""

import pytest

from ottla.coordinator.groups.classic_rebalance import RebalanceDeadlines

TIMEOUT_MS, DELAY_MS = 1000, 300


@pytest.fixture
def deadlines() -> RebalanceDeadlines:
    return RebalanceDeadlines()


def is_over(deadlines: RebalanceDeadlines, now_ms: int, *, is_complete: bool = False) -> bool:
    return deadlines.is_over(now_ms, delay_ms=DELAY_MS, is_complete=lambda: is_complete)


def test_a_rebalance_ends_when_all_have_joined(deadlines: RebalanceDeadlines) -> None:
    deadlines.begin(0, timeout_ms=TIMEOUT_MS, delay_ms=0)
    assert not is_over(deadlines, 1)
    assert is_over(deadlines, 1, is_complete=True)


def test_a_rebalance_ends_at_its_deadline(deadlines: RebalanceDeadlines) -> None:
    deadlines.begin(0, timeout_ms=TIMEOUT_MS, delay_ms=0)
    assert deadlines.next_ms() == TIMEOUT_MS
    assert not is_over(deadlines, TIMEOUT_MS - 1)
    assert is_over(deadlines, TIMEOUT_MS)


def test_the_first_rebalance_waits_although_all_have_joined(deadlines: RebalanceDeadlines) -> None:
    deadlines.begin(0, timeout_ms=TIMEOUT_MS, delay_ms=DELAY_MS)
    assert deadlines.next_ms() == DELAY_MS
    assert not is_over(deadlines, DELAY_MS - 1, is_complete=True)
    assert is_over(deadlines, DELAY_MS)


def test_each_newcomer_prolongs_the_delay_up_to_the_deadline(
    deadlines: RebalanceDeadlines,
) -> None:
    deadlines.begin(0, timeout_ms=TIMEOUT_MS, delay_ms=DELAY_MS)
    deadlines.note_newcomer()
    ends = []
    while not is_over(deadlines, deadlines.next_ms()):
        ends.append(deadlines.next_ms())
        deadlines.note_newcomer()
    assert ends == [600, 900, 1000]


def test_a_newcomer_of_the_last_delay_does_not_prolong_the_next(
    deadlines: RebalanceDeadlines,
) -> None:
    deadlines.note_newcomer()
    deadlines.begin(0, timeout_ms=TIMEOUT_MS, delay_ms=DELAY_MS)
    assert is_over(deadlines, DELAY_MS)
