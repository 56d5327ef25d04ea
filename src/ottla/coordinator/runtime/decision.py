"""Decisions of a coordinator's state machine: records to write, responses to send."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from ottla.errors import ApiError

A = TypeVar("A")
RecordT = TypeVar("RecordT")


class Ticket(ABC, Generic[A]):
    """Where the response of type A to one request goes.

    A machine responds to a ticket by putting `ticket.respond(value)` into a decision: the one that
    the request caused, or a later one, as a join gets its response when the last member joins.
    """

    __slots__ = ()

    @abstractmethod
    def deliver(self, value: A) -> None:
        """Send the response; everything that it rests on is committed."""

    @abstractmethod
    def fail(self, error: ApiError) -> None:
        """The shard was dropped before it responded."""

    def respond(self, value: A) -> "Response[A]":
        return tuple.__new__(Response, (self, value))  # without a call in Python, for this is hot


class Response(NamedTuple, Generic[A]):
    """A value for a ticket, kept by the shard until the decision it is part of is committed."""

    ticket: Ticket[A]
    value: A


Responses = tuple[Response[Any], ...]  # of tickets of different types; each pair was checked


class Decision(NamedTuple, Generic[RecordT]):
    """A decision may respond to other tickets than that of the event, and to that one later."""

    records: tuple[RecordT, ...] = ()
    responses: Responses = ()


def merge(decisions: Sequence[Decision[RecordT]]) -> Decision[RecordT]:
    """The records and responses of several decisions, in their order."""
    return Decision(
        tuple(record for decision in decisions for record in decision.records),
        tuple(response for decision in decisions for response in decision.responses),
    )
