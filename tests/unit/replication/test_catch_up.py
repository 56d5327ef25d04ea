"""The bytes per second for replicas that are not in sync."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.replication.catch_up import CatchUpBudget


def test_without_a_rate_there_is_no_limit() -> None:
    budget = CatchUpBudget()
    budget.take(10**12)
    assert budget.wait_s(0, 1.0) == 0.0
    assert budget.wait_s(100, 1.0) == 0.0, "nor is anything owed from before"


def test_what_came_at_once_is_paid_back_before_more_may_come() -> None:
    budget = CatchUpBudget()
    assert budget.wait_s(100, 5.0) == 0.0
    budget.take(250)
    assert budget.wait_s(100, 5.0) == 2.5
    assert budget.wait_s(100, 6.0) == 1.5
    assert budget.wait_s(100, 7.5) == 0.0
    assert budget.wait_s(100, 99.0) == 0.0
    budget.take(100)
    assert budget.wait_s(100, 99.0) == 1.0, "nothing is saved up while nothing comes"


@given(st.lists(st.integers(1, 10**6), max_size=50), st.integers(1, 10**6))
def test_the_rate_is_kept_in_the_long_run(sizes: list[int], rate: int) -> None:
    budget, now_s = CatchUpBudget(), 0.0
    for size_bytes in sizes:
        now_s += budget.wait_s(rate, now_s)
        budget.take(size_bytes)
    now_s += budget.wait_s(rate, now_s)
    assert now_s * rate >= 0.999 * sum(sizes)
