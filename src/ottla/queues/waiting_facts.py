"""Facts about records that wait, read from batches that a leader judged or wrote.

Only batches with the attributes `HIDES_SOME`, `HIDES_ALL` or `LEADER_WRITTEN` state facts, and
clients cannot set those. In a client's batch a record that is hidden waits, or cancels. In a
leader's own batch a record with a due time waits under the ticket that it names, and any other is
the copy that was released for its ticket.
"""

from typing import Final, NamedTuple

from ottla.errors import InvalidRecord
from ottla.records.batch import (
    CONTROL,
    HIDES,
    LEADER_WRITTEN,
    BatchHeader,
    Buffer,
    Record,
    records,
)
from ottla.records.hidden_records import CANCEL, CRON, DELIVER_AT, DUE, SCHEDULE, TICKET

NO_SCHEDULE: Final = -1
_FACTS: Final = HIDES | LEADER_WRITTEN


class Arm(NamedTuple):
    """A record that waits."""

    ticket: int
    due_ms: int
    offset: int  # of the record that has its content
    size_bytes: int
    schedule: int = NO_SCHEDULE  # the first ticket of a schedule


class Facts(NamedTuple):
    """The facts that one batch states: what it ends comes before what it arms."""

    arms: list[Arm]
    released: list[int]  # tickets
    cancelled: list[int]  # tickets, or first tickets of schedules


def states_facts(header: BatchHeader) -> bool:
    """True if the records of a batch have to be read for facts."""
    return bool(header.attributes & _FACTS) and not header.attributes & CONTROL


def read_facts(batch: Buffer, header: BatchHeader, decompressed_bytes_max: int) -> Facts:
    """The facts of a batch for which `states_facts` is true."""
    facts = Facts([], [], [])
    is_own = bool(header.attributes & LEADER_WRITTEN)
    for record in records(batch, decompressed_bytes_max=decompressed_bytes_max):
        found = {name: value for name, value in record.headers if value is not None}
        if is_own:
            _note_own(facts, record, found)
        elif CANCEL in found:
            facts.cancelled.append(_number(found[CANCEL]))
        elif DUE in found or DELIVER_AT in found:
            due_ms = _number(found[DUE] if DUE in found else found[DELIVER_AT])
            schedule = record.offset if CRON in found else NO_SCHEDULE
            facts.arms.append(
                Arm(record.offset, due_ms, record.offset, record_size(record), schedule)
            )
    return facts


def _note_own(facts: Facts, record: Record, found: dict[str, bytes]) -> None:
    if TICKET not in found:
        raise InvalidRecord(f"the leader's record at {record.offset} names no ticket")
    ticket = _number(found[TICKET])
    if DUE not in found:
        facts.released.append(ticket)
        return
    schedule = _number(found[SCHEDULE]) if SCHEDULE in found else NO_SCHEDULE
    facts.arms.append(
        Arm(ticket, _number(found[DUE]), record.offset, record_size(record), schedule)
    )


def record_size(record: Record) -> int:
    """About the bytes that a record takes in a log."""
    size = 16 + len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") + 2 for name, value in record.headers)


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidRecord(f"{text[:40]!r} is not a number") from None
