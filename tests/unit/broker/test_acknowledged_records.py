"""Which records every share group has finished."""

import pytest

from ottla.broker.acknowledged_records import finished_below
from ottla.model import Offset
from ottla.queues.share_state import NO_START


@pytest.mark.parametrize(
    ("readers", "starts", "expected"),
    [
        ("", {}, None),
        ("a", {}, None),
        ("a", {"a": 5}, 5),
        ("ab", {"a": 5}, None),
        ("ab", {"a": 5, "b": 3}, 3),
        ("", {"a": 5, "b": 3}, 3),
        ("ab", {"a": 5, "b": NO_START}, None),
    ],
)
def test_the_slowest_group_decides_and_one_that_has_not_begun_holds_all(
    readers: str, starts: dict[str, int], expected: int | None
) -> None:
    offsets = {group: Offset(start) for group, start in starts.items()}
    assert finished_below(set(readers), offsets) == expected
