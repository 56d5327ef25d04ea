"""Records that a log holds and readers do not see: those that wait, and commands about them.

On a topic with `delay.enable` the leader judges every batch that clients send. A batch in which
all records are hidden has the attribute `HIDES_ALL` and no largest timestamp; one in which some
are has `HIDES_SOME`, and the largest timestamp of the others. In such a batch a record is hidden
if it has one of the headers in `HIDING`; leaders take those off records that are not.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from ottla.errors import InvalidRecord, ProtocolViolation
from ottla.model import Offset, TimestampMs
from ottla.protocol.primitives import read_varint
from ottla.records.batch import (
    HIDES,
    HIDES_ALL,
    LEADER_WRITTEN,
    BatchHeader,
    Buffer,
    read_header,
)
from ottla.records.record_codec import Headers
from ottla.records.record_slices import RecordSlice, payload_of, rebuild, slice_records

DELIVER_AT: Final = "ottla.deliver-at"
DELAY: Final = "ottla.delay-ms"
CRON: Final = "ottla.cron"
TIMEZONE: Final = "ottla.timezone"
CANCEL: Final = "ottla.cancel"
DUE: Final = "ottla.due"
TICKET: Final = "ottla.ticket"
SENT_AT: Final = "ottla.sent-at"
SCHEDULE: Final = "ottla.schedule"

PREFIX: Final = b"ottla."


class TicketEnd(StrEnum):
    """Why a ticket does not wait, as refusals of cancels say it behind `ticket N`."""

    DELIVERED = "was delivered"
    CANCELLED = "was cancelled"
    UNDECIDED = "belongs to a transaction that is not committed"
    UNKNOWN = "is unknown, or ended long ago"

    def about(self, ticket: int) -> str:
        """The sentence about a ticket."""
        return f"ticket {ticket} {self.value}"

    @classmethod
    def read(cls, sentence: str) -> "TicketEnd | None":
        """The inverse of `about`, at the end of a text; None if it says something else."""
        return next((one for one in cls if sentence.endswith(one.value)), None)


COMMANDS: Final = frozenset({DELIVER_AT, DELAY, CRON, TIMEZONE, CANCEL})
HIDING: Final = frozenset({DELIVER_AT, DUE, CANCEL})
_CANCEL_BYTES: Final = CANCEL.encode()
_HIDING_BYTES: Final = frozenset(name.encode() for name in HIDING)
# Headers that mean something only where a leader wrote them.
LEADERS_OWN: Final = frozenset({DUE, TICKET, SENT_AT, SCHEDULE})


def without(headers: Headers, names: Iterable[str]) -> Headers:
    """The headers but for those with these names."""
    return tuple(header for header in headers if header[0] not in names)


def shown_slices(
    batch: Buffer, header: BatchHeader, bytes_max: int
) -> tuple[bytes, list[RecordSlice]]:
    """The payload of a batch that hides some records, and the slices of those that it shows."""
    payload = payload_of(batch, header, bytes_max)
    shown = []
    for one in slice_records(payload, header.record_count):
        start, end = one[0], one[1]
        # The search is fast, and a record without the prefix has none of the headers.
        if payload.find(PREFIX, start, end) < 0 or _HIDING_BYTES.isdisjoint(
            headers_at(payload, start)
        ):
            shown.append(one)
    return payload, shown


def first_shown_since(
    batch: Buffer, start: Offset, timestamp_ms: TimestampMs, *, decompressed_bytes_max: int
) -> tuple[Offset, TimestampMs] | None:
    """`first_since` for a batch that hides some records: those are passed over."""
    header = read_header(batch)
    _, shown = shown_slices(batch, header, decompressed_bytes_max)
    for _, _, delta_ms, delta, _, _ in shown:
        time_ms = header.base_timestamp_ms + delta_ms
        if header.is_log_append_time:
            time_ms = header.max_timestamp_ms
        if header.base_offset + delta >= start and time_ms >= timestamp_ms:
            return Offset(header.base_offset + delta), TimestampMs(time_ms)
    return None


def headers_at(payload: bytes, start: int) -> dict[bytes, bytes | None]:
    """The headers of the record at a position, by name; of several of a name the last one.

    Key and value are passed over: what waits in a log is found by this loop when it is read.
    """
    try:
        return _headers_at(payload, start)
    except (ProtocolViolation, IndexError) as problem:
        raise InvalidRecord(f"a record cannot be decoded: {problem}") from None


def _headers_at(payload: bytes, at: int) -> dict[bytes, bytes | None]:
    while payload[at] >= 0x80:  # the record's length
        at += 1
    at += 2  # and unused attributes
    while payload[at] >= 0x80:  # the timestamp's delta
        at += 1
    at += 1
    while payload[at] >= 0x80:  # the offset's delta
        at += 1
    at += 1
    for _ in range(2):  # key and value
        number = payload[at]
        if number < 0x80:
            at += 1 if number & 1 else 1 + (number >> 1)
        else:
            size_bytes, at = read_varint(payload, at)
            at += size_bytes
    count, at = read_varint(payload, at)
    found: dict[bytes, bytes | None] = {}
    for _ in range(count):
        name, at = _bytes_at(payload, at)
        value, at = _bytes_at(payload, at)
        found[name or b""] = value
    if at > len(payload):
        raise InvalidRecord("a header exceeds its batch")
    return found


def _bytes_at(payload: bytes, at: int) -> tuple[bytes | None, int]:
    number = payload[at]
    if number < 0x80:
        at += 1
        size_bytes = -1 if number & 1 else number >> 1
    else:
        size_bytes, at = read_varint(payload, at)
    if size_bytes < 0:
        return None, at
    end = at + size_bytes
    return payload[at:end], end


def cancel_indexes(batch: Buffer, header: BatchHeader, bytes_max: int) -> list[int]:
    """The indexes of the records of a client's batch that cancel."""
    payload = payload_of(batch, header, bytes_max)
    if _CANCEL_BYTES not in payload:
        return []
    starts = record_starts(payload, header.record_count)[:-1]
    return [
        index for index, start in enumerate(starts) if _CANCEL_BYTES in headers_at(payload, start)
    ]


def record_starts(payload: bytes, count: int) -> list[int]:
    """The positions at which the records of a payload begin, and its end."""
    starts = [0]
    at = 0
    try:
        for _ in range(count):
            number = payload[at]
            if number < 0x80:
                at += 1 + (number >> 1)
            elif payload[at + 1] < 0x80:
                at += 2 + ((number & 0x7F | payload[at + 1] << 7) >> 1)
            else:
                size_bytes, at = read_varint(payload, at)
                at += size_bytes
            starts.append(at)
    except (ProtocolViolation, IndexError) as problem:
        raise InvalidRecord(f"a record cannot be decoded: {problem}") from None
    if at != len(payload):
        raise InvalidRecord("the records do not fill their batch")
    return starts


def rebuild_shown(batch: Buffer, header: BatchHeader, bytes_max: int) -> bytearray | None:
    """A batch with the shown records alone, which ends with the last of them; None without any.

    The offsets of records stay as they are.
    """
    if header.attributes & HIDES_ALL:
        return None
    payload, shown = shown_slices(batch, header, bytes_max)
    if not shown:
        return None
    cleared = header._replace(
        attributes=header.attributes & ~(HIDES | LEADER_WRITTEN), last_offset_delta=shown[-1][3]
    )
    return rebuild(cleared, payload, shown)
