"""How often something may happen."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.rate_limit import RateLimit


def test_a_second_s_worth_may_happen_at_once_and_then_nothing() -> None:
    limit = RateLimit(0.0)
    assert limit.take(100, per_second=10, now_s=0.0) == 10
    assert limit.take(1, per_second=10, now_s=0.0) == 0


def test_what_time_gives_back_may_happen_again() -> None:
    limit = RateLimit(0.0)
    limit.take(10, per_second=10, now_s=0.0)
    assert limit.take(10, per_second=10, now_s=0.5) == 5
    assert limit.take(100, per_second=10, now_s=60.0) == 10, "not more than a second is saved up"


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(0, 60), st.floats(0, 2)), max_size=50))
def test_never_more_than_the_rate_and_one_second_s_worth(
    per_second: int, asked: list[tuple[int, float]]
) -> None:
    limit, now_s, allowed = RateLimit(0.0), 0.0, 0
    for count, pause_s in asked:
        now_s += pause_s
        allowed += limit.take(count, per_second=per_second, now_s=now_s)
        assert allowed <= per_second * (now_s + 1) + 1e-6
