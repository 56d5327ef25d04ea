"""Copies of records that waited, which a leader appends: released, or to wait on elsewhere."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from ottla.model import NO_TIMESTAMP, TimestampMs
from ottla.queues.pending_records import Waiting
from ottla.queues.schedules import InvalidSchedule, Schedule
from ottla.queues.waiting_facts import NO_SCHEDULE
from ottla.records.batch import (
    HEADER_BYTES,
    HIDES_ALL,
    HIDES_SOME,
    LEADER_WRITTEN,
    Packed,
    Record,
    assemble,
    read_header,
    seal,
)
from ottla.records.compression import Codec
from ottla.records.hidden_records import (
    COMMANDS,
    CRON,
    DUE,
    LEADERS_OWN,
    SCHEDULE,
    SENT_AT,
    TICKET,
    TIMEZONE,
)
from ottla.records.record_parts import HeaderPart, RecordParts, encode_header, write_parts

Content = tuple[Record, bool]  # a record that waits, and whether a leader wrote it

_NOT_COPIED: Final = frozenset(name.encode() for name in COMMANDS | LEADERS_OWN)
_OF_SCHEDULES: Final = frozenset(name.encode() for name in (CRON, TIMEZONE))
_CRON, _TIMEZONE, _SENT_AT = (name.encode() for name in (CRON, TIMEZONE, SENT_AT))


class Original(NamedTuple):
    """A record that waits, in parts; `codec` is that of its batch."""

    parts: RecordParts
    timestamp_ms: int
    is_own: bool  # a leader wrote it
    codec: Codec


class Copy(NamedTuple):
    """A record for a leader's own batch; the headers are encoded."""

    key_and_value: bytes
    headers: list[bytes]
    is_hidden: bool

    @property
    def size_bytes(self) -> int:
        """About its size in the batch."""
        return len(self.key_and_value) + sum(map(len, self.headers)) + 8


def released(
    original: Original, waiting: Waiting, offset: int, until_ms: TimestampMs
) -> list[Copy]:
    """The copy that readers see, and the next occurrence of a schedule, from `offset` on.

    What a schedule missed is not made up for: the next occurrence is the first after `until_ms`,
    up to which everything is due.
    """
    headers = _kept_and_own(original, waiting.ticket)
    if waiting.schedule == NO_SCHEDULE:
        return [Copy(original.parts.key_and_value, headers, is_hidden=False)]
    headers.append(encode_header(SCHEDULE, _text(waiting.schedule)))
    copies = [Copy(original.parts.key_and_value, headers, is_hidden=False)]
    due_ms = _next_ms(original.parts.headers, until_ms)
    if due_ms is not None:
        next_offset = offset + 1
        following = Waiting(next_offset, due_ms, next_offset, waiting.schedule)
        copies.append(rearmed(original, following))
    return copies


def rearmed(original: Original, waiting: Waiting) -> Copy:
    """The copy that waits instead of a record, under a ticket."""
    headers = _kept_and_own(original, waiting.ticket)
    headers.append(encode_header(DUE, _text(waiting.due_ms)))
    if waiting.schedule != NO_SCHEDULE:
        found = original.parts.headers
        headers += [header.encoded for header in found if header.name in _OF_SCHEDULES]
        headers.append(encode_header(SCHEDULE, _text(waiting.schedule)))
    return Copy(original.parts.key_and_value, headers, is_hidden=True)


def build_copies(copies: Sequence[Copy], codec: Codec, now_ms: TimestampMs) -> bytearray:
    """The batch of such copies, with the attributes that make it a leader's."""
    payload = bytearray()
    for delta, copy in enumerate(copies):
        write_parts(payload, delta, copy.key_and_value, copy.headers)
    batch = seal(Packed(payload, len(copies), now_ms, now_ms), codec=codec)
    header = read_header(batch)
    hidden_count = sum([copy.is_hidden for copy in copies])
    attributes = header.attributes | LEADER_WRITTEN
    newest_ms = header.max_timestamp_ms
    if hidden_count == len(copies):
        attributes |= HIDES_ALL
        newest_ms = NO_TIMESTAMP
    elif hidden_count:
        attributes |= HIDES_SOME
    changed = header._replace(attributes=attributes, max_timestamp_ms=newest_ms)
    return assemble(changed, batch[HEADER_BYTES:])


def _kept_and_own(original: Original, ticket: int) -> list[bytes]:
    """The headers of the original that a copy has, the ticket, and when the record was sent."""
    sent_at = _text(original.timestamp_ms)
    kept = []
    for name, value, encoded in original.parts.headers:
        if name not in _NOT_COPIED:
            kept.append(encoded)
        elif original.is_own and name == _SENT_AT:
            sent_at = value or b""
    return [*kept, encode_header(TICKET, _text(ticket)), encode_header(SENT_AT, sent_at)]


def _next_ms(headers: Sequence[HeaderPart], after_ms: TimestampMs) -> int | None:
    """The next time of a schedule; None if it is over, or its zone is not known any more."""
    found = {header.name: header.value for header in headers}
    try:
        return Schedule.read(found.get(_CRON), found.get(_TIMEZONE)).next_ms(after_ms)
    except InvalidSchedule:
        return None


def _text(number: int) -> bytes:
    return b"%d" % number
