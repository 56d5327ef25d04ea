"""Copies of records that waited, which a leader appends: released, or to wait on elsewhere."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.model import NO_EPOCH, NO_PRODUCER, NO_SEQUENCE, NO_TIMESTAMP, TimestampMs
from ottla.queues.pending_records import Waiting
from ottla.queues.schedules import InvalidSchedule, Schedule
from ottla.queues.waiting_facts import NO_SCHEDULE, Arm, Facts
from ottla.records.batch import (
    HIDES_ALL,
    HIDES_SOME,
    LEADER_WRITTEN,
    MAGIC,
    NO_PRODUCER_EPOCH,
    BatchHeader,
    Record,
    assemble,
)
from ottla.records.compression import Codec, compress
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
from ottla.records.record_parts import (
    HeaderPart,
    encode_header,
    encode_varint,
    read_headers,
    write_parts,
)

Content = tuple[Record, bool]  # a record that waits, and whether a leader wrote it

_NOT_COPIED: Final = frozenset(name.encode() for name in COMMANDS | LEADERS_OWN)
_OF_SCHEDULES: Final = frozenset(name.encode() for name in (CRON, TIMEZONE))
_CRON, _TIMEZONE, _SENT_AT = (name.encode() for name in (CRON, TIMEZONE, SENT_AT))
_OWN_OF_RELEASED: Final = 2  # headers of a leader's own: the ticket, and when the record was sent


class CopiedHeaders(NamedTuple):
    """The headers of an original, as far as copies take them over."""

    kept: list[bytes]  # those that are neither commands nor a leader's own, encoded
    released: bytes  # the same, behind the count of what a released copy has
    sent_at: bytes | None  # encoded, as a leader noted it; None if the original's timestamp says it
    of_schedule: dict[bytes, HeaderPart]  # by name


class Original(NamedTuple):
    """A record that waits; key and value are encoded, and `codec` is that of its batch."""

    key_and_value: bytes
    headers: CopiedHeaders
    timestamp_ms: int
    codec: Codec


def read_copied(encoded: bytes, *, is_own: bool) -> CopiedHeaders:
    """The headers that copies of a record take over; `is_own` is True if a leader wrote it."""
    kept, sent_at = list[bytes](), None
    of_schedule: dict[bytes, HeaderPart] = {}
    for header in read_headers(encoded):
        if header.name not in _NOT_COPIED:
            kept.append(header.encoded)
        elif header.name in _OF_SCHEDULES:
            of_schedule[header.name] = header
        elif is_own and header.name == _SENT_AT:
            sent_at = encode_header(SENT_AT, header.value or b"")
    released = encode_varint(len(kept) + _OWN_OF_RELEASED) + b"".join(kept)
    return CopiedHeaders(kept, released, sent_at, of_schedule)


class CopyBatch:
    """The batch of copies that a leader is about to append, and the facts that it states."""

    def __init__(self, base_offset: int) -> None:
        """`base_offset` is the end of the log, where the batch will begin."""
        self.facts = Facts([], [], [])
        self._next_offset = base_offset
        self._base_offset = base_offset
        self._payload = bytearray()
        self._codec = Codec.NONE
        self._sent_ms: int = NO_TIMESTAMP  # of the last original, and the header that says so
        self._sent_at = _header(SENT_AT, NO_TIMESTAMP)

    @property
    def size_bytes(self) -> int:
        """The size of the copies, without the header of their batch."""
        return len(self._payload)

    def release(self, original: Original, waiting: Waiting, until_ms: TimestampMs) -> None:
        """Add the copy that readers see, and the next occurrence of a schedule behind it.

        What a schedule missed is not made up for: the next occurrence is the first after
        `until_ms`, up to which everything is due.
        """
        own = _header(TICKET, waiting.ticket) + self._sent_at_of(original)
        self.facts.released.append(waiting.ticket)
        if waiting.schedule == NO_SCHEDULE:
            self._write(original, original.headers.released + own)
            return
        headers = [*original.headers.kept, own, _header(SCHEDULE, waiting.schedule)]
        count = len(original.headers.kept) + _OWN_OF_RELEASED + 1
        self._write(original, encode_varint(count) + b"".join(headers))
        due_ms = _next_ms(original.headers.of_schedule, until_ms)
        if due_ms is not None:
            offset = self._next_offset
            self.rearm(original, Waiting(offset, due_ms, offset, waiting.schedule))

    def rearm(self, original: Original, waiting: Waiting) -> None:
        """Add the copy that waits instead of a record, under a ticket."""
        ticket, sent_at = _header(TICKET, waiting.ticket), self._sent_at_of(original)
        headers = [*original.headers.kept, ticket, sent_at, _header(DUE, waiting.due_ms)]
        if waiting.schedule != NO_SCHEDULE:
            headers += [header.encoded for header in original.headers.of_schedule.values()]
            headers.append(_header(SCHEDULE, waiting.schedule))
        offset, begin = self._next_offset, len(self._payload)
        self._write(original, encode_varint(len(headers)) + b"".join(headers))
        size_bytes = len(self._payload) - begin
        self.facts.arms.append(
            Arm(waiting.ticket, waiting.due_ms, offset, size_bytes, waiting.schedule)
        )

    def build(self, now_ms: TimestampMs) -> bytearray:
        """The batch, with the attributes that make it a leader's."""
        count = self._next_offset - self._base_offset
        hidden_count = len(self.facts.arms)
        attributes, newest_ms = LEADER_WRITTEN, now_ms
        if hidden_count == count:
            attributes, newest_ms = LEADER_WRITTEN | HIDES_ALL, NO_TIMESTAMP
        elif hidden_count:
            attributes = LEADER_WRITTEN | HIDES_SOME
        header = BatchHeader(
            base_offset=self._base_offset,
            length=0,  # this and the CRC are those of what is assembled
            leader_epoch=NO_EPOCH,
            magic=MAGIC,
            crc=0,
            attributes=attributes | self._codec,
            last_offset_delta=count - 1,
            base_timestamp_ms=now_ms,
            max_timestamp_ms=newest_ms,
            producer_id=NO_PRODUCER,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            record_count=count,
        )
        return assemble(header, compress(self._payload, self._codec))

    def _write(self, original: Original, headers: bytes) -> None:
        delta = self._next_offset - self._base_offset
        write_parts(self._payload, delta, original.key_and_value, headers)
        self._next_offset += 1
        if original.codec > self._codec:
            self._codec = original.codec

    def _sent_at_of(self, original: Original) -> bytes:
        """The header that says when the record was sent; often the same as that of the last."""
        if original.headers.sent_at is not None:
            return original.headers.sent_at
        if original.timestamp_ms != self._sent_ms:
            self._sent_ms = original.timestamp_ms
            self._sent_at = _header(SENT_AT, original.timestamp_ms)
        return self._sent_at


def _next_ms(headers: Mapping[bytes, HeaderPart], after_ms: TimestampMs) -> int | None:
    """The next time of a schedule; None if it is over, or its zone is not known any more."""
    cron, timezone = headers.get(_CRON), headers.get(_TIMEZONE)
    try:
        schedule = Schedule.read(cron and cron.value, timezone and timezone.value)
        return schedule.next_ms(after_ms)
    except InvalidSchedule:
        return None


def _header(name: str, number: int) -> bytes:
    return encode_header(name, b"%d" % number)
