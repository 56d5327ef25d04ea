"""What was promised without an offset is looked for by its number."""

import pytest

from crash.load import Acked, Letter, Load, Partition, check_promises, ends_of

TP: Partition = ("orders", 0)


@pytest.fixture
def load() -> Load:
    """A producer that is never started: nothing listens there."""
    return Load("127.0.0.1:1", "one", [TP], is_idempotent=True)


def test_a_record_without_an_offset_is_there_or_lost(load: Load) -> None:
    load.acked[TP] = [Acked(0, 0), Acked(None, 1), Acked(2, 2)]
    whole = [Letter(number, "one", number) for number in range(3)]
    assert check_promises({TP: whole}, {load: load.acked}) == 3
    assert ends_of(load) == {TP: 3}
    with pytest.raises(AssertionError, match="1 acknowledged records are lost"):
        check_promises({TP: whole[:1]}, {load: {TP: load.acked[TP][:2]}})


def test_a_record_without_an_offset_may_lie_before_what_retention_has_left(load: Load) -> None:
    load.acked[TP] = [Acked(None, 0), Acked(1, 1)]
    for left in ([Letter(1, "one", 1)], [Letter(2, "another", 0)]):
        assert check_promises({TP: left}, {load: load.acked}) == 2
    for left, number in (([Letter(1, "one", 1)], 2), ([Letter(0, "another", 0)], 0)):
        with pytest.raises(AssertionError, match="1 acknowledged records are lost"):
            check_promises({TP: left}, {load: {TP: [Acked(None, number)]}})
