"""Offsets that a member has lost: ranges that are held to a set of numbers."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.queues import lost_offsets
from ottla.queues.lost_offsets import LostOffsets

RANGES = st.tuples(st.integers(0, 30), st.integers(1, 8)).map(lambda r: (r[0], r[0] + r[1]))


@given(st.lists(st.tuples(st.booleans(), RANGES), max_size=30))
def test_ranges_say_what_a_set_of_offsets_says(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    lost, model = LostOffsets(), set[int]()
    for is_added, (start, end) in steps:
        if is_added:
            lost.add(start, end)
            model.update(range(start, end))
        else:
            lost.discard(start, end)
            model.difference_update(range(start, end))
        for first in range(40):
            expected = min((at for at in model if first <= at < first + 5), default=None)
            assert lost.first_in(first, first + 5) == expected
        runs = [at for at in model if at - 1 not in model]
        assert len(lost) == len(runs), "adjacent ranges are one"


def test_the_lowest_offsets_are_forgotten_when_there_are_too_many() -> None:
    lost = LostOffsets()
    for number in range(lost_offsets._RANGES_MAX + 1):
        lost.add(2 * number, 2 * number + 1)
    assert len(lost) == lost_offsets._RANGES_MAX
    assert lost.first_in(0, 10) == 2
