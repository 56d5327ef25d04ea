"""Tickets that tests hand to machines: numbers, so that a test can tell them apart."""

from typing import Any

from ottla.coordinator.groups.records import GroupDecision, Record
from ottla.coordinator.runtime.decision import Ticket
from ottla.coordinator.runtime.log_entries import TransactionEnded
from ottla.errors import ApiError


class FakeTicket(int, Ticket[Any]):
    """A ticket of a machine that no shard drives: its responses stay in the decisions."""

    def deliver(self, value: object) -> None:
        raise AssertionError("no shard is here to deliver a response")

    def fail(self, error: ApiError) -> None:
        raise AssertionError("no shard is here to fail")


OWNER = FakeTicket(0)  # of the shard of a machine


def responses(decision: GroupDecision) -> list[tuple[FakeTicket, object]]:
    """The responses of a decision with their tickets, in order."""
    found: list[tuple[FakeTicket, object]] = []
    for ticket, response in decision.responses:
        assert isinstance(ticket, FakeTicket)
        found.append((ticket, response))
    return found


def written(decision: GroupDecision) -> list[Record]:
    """The records of a decision: the end of a transaction is never one of them."""
    found: list[Record] = []
    for record in decision.records:
        assert not isinstance(record, TransactionEnded)
        found.append(record)
    return found
