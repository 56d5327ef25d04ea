"""What follows from an event: what to write down, and who is answered once it is."""

from typing import Final, Generic, NamedTuple, TypeVar

from ottla.coordinator.records import Record

Ticket = int  # who is to be answered; given by the shard
OWNER: Final[Ticket] = 0  # of the shard: it is told what to do now that something is committed
RecordT = TypeVar("RecordT")


class Decision(NamedTuple, Generic[RecordT]):
    """An event may answer others than the one who caused it, and need not answer that one yet."""

    records: tuple[RecordT, ...] = ()
    answers: tuple[tuple[Ticket, object], ...] = ()


Outcome = Decision[Record]  # of an event in groups
