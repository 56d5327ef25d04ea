from ottla.errors import ApiError, NotLeader
from ottla.model import Offset
from ottla.replication.waiters import OffsetWaiters, Settled


def test_those_whose_offset_is_reached_are_woken_in_order() -> None:
    waiters, woken = OffsetWaiters(), list[int]()

    def note(offset: int) -> Settled:
        return lambda error: woken.append(offset)

    for offset in (3, 5, 9):
        waiters.add(Offset(offset), note(offset))
    waiters.advance(Offset(5))
    assert woken == [3, 5]
    assert len(waiters) == 1


def test_when_there_is_no_hope_everyone_learns_why() -> None:
    waiters, told = OffsetWaiters(), list[ApiError | None]()
    waiters.add(Offset(3), told.append)
    lost = NotLeader("moved")
    waiters.fail(lost)
    assert told == [lost]
    assert len(waiters) == 0
