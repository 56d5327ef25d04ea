"""What follows from an event: what to write down, and who is answered once it is."""

from typing import NamedTuple

from ottla.coordinator.records import Record

Ticket = int  # who is to be answered; given by the shard


class Outcome(NamedTuple):
    """An event may answer others than the one who caused it, and need not answer that one yet."""

    records: tuple[Record, ...] = ()
    answers: tuple[tuple[Ticket, object], ...] = ()
