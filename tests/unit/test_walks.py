"""Walks of requests, from the socket to the response, as `python -m tools.walks` counts them."""

from collections.abc import Mapping
from typing import Final

import pytest

from tools.walks import Walk, take_walks

# Functions that call others of ours. A walk may become shorter, and then so does its number.
STOPS_MAX: Final = {
    "Produce of one batch, acks=all, fsync": 29,
    "Fetch that waits, and the Produce that wakes it": 63,
    "OffsetCommit, fsync": 55,
}


@pytest.fixture(scope="module")
def walks() -> Mapping[str, Walk]:
    return take_walks()


@pytest.mark.parametrize("name", STOPS_MAX)
def test_no_walk_becomes_longer(walks: Mapping[str, Walk], name: str) -> None:
    stops = sorted(code.co_qualname for code in walks[name].stops)
    assert len(stops) <= STOPS_MAX[name], stops


def test_a_walk_is_counted_from_the_socket_to_the_disk(walks: Mapping[str, Walk]) -> None:
    names = {code.co_qualname for code in walks["OffsetCommit, fsync"].stops}
    assert {"Connection.buffer_updated", "Shard.submit", "FlushWork.run"} <= names
