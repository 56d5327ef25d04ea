"""Tickets that tests hand to machines: numbers, so that a test can tell them apart."""

from typing import Any

from ottla.coordinator.runtime.decision import Ticket
from ottla.errors import ApiError


class FakeTicket(int, Ticket[Any]):
    """A ticket of a machine that no shard drives: its responses stay in the decisions."""

    def deliver(self, value: object) -> None:
        raise AssertionError("no shard is here to deliver a response")

    def fail(self, error: ApiError) -> None:
        raise AssertionError("no shard is here to fail")


OWNER = FakeTicket(0)  # of the shard of a machine
