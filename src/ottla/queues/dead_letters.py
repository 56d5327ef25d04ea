"""Dead letters: copies of records that a share group could not process, as Kafka 4.4 names them.

Their headers are described in `ottla.records.dead_letter_headers`.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.model import TimestampMs
from ottla.queues.dead_records import DeadRecord
from ottla.queues.share_state import Cause
from ottla.records.batch import Record
from ottla.records.dead_letter_headers import (
    CAUSE,
    DELIVERIES,
    GROUP,
    HAS_NO_COPY,
    HISTORY,
    MESSAGE,
    OFFSET,
    PARTITION,
    SENT_AT,
    TOPIC,
    history_of,
    own_headers,
)

CAUSE_NAMES: Final[Mapping[Cause, str]] = {
    Cause.DELIVERY_LIMIT: "delivery-limit",
    Cause.REJECTED: "rejected",
    Cause.EXPIRED: "expired",
}
_SENTENCES: Final[Mapping[Cause, str]] = {
    Cause.DELIVERY_LIMIT: "delivered as often as the group allows",
    Cause.REJECTED: "rejected by a consumer",
    Cause.EXPIRED: "not delivered before the end of its ottla.ttl-ms",
}


class Origin(NamedTuple):
    """The share partition in which records died."""

    group_id: str
    topic: str
    partition: int


def dead_letter(
    origin: Origin, dead: DeadRecord, record: Record | None, now_ms: TimestampMs, *, copies: bool
) -> Record:
    """The dead letter of a record; without its key and value unless it `copies` them.

    `record` is None if it cannot be read any more.
    """
    message = _SENTENCES[dead.cause]
    if dead.reason:
        message += f": {dead.reason}"
    if record is None:
        message += "; the record could not be read when this was written"
    is_copy = copies and record is not None
    about: list[tuple[str, bytes | None]] = [
        (TOPIC, origin.topic.encode()),
        (PARTITION, b"%d" % origin.partition),
        (OFFSET, b"%d" % dead.offset),
        (GROUP, origin.group_id.encode()),
        (DELIVERIES, b"%d" % dead.deliveries),
        (MESSAGE, message.encode()),
        (CAUSE, CAUSE_NAMES[dead.cause].encode()),
    ]
    if record is not None:
        about.append((SENT_AT, b"%d" % record.timestamp_ms))
        history = history_of(record.headers, record.timestamp_ms)
        if history:
            about.append((HISTORY, history))
    if not is_copy:
        about.append((HAS_NO_COPY, b""))
        return Record(timestamp_ms=now_ms, headers=tuple(about))
    assert record is not None, "a copy is made of a record"
    headers = (*own_headers(record.headers), *about)
    return Record(timestamp_ms=now_ms, key=record.key, value=record.value, headers=headers)
