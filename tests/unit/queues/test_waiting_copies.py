"""A leader knows what it has written: the facts of its copies are those that a reader finds."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model import LeaderEpoch, Offset, TimestampMs
from ottla.queues.pending_records import Waiting
from ottla.queues.waiting_copies import CopyBatch, Original, read_copied
from ottla.queues.waiting_facts import NO_SCHEDULE, read_facts, states_facts
from ottla.records.batch import (
    HIDES,
    HIDES_ALL,
    HIDES_SOME,
    LEADER_WRITTEN,
    Record,
    read_header,
    records,
    stamp,
)
from ottla.records.compression import Codec
from ottla.records.record_codec import Headers, write_record
from ottla.records.record_parts import read_parts

BASE = 70
NOW_MS = TimestampMs(1_700_000_000_000)
CRON = (("ottla.cron", b"0 * * * *"), ("ottla.timezone", b"UTC"))
BYTES = st.none() | st.binary(max_size=150)
NAMES = st.sampled_from(["a", "trace", "ottla.deliver-at", "ottla.due", "ottla.sent-at", "x" * 70])
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=8)), max_size=3).map(tuple)
ORIGINALS = st.tuples(
    st.builds(
        Record,
        timestamp_ms=st.integers(0, 2**40).map(TimestampMs),
        key=BYTES,
        value=BYTES,
        headers=HEADERS,
    ),
    st.booleans(),  # a leader wrote it
    st.sampled_from(list(Codec)),
    st.integers(0, 2**40),  # the ticket
    st.sampled_from(["released", "rearmed"]),
    st.booleans(),  # it is of a schedule
)
Drawn = tuple[Record, bool, Codec, int, str, bool]


def original(sent: Record, *, is_own: bool, codec: Codec) -> Original:
    payload = bytearray()
    write_record(payload, 0, 0, sent.key, sent.value, sent.headers)
    _, key_and_value, encoded = read_parts(bytes(payload), 0, len(payload))
    return Original(key_and_value, read_copied(encoded, is_own=is_own), sent.timestamp_ms, codec)


def own_headers(sent: Record, ticket: int, *, is_own: bool) -> Headers:
    """The headers of the original that stay, and the first two of the leader's."""
    kept = tuple(one for one in sent.headers if not one[0].startswith("ottla."))
    noted = [value for name, value in sent.headers if is_own and name == "ottla.sent-at"]
    sent_at = noted[-1] if noted else b"%d" % sent.timestamp_ms
    return (*kept, ("ottla.ticket", b"%d" % ticket), ("ottla.sent-at", sent_at))


@given(st.lists(ORIGINALS, min_size=1, max_size=8))
def test_a_batch_of_copies_is_what_it_should_be_and_says_what_the_leader_knows(
    drawn: Sequence[Drawn],
) -> None:
    batch = CopyBatch(BASE)
    expected: list[tuple[bytes | None, bytes | None, Headers]] = []
    for drawn_record, is_own, codec, ticket, verb, is_scheduled in drawn:
        cron = CRON if is_scheduled else ()
        sent = replace(drawn_record, headers=(*drawn_record.headers, *cron))
        schedule = ticket % 1000 if is_scheduled else NO_SCHEDULE
        waiting = Waiting(ticket, NOW_MS - 5, 3, schedule)
        headers = own_headers(sent, ticket, is_own=is_own)
        of_schedule: Headers = (("ottla.schedule", b"%d" % schedule),) if is_scheduled else ()
        one = original(sent, is_own=is_own, codec=codec)
        if verb == "rearmed":
            batch.rearm(one, waiting)
            due: Headers = (("ottla.due", b"%d" % (NOW_MS - 5)),)
            expected.append((sent.key, sent.value, (*headers, *due, *cron, *of_schedule)))
            continue
        batch.release(one, waiting, NOW_MS)
        expected.append((sent.key, sent.value, (*headers, *of_schedule)))
        if is_scheduled:
            next_ms = NOW_MS // 3_600_000 * 3_600_000 + 3_600_000
            headers = own_headers(sent, BASE + len(expected), is_own=is_own)
            due = (("ottla.due", b"%d" % next_ms),)
            expected.append((sent.key, sent.value, (*headers, *due, *CRON, *of_schedule)))
    built = batch.build(NOW_MS)
    stamp(built, Offset(BASE), LeaderEpoch(4))
    header = read_header(built)
    assert header.codec == max(codec for _, _, codec, *_ in drawn)
    found = list(records(built))
    assert [(one.key, one.value, one.headers) for one in found] == expected
    assert {one.timestamp_ms for one in found} == {NOW_MS}
    assert [one.offset for one in found] == list(range(BASE, BASE + len(expected)))
    assert states_facts(header)
    assert read_facts(built, header, 1 << 20) == batch.facts


@pytest.mark.parametrize(
    ("verbs", "attributes", "newest_ms"),
    [
        (["release"], LEADER_WRITTEN, NOW_MS),
        (["rearm", "rearm"], LEADER_WRITTEN | HIDES_ALL, -1),
        (["rearm", "release"], LEADER_WRITTEN | HIDES_SOME, NOW_MS),
    ],
)
def test_the_attributes_say_whether_readers_see_all_some_or_none(
    verbs: list[str], attributes: int, newest_ms: int
) -> None:
    batch = CopyBatch(BASE)
    one = original(Record(value=b"v"), is_own=False, codec=Codec.NONE)
    for verb in verbs:
        if verb == "release":
            batch.release(one, Waiting(4, 5, 6, NO_SCHEDULE), NOW_MS)
        else:
            batch.rearm(one, Waiting(4, 5, 6, NO_SCHEDULE))
    header = read_header(batch.build(NOW_MS))
    assert header.attributes & (HIDES | LEADER_WRITTEN) == attributes
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (NOW_MS, newest_ms)


def test_a_schedule_without_another_time_ends_with_its_copy() -> None:
    batch = CopyBatch(BASE)
    over = Record(headers=(("ottla.cron", b"0 0 * * *"), ("ottla.timezone", b"Gone/Nowhere")))
    one = original(over, is_own=False, codec=Codec.NONE)
    batch.release(one, Waiting(9, 5, 9, 9), NOW_MS)
    assert (batch.facts.released, batch.facts.arms) == ([9], [])
