"""A coordinator's response becomes a message: at once, when its log commits, or as a refusal."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from ottla.broker.deferred import Deferred
from ottla.coordinator.runtime.decision import Ticket
from ottla.errors import ApiError, NotCoordinator


class FakeCoordinator:
    """Does with a ticket what the test says."""

    def __init__(self, act: Callable[[Ticket[int]], None]) -> None:
        self._act = act

    def submit(self, key: str, ticket: Ticket[int], decide: object) -> None:
        assert key == "g"
        self._act(ticket)


def submit(deferred: Deferred[int, str], act: Callable[[Ticket[int]], None]) -> object:
    return deferred.submit(cast("Any", FakeCoordinator(act)), "g", cast("Any", None))


class Text(Deferred[int, str]):
    def build(self, value: int) -> str:
        return f"value {value}"

    def refuse(self, error: ApiError) -> str:
        return f"refused {error}"


def new() -> Deferred[int, str]:
    return Text()


def test_a_response_that_waits_for_nothing_is_the_message() -> None:
    assert submit(new(), lambda ticket: ticket.deliver(0)) == "value 0"


def test_a_coordinator_that_cannot_be_asked_is_a_refusal() -> None:
    def refuse(ticket: Ticket[int]) -> None:
        raise NotCoordinator("elsewhere")

    assert submit(new(), refuse) == "refused elsewhere"


@pytest.mark.parametrize("error", [None, NotCoordinator("dropped")])
def test_a_response_that_waits_is_ready_once(error: ApiError | None) -> None:
    deferred, notes = new(), list[str]()
    assert submit(deferred, lambda ticket: None) is deferred
    assert not deferred.is_ready
    deferred.on_ready(lambda: notes.append("ready"))
    if error is None:
        deferred.deliver(7)
    else:
        deferred.fail(error)
    assert notes == ["ready"]
    assert deferred.message() == ("value 7" if error is None else "refused dropped")
    with pytest.raises(AssertionError, match="one response"):
        deferred.deliver(8)
