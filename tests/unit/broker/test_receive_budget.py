"""Memory for requests: one budget, and always one request that may go on."""

from ottla.broker.receive_budget import ReceiveBudget
from ottla.config import BrokerConfig
from ottla.settings import Settings

LIMIT_BYTES = 1 << 20


class Receiver:
    def __init__(self) -> None:
        self.notes = 0

    def note_budget(self) -> None:
        self.notes += 1


def budget() -> ReceiveBudget:
    config = BrokerConfig().override({"queued.max.request.bytes": str(LIMIT_BYTES)})
    return ReceiveBudget(Settings(config))


def test_within_the_budget_no_request_waits() -> None:
    made = budget()
    made.add(LIMIT_BYTES)
    assert not made.is_exceeded
    assert not made.must_wait(Receiver())


def test_beyond_the_budget_one_request_goes_on_and_the_others_wait_in_turn() -> None:
    made = budget()
    first, second, third = Receiver(), Receiver(), Receiver()
    made.add(LIMIT_BYTES + 1)
    assert not made.must_wait(first)
    assert not made.must_wait(first), "it is the one that may exceed"
    assert made.must_wait(second)
    assert made.must_wait(third)
    assert made.is_waiting(second)
    made.finish(first)
    assert (second.notes, third.notes) == (1, 0)
    assert not made.is_waiting(second)
    made.finish(third)
    assert third.notes == 0, "it was not the one that exceeded"
    made.add(-LIMIT_BYTES)
    assert third.notes == 1


def test_a_lost_connection_neither_waits_nor_exceeds() -> None:
    made = budget()
    first, second, third = Receiver(), Receiver(), Receiver()
    made.add(LIMIT_BYTES + 1)
    assert not made.must_wait(first)
    assert made.must_wait(second)
    assert made.must_wait(third)
    made.forget(second)
    assert not made.is_waiting(second)
    made.forget(first)
    assert (second.notes, third.notes) == (0, 1)
