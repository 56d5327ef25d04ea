"""Dead letters as records."""

import pytest

from ottla.model import Offset, TimestampMs
from ottla.queues.dead_letters import Origin, dead_letter
from ottla.queues.dead_records import DeadRecord
from ottla.queues.share_state import Cause
from ottla.records.batch import Record
from ottla.records.dead_letter_headers import (
    FOR_GROUP,
    HISTORY,
    HISTORY_ENTRIES_MAX,
    history_of,
    redriven,
)

ORIGIN = Origin("workers", "jobs", 3)
DEAD = DeadRecord(Offset(7), 5, Cause.DELIVERY_LIMIT)
NOW = TimestampMs(1000)


def record(*headers: tuple[str, bytes | None]) -> Record:
    return Record(timestamp_ms=TimestampMs(5), key=b"k", value=b"v", headers=headers)


def test_a_copy_has_no_commands_and_the_headers_of_its_producer() -> None:
    made = dead_letter(
        ORIGIN, DEAD, record(("a", b"1"), ("ottla.delay-ms", b"9"), ("a", None)), NOW, copies=True
    )
    assert made.headers[:2] == (("a", b"1"), ("a", None))
    names = [name for name, _ in made.headers]
    assert "ottla.delay-ms" not in names
    assert (made.key, made.value, made.timestamp_ms) == (b"k", b"v", NOW)


@pytest.mark.parametrize(("found", "copies"), [(record(), False), (None, True)])
def test_a_dead_letter_without_a_copy_says_so(found: Record | None, copies: bool) -> None:
    made = dead_letter(ORIGIN, DEAD, found, NOW, copies=copies)
    headers = dict(made.headers)
    assert (made.key, made.value) == (None, None)
    assert headers["ottla.dlq.no-copy"] == b""
    assert headers["__dlq.errors.offset"] == b"7"
    assert (b"could not be read" in (headers["__dlq.errors.message"] or b"")) == (found is None)


def test_a_record_that_dies_again_has_a_history() -> None:
    first = dead_letter(ORIGIN, DEAD, record(("own", b"1")), NOW, copies=True)
    back = redriven(first, TimestampMs(2000))
    line = b"1000 delivery-limit group=workers jobs-3@7 deliveries=5"
    assert dict(back.headers) == {"own": b"1", HISTORY: line, FOR_GROUP: b"workers"}
    assert back.timestamp_ms == 2000
    second = dead_letter(ORIGIN, DEAD, back, TimestampMs(3000), copies=True)
    assert dict(second.headers)[HISTORY] == line
    assert FOR_GROUP not in dict(second.headers)
    third = redriven(second, TimestampMs(4000))
    assert dict(third.headers)[HISTORY] == line + line.replace(b"1000", b"\n3000")


def test_a_history_is_bounded() -> None:
    history = b"\n".join(b"%d" % number for number in range(100))
    assert len(history_of([(HISTORY, history)], 0).splitlines()) == HISTORY_ENTRIES_MAX
