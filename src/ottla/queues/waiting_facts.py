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
)
from ottla.records.hidden_records import (
    CANCEL,
    CRON,
    DELIVER_AT,
    DUE,
    SCHEDULE,
    TICKET,
    headers_at,
    record_starts,
)
from ottla.records.record_slices import payload_of

NO_SCHEDULE: Final = -1
_FACTS: Final = HIDES | LEADER_WRITTEN
_CANCEL, _CRON, _DELIVER_AT, _DUE, _SCHEDULE, _TICKET = (
    name.encode() for name in (CANCEL, CRON, DELIVER_AT, DUE, SCHEDULE, TICKET)
)


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
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRecord(f"the batch at {header.base_offset} states facts and lacks records")
    facts = Facts([], [], [])
    is_own = bool(header.attributes & LEADER_WRITTEN)
    payload = payload_of(batch, header, decompressed_bytes_max)
    starts = record_starts(payload, header.record_count)
    for delta in range(header.record_count):
        found = headers_at(payload, starts[delta])
        offset = header.base_offset + delta
        size_bytes = starts[delta + 1] - starts[delta]
        if is_own:
            _note_own(facts, found, offset, size_bytes)
        elif _CANCEL in found:
            facts.cancelled.append(_number(found[_CANCEL]))
        elif _DUE in found or _DELIVER_AT in found:
            due_ms = _number(found[_DUE] if _DUE in found else found[_DELIVER_AT])
            schedule = offset if _CRON in found else NO_SCHEDULE
            facts.arms.append(Arm(offset, due_ms, offset, size_bytes, schedule))
    return facts


def _note_own(facts: Facts, found: dict[bytes, bytes | None], offset: int, size_bytes: int) -> None:
    if _TICKET not in found:
        raise InvalidRecord(f"the leader's record at {offset} names no ticket")
    ticket = _number(found[_TICKET])
    if _DUE not in found:
        facts.released.append(ticket)
        return
    schedule = _number(found[_SCHEDULE]) if _SCHEDULE in found else NO_SCHEDULE
    facts.arms.append(Arm(ticket, _number(found[_DUE]), offset, size_bytes, schedule))


def _number(text: bytes | None) -> int:
    try:
        return int(text or b"")
    except ValueError:
        raise InvalidRecord(f"{(text or b'')[:40]!r} is not a number") from None
