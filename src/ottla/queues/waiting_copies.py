"""Copies of records that waited, which a leader appends: released, or to wait on elsewhere."""

from collections.abc import Sequence

from ottla.model import NO_TIMESTAMP, Offset, TimestampMs
from ottla.queues.pending_records import Waiting
from ottla.queues.schedules import InvalidSchedule, Schedule
from ottla.queues.waiting_facts import NO_SCHEDULE
from ottla.records.batch import HEADER_BYTES as _HEADER_BYTES
from ottla.records.batch import (
    HIDES_ALL,
    HIDES_SOME,
    LEADER_WRITTEN,
    Record,
    assemble,
    build_batch,
    read_header,
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
    is_hidden,
    without,
)
from ottla.records.record_codec import Headers

Content = tuple[Record, bool]  # a record that waits, and whether a leader wrote it


def released(
    content: Content,
    waiting: Waiting,
    offset: Offset,
    now_ms: TimestampMs,
    until_ms: TimestampMs,
) -> list[Record]:
    """The copy that readers see, and the next occurrence of a schedule, from `offset` on.

    What a schedule missed is not made up for: the next occurrence is the first after `until_ms`,
    up to which everything is due.
    """
    record, _ = content
    headers = _own_headers(content, waiting.ticket)
    if waiting.schedule != NO_SCHEDULE:
        headers = (*headers, (SCHEDULE, _text(waiting.schedule)))
    kept = without(record.headers, COMMANDS | LEADERS_OWN)
    copies = [_copy(record, offset, now_ms, (*kept, *headers))]
    due_ms = None if waiting.schedule == NO_SCHEDULE else _next_ms(record.headers, until_ms)
    if due_ms is not None:
        next_offset = Offset(offset + 1)
        following = Waiting(next_offset, due_ms, next_offset, waiting.schedule)
        copies.append(rearmed(content, following, next_offset, now_ms))
    return copies


def rearmed(content: Content, waiting: Waiting, offset: Offset, now_ms: TimestampMs) -> Record:
    """The copy that waits instead of a record, under a ticket."""
    record, _ = content
    headers = [*_own_headers(content, waiting.ticket), (DUE, _text(waiting.due_ms))]
    if waiting.schedule != NO_SCHEDULE:
        headers += [one for one in record.headers if one[0] in {CRON, TIMEZONE}]
        headers.append((SCHEDULE, _text(waiting.schedule)))
    kept = without(record.headers, COMMANDS | LEADERS_OWN)
    return _copy(record, offset, now_ms, (*kept, *headers))


def build_copies(copies: Sequence[Record], codec: Codec) -> bytearray:
    """The batch of such copies, with the attributes that make it a leader's."""
    batch = build_batch(copies, codec=codec)
    header = read_header(batch)
    hidden = [is_hidden(record.headers) for record in copies]
    attributes = header.attributes | LEADER_WRITTEN
    newest_ms = header.max_timestamp_ms
    if all(hidden):
        attributes |= HIDES_ALL
        newest_ms = NO_TIMESTAMP
    elif any(hidden):
        attributes |= HIDES_SOME
    changed = header._replace(attributes=attributes, max_timestamp_ms=newest_ms)
    return assemble(changed, batch[_HEADER_BYTES:])


def _own_headers(content: Content, ticket: int) -> Headers:
    record, is_own = content
    sent_at = _text(record.timestamp_ms)
    if is_own:
        sent_at = next((value or b"" for name, value in record.headers if name == SENT_AT), sent_at)
    return ((TICKET, _text(ticket)), (SENT_AT, sent_at))


def _copy(record: Record, offset: Offset, now_ms: TimestampMs, headers: Headers) -> Record:
    return Record(
        offset=offset, timestamp_ms=now_ms, key=record.key, value=record.value, headers=headers
    )


def _next_ms(headers: Headers, after_ms: TimestampMs) -> int | None:
    """The next time of a schedule; None if it is over, or its zone is not known any more."""
    found = dict(headers)
    try:
        return Schedule.read(found.get(CRON), found.get(TIMEZONE)).next_ms(after_ms)
    except InvalidSchedule:
        return None


def _text(number: int) -> bytes:
    return str(number).encode()
