from hypothesis import given
from hypothesis import strategies as st

from ottla.model import BrokerId, Offset
from ottla.replication.progress import high_watermark

ends = st.dictionaries(st.integers(1, 5).map(BrokerId), st.integers(0, 100).map(Offset), min_size=1)


@given(st.integers(0, 100).map(Offset), ends, st.integers(1, 5))
def test_it_never_goes_back_and_never_passes_an_in_sync_replica(
    current: Offset, known: dict[BrokerId, Offset], isr_min: int
) -> None:
    reached = high_watermark(current, frozenset(known), known, isr_min=isr_min)
    assert reached >= current
    assert reached == current or reached == min(known.values())


def test_it_stands_still_below_the_minimum_isr() -> None:
    known = {BrokerId(1): Offset(9)}
    assert high_watermark(Offset(3), frozenset(known), known, isr_min=2) == 3
    assert high_watermark(Offset(3), frozenset(known), known, isr_min=1) == 9
