"""Headers of dead letters, which are copies of records that a share group could not process.

Headers that begin with `__dlq.errors.` are those of Kafka 4.4, those with `ottla.dlq.` our own. A
redriven record keeps the history of its deaths in one header, and is for the group that it died in.
"""

from collections.abc import Iterable
from typing import Final

from ottla.model import Offset, TimestampMs
from ottla.records.batch import Record

KAFKA_PREFIX: Final = "__dlq.errors."
OWN_PREFIX: Final = "ottla.dlq."
TOPIC: Final = "__dlq.errors.topic"
PARTITION: Final = "__dlq.errors.partition"
OFFSET: Final = "__dlq.errors.offset"
GROUP: Final = "__dlq.errors.group"
DELIVERIES: Final = "__dlq.errors.delivery.count"
MESSAGE: Final = "__dlq.errors.message"
CAUSE: Final = "ottla.dlq.cause"
SENT_AT: Final = "ottla.dlq.sent-at"  # the timestamp of the record
HAS_NO_COPY: Final = "ottla.dlq.no-copy"  # present if key and value are not those of the record
HISTORY: Final = "ottla.dlq.history"
REDRIVEN: Final = "ottla.dlq.redriven"  # in a note: the offset of a dead letter that went back
FOR_GROUP: Final = "ottla.for-group"
HISTORY_ENTRIES_MAX: Final = 20

# Headers that tell a broker to do something: a copy must not have it done again.
_COMMANDS: Final = frozenset(
    {
        "ottla.deliver-at",
        "ottla.delay-ms",
        "ottla.cron",
        "ottla.timezone",
        "ottla.cancel",
        "ottla.ttl-ms",  # the time of the copy is another
        FOR_GROUP,
    }
)

Headers = tuple[tuple[str, bytes | None], ...]


def own_headers(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """The headers that a producer gave a record, without commands and those of dead letters."""
    return tuple(
        (name, value)
        for name, value in headers
        if name not in _COMMANDS and not name.startswith((KAFKA_PREFIX, OWN_PREFIX))
    )


def history_of(headers: Iterable[tuple[str, bytes | None]], died_ms: int) -> bytes:
    """The deaths of a record, one line for each, the last one at the end; b"" if there is none.

    The headers are those of a dead letter, or of a record that was redriven.
    """
    found = dict(headers)
    lines = (found.get(HISTORY) or b"").splitlines()
    if TOPIC in found:
        lines.append(
            b"%d %s group=%s %s-%s@%s deliveries=%s"
            % (
                died_ms,
                found.get(CAUSE) or b"unknown",
                found.get(GROUP) or b"",
                found[TOPIC] or b"",
                found.get(PARTITION) or b"",
                found.get(OFFSET) or b"",
                found.get(DELIVERIES) or b"",
            )
        )
    return b"\n".join(lines[-HISTORY_ENTRIES_MAX:])


def redriven(dead_letter: Record, now_ms: TimestampMs) -> Record:
    """The record that goes back to its topic, for the group that it died in."""
    group_id = dict(dead_letter.headers).get(GROUP)
    headers: list[tuple[str, bytes | None]] = [
        *own_headers(dead_letter.headers),
        (HISTORY, history_of(dead_letter.headers, dead_letter.timestamp_ms)),
        (FOR_GROUP, group_id),
    ]
    return Record(
        timestamp_ms=now_ms,
        key=dead_letter.key,
        value=dead_letter.value,
        headers=tuple(headers),
    )


def redrive_note(offset: Offset, now_ms: TimestampMs) -> Record:
    """A record behind a dead letter, in the same partition: the dead letter went back."""
    return Record(timestamp_ms=now_ms, headers=((REDRIVEN, b"%d" % offset),))
