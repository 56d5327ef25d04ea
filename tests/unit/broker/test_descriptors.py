"""How descriptors are shared out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.descriptors import LIMIT_MIN, share_out
from ottla.errors import UsageRefused


@given(st.integers(LIMIT_MIN, 2**31))
def test_everybody_gets_some_and_some_are_left(limit: int) -> None:
    shares = share_out(limit)
    assert min(shares.files, shares.connections) >= LIMIT_MIN // 4
    assert shares.files + shares.connections <= limit - 32


def test_fifty_clients_with_two_connections_each_fit_under_a_limit_of_256() -> None:
    assert share_out(256).connections >= 100


def test_too_few_for_a_broker_are_refused_with_what_to_do() -> None:
    with pytest.raises(UsageRefused, match="ulimit -n"):
        share_out(LIMIT_MIN - 1)
