"""Decisions: which value goes to which ticket."""

from ottla.coordinator.runtime.decision import Decision, Response, Ticket, merge
from ottla.errors import ApiError


class NotedTicket(Ticket[int]):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[int] = []

    def deliver(self, value: int) -> None:
        self.values.append(value)

    def fail(self, error: ApiError) -> None:
        raise AssertionError("no shard is dropped here")


def test_a_response_is_kept_with_its_ticket_until_it_is_delivered() -> None:
    first, second = NotedTicket(), NotedTicket()
    decision = Decision[str](("record",), (second.respond(2), first.respond(1)))
    assert decision.responses == (Response(second, 2), Response(first, 1))
    assert (first.values, second.values) == ([], []), "the records are not committed yet"
    for ticket, value in decision.responses:
        ticket.deliver(value)
    assert (first.values, second.values) == ([1], [2])


def test_a_decision_may_write_nothing_and_respond_to_no_ticket() -> None:
    assert Decision[str]() == ((), ())


def test_several_decisions_become_one_in_their_order() -> None:
    ticket = NotedTicket()
    first = Decision[str](("a", "b"), (ticket.respond(1),))
    second = Decision[str](("c",), (ticket.respond(2),))
    assert merge([first, Decision(), second]) == (
        ("a", "b", "c"),
        (Response(ticket, 1), Response(ticket, 2)),
    )
