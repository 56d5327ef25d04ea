"""A led partition on which records wait: what is refused, what is hidden, what is released."""

import errno

import pytest

from fakes import build
from fakes.memory_files import MemoryFiles
from fakes.waiting_log import WaitingLog, record
from ottla.broker.waiting_partition import STUCK_RETRY_MS
from ottla.errors import (
    ApiError,
    InvalidRecord,
    LeaderNotAvailable,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    PolicyViolation,
    StorageFailed,
)
from ottla.model import Offset, TimestampMs
from ottla.queues.pending_records import Waiting
from ottla.records.batch import (
    HEADER_BYTES,
    HIDES_ALL,
    HIDES_SOME,
    LEADER_WRITTEN,
    MarkerKind,
    Record,
    batches,
    read_header,
)
from ottla.records.compression import Codec
from ottla.storage.segment import LOG, file_name

NOW = int(build.NOW_MS)
DAY_MS = 86_400_000


class FakeChores:
    """Retention of one partition, as `Chores` does it."""

    def __init__(self, log: WaitingLog) -> None:
        self._log = log

    def run(self) -> None:
        log, now_ms = self._log.log, TimestampMs(self._log.now_ms)
        wanted = log.retention.expired_end(now_ms, log.end_offset, self._log.waiting.waiting_bytes)
        if wanted > log.start_offset:
            self._log.rearm(wanted)
            log.retention.delete_old_segments(now_ms, self._log.waiting.clear(wanted))


def headers_of(record_seen: Record) -> dict[str, bytes | None]:
    return dict(record_seen.headers)


def stored(log: WaitingLog) -> list[tuple[int, int]]:
    """Attributes and largest timestamp of each batch."""
    found = log.log.read(Offset(0), log.log.end_offset, 1 << 20, at_least_one=True)
    assert found is not None
    return [(one.attributes, one.max_timestamp_ms) for one, _ in batches(log.log.read_bytes(found))]


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"delay_ms": "soon"}, "whole number"),
        ({"delay_ms": ""}, "whole number"),
        ({"delay_ms": -5}, "out of range"),
        ({"deliver_at": -1}, "out of range"),
        ({"deliver_at": 10**19 - 1}, "out of range"),
        ({"delay_ms": 366 * DAY_MS + 1}, "delay.max.ms is"),
        ({"delay_ms": 5, "deliver_at": NOW + 5}, "exclude each other"),
        ({"delay_ms": 5, "cron": "* * * * *"}, "exclude each other"),
        ({"cron": "no"}, "five fields"),
        ({"cron": "* * * * *", "timezone": "Nowhere"}, "unknown"),
        ({"timezone": "UTC"}, "needs ottla.cron"),
        ({"delay_ms": 5, "timezone": "UTC"}, "needs ottla.cron"),
        ({"cancel": "x"}, "whole number"),
        ({"cancel": 0, "delay_ms": 5}, "no other header"),
    ],
)
def test_a_header_that_cannot_be_followed_refuses_the_batch(
    headers: dict[str, str | int], text: str
) -> None:
    log = WaitingLog()
    with pytest.raises(InvalidRecord, match=text) as refused:
        log.send([record(), record(b"", None, **headers), record()])
    assert [one.batch_index for one in refused.value.records] == [1]
    assert log.log.end_offset == 0


def test_a_header_that_is_there_twice_refuses_the_batch() -> None:
    log = WaitingLog()
    twice = Record(timestamp_ms=build.NOW_MS, headers=(("ottla.delay-ms", b"5"),) * 2)
    with pytest.raises(InvalidRecord, match="there twice"):
        log.send([twice])


def test_more_than_may_wait_is_a_violation_of_policy() -> None:
    log = WaitingLog({"delay.pending.max": "2"})
    log.send([record(delay_ms=5)])
    with pytest.raises(PolicyViolation, match="allows 2: send later"):
        log.send([record(delay_ms=5), record(delay_ms=6)])
    log.send([record(delay_ms=5)], producer_id=3, sequence=0, is_transactional=True)
    with pytest.raises(PolicyViolation):
        log.send([record(delay_ms=5)])
    log.send([record(b"ordinary")])


def test_a_copy_has_its_ticket_its_time_and_the_time_when_it_was_sent() -> None:
    log = WaitingLog()
    sent = Record(
        timestamp_ms=build.NOW_MS,
        key=b"k",
        value=b"v",
        headers=(("a", b"1"), ("ottla.delay-ms", b"500"), ("ottla.ticket", b"99"), ("a", None)),
    )
    assert log.send([record(), sent], codec=Codec.ZSTD).base_offset == 0
    log.now_ms += 499
    log.release()
    assert [one.offset for one in log.seen()] == [0]
    log.now_ms += 1
    log.release()
    copy = log.seen()[1]
    assert (copy.offset, copy.key, copy.value, copy.timestamp_ms) == (2, b"k", b"v", NOW + 500)
    assert copy.headers == (
        ("a", b"1"),
        ("a", None),
        ("ottla.ticket", b"1"),
        ("ottla.sent-at", str(NOW).encode()),
    )
    assert [one for one, _ in stored(log)] == [HIDES_SOME | Codec.ZSTD, LEADER_WRITTEN | Codec.ZSTD]


def test_nothing_is_released_before_the_time_that_its_copy_is_stamped_with() -> None:
    log = WaitingLog()
    log.send([record(b"tick", cron="* * * * *")])
    due_ms = NOW - NOW % 60_000 + 60_000
    log.now_ms = due_ms  # the process rested after it had read the time for the stamp
    assert not log.waiting.release(32, TimestampMs(due_ms - 1))
    assert log.seen() == []
    log.release()
    assert [one.timestamp_ms for one in log.seen()] == [due_ms]
    log.release()
    assert len(log.seen()) == 1


def damage(log: WaitingLog, offset: int) -> None:
    """Make the compressed records of a batch unreadable, or readable again."""
    batch = log.log.read(Offset(offset), log.log.end_offset, 1, at_least_one=True)
    assert batch is not None
    path = build.DIRECTORY / file_name(Offset(0), LOG)
    log.files.flip(path, batch.position + HEADER_BYTES)


def test_a_record_that_cannot_be_read_holds_up_no_other_and_is_read_again_once_a_minute() -> None:
    log = WaitingLog()
    log.send([record(b"damaged", delay_ms=5)], codec=Codec.ZSTD)
    log.send([record(b"intact", delay_ms=5)])
    damage(log, 0)
    log.now_ms += 5
    log.release()
    assert [one.value for one in log.seen()] == [b"intact"]
    log.waiting.retry_stuck(log.now_ms)
    assert log.waiting.stuck == []
    log.release()
    assert [one.ticket for one in log.waiting.stuck] == [0]
    damage(log, 0)
    log.waiting.retry_stuck(log.now_ms + STUCK_RETRY_MS - 1)
    log.release()
    assert [one.value for one in log.seen()] == [b"intact"]
    log.waiting.retry_stuck(log.now_ms + STUCK_RETRY_MS)
    log.release()
    assert [one.value for one in log.seen()] == [b"intact", b"damaged"]
    assert log.waiting.stuck == []


def test_a_record_that_cannot_be_read_is_counted_once_however_often_a_release_fails() -> None:
    log = WaitingLog()
    log.send([record(b"damaged", delay_ms=5)], codec=Codec.ZSTD)
    log.send([record(b"intact", delay_ms=5)])
    damage(log, 0)
    log.now_ms += 5
    for _ in range(3):
        log.files.fail_next("append", errno.ENOSPC)
        with pytest.raises(StorageFailed):
            log.release()
    log.release()
    assert [one.value for one in log.seen()] == [b"intact"]
    assert [one.ticket for one in log.waiting.stuck] == [0]


def test_a_wall_clock_that_is_not_believed_makes_a_schedule_skip_nothing() -> None:
    log = WaitingLog()
    log.send([record(b"tick", cron="* * * * *")])
    log.now_ms = due_ms = NOW - NOW % 60_000 + 60_000
    log.waiting.release(32, TimestampMs(due_ms + 3_600_000))  # it was set forward by an hour
    assert [one.timestamp_ms for one in log.seen()] == [due_ms + 3_600_000]
    assert [one.due_ms for one in log.waiting.pending] == [due_ms + 60_000]


def test_hidden_records_have_no_time_that_a_search_finds() -> None:
    log = WaitingLog()
    late = Record(
        timestamp_ms=TimestampMs(NOW + 50), headers=(("ottla.deliver-at", str(NOW + 900).encode()),)
    )
    log.send([late])
    log.send([late, record(b"shown"), late])
    assert stored(log) == [(HIDES_ALL, -1), (HIDES_SOME, NOW)]
    for _ in range(2):
        found = log.log.times.first_since(TimestampMs(NOW - 5))
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (2, NOW)
        assert log.log.times.first_since(TimestampMs(NOW + 1)) is None
        newest = log.log.times.newest()
        assert newest is not None
        assert (newest.offset, newest.timestamp_ms) == (2, NOW)
        log.restart()


def test_on_a_topic_with_append_times_a_copy_says_when_its_record_arrived() -> None:
    log = WaitingLog({"message.timestamp.type": "LogAppendTime"})
    log.now_ms += 7
    log.send([record(delay_ms=5)])
    log.send([record(delay_ms=5), record(b"shown")])  # and this batch has one time for both
    log.now_ms += 5
    log.release()
    _, *copies = log.seen()
    assert [headers_of(one)["ottla.sent-at"] for one in copies] == [str(NOW + 7).encode()] * 2


def test_only_committed_transactions_ever_appear_and_cannot_cancel() -> None:
    log = WaitingLog()
    log.send([record(b"no", delay_ms=5)], producer_id=3, sequence=0, is_transactional=True)
    log.send([record(b"yes", delay_ms=5)], producer_id=4, sequence=0, is_transactional=True)
    log.now_ms += 100
    log.release()
    assert log.seen() == []
    log.end(3, MarkerKind.ABORT)
    log.end(4, MarkerKind.COMMIT)
    log.release()
    assert [one.value for one in log.seen()] == [b"yes"]
    log.send([record(delay_ms=500)])
    with pytest.raises(InvalidRecord, match="a transaction cannot cancel"):
        log.send([record(cancel=5)], producer_id=3, sequence=1, is_transactional=True)


def test_a_cancel_that_comes_too_late_says_what_became_of_the_ticket() -> None:
    log = WaitingLog()
    log.send([record(delay_ms=5), record(delay_ms=50), record(delay_ms=500)])
    log.send([record(cancel=1)])
    log.now_ms += 5
    log.release()
    for ticket, text in ((0, "was delivered"), (1, "was cancelled"), (77, "unknown")):
        with pytest.raises(InvalidRecord, match=f"ticket {ticket} .*{text}"):
            log.send([record(cancel=ticket)])
    with pytest.raises(InvalidRecord, match="1 of 2"):
        log.send([record(cancel=2), record(cancel=2)])
    assert log.waiting.pending.find(2) is not None


def test_a_repeated_batch_cancels_and_arms_once() -> None:
    log = WaitingLog()
    log.send([record(delay_ms=5)], producer_id=9, sequence=0)
    first = log.send([record(cancel=0)], producer_id=9, sequence=1)
    again = log.send([record(cancel=0)], producer_id=9, sequence=1)
    assert again.base_offset == first.base_offset == 1
    assert log.waiting.pending.count == 0


def test_a_schedule_goes_on_under_its_first_ticket_and_makes_up_for_nothing() -> None:
    log = WaitingLog()
    log.send([record(b"tick", cron="0 * * * *", timezone="Europe/Prague")])
    (first_due,) = [one.due_ms for one in log.waiting.pending]
    log.now_ms = first_due + 5 * 3_600_000 + 1
    log.release()
    log.restart()
    log.rearm(log.log.end_offset)
    log.now_ms += 3_600_000
    log.release()
    found = [headers_of(one) for one in log.seen()]
    assert [one["ottla.ticket"] for one in found] == [b"0", b"2"]
    assert {one["ottla.schedule"] for one in found} == {b"0"}
    assert {one["ottla.sent-at"] for one in found} == {str(NOW).encode()}
    assert all("ottla.cron" not in one for one in found)
    log.send([record(cancel=0)])
    assert log.waiting.pending.count == log.waiting.pending.schedule_count == 0


def test_what_was_switched_off_takes_nothing_new_and_delivers_what_is_not_cancelled() -> None:
    log = WaitingLog()
    log.send([record(b"old", delay_ms=5), record(b"unwanted", delay_ms=5)])
    log.log.config = log.config.override({"delay.enable": "false"})
    with pytest.raises(InvalidRecord, match="takes no records that wait any more"):
        log.send([record(delay_ms=5)])
    log.send([record(b"ordinary")])
    log.send([record(cancel=1)])
    log.now_ms += 5
    log.release()
    assert [one.value for one in log.seen()] == [b"ordinary", b"old"]


def refused_cancels(log: WaitingLog, *tickets: int) -> list[tuple[int, str]]:
    with pytest.raises(InvalidRecord) as refused:
        log.send([record(cancel=ticket) for ticket in tickets])
    return [(one.batch_index, one.text) for one in refused.value.records]


def test_a_schedule_that_was_cancelled_says_so_under_its_first_ticket_too() -> None:
    log = WaitingLog()
    log.send([record(cron="0 * * * *")])
    log.now_ms += 3_600_000
    log.release()
    (following,) = [one.ticket for one in log.waiting.pending]
    assert refused_cancels(log, 0, following) == [(1, f"ticket {following} was cancelled")]
    log.send([record(cancel=following)])
    for _ in range(2):
        assert refused_cancels(log, 0, following, 99) == [
            (0, "ticket 0 was cancelled"),
            (1, f"ticket {following} was cancelled"),
            (2, "ticket 99 is unknown, or ended long ago"),
        ]
        log.restart()


def test_facts_of_clients_are_data() -> None:
    """A worker that sends again what it read, with its headers, ends nothing and hides nothing."""
    log = WaitingLog()
    log.send([record(delay_ms=500)])
    log.send([record(b"again", ticket=0, sent_at=1, schedule=0), record(delay_ms=1)])
    log.send([record(b"due", due=5), record(delay_ms=1)])
    assert [one.value for one in log.seen()] == [b"again", b"due"]
    log.restart()
    assert log.waiting.pending.find(0) == Waiting(0, NOW + 500, 0, -1)


def test_a_leader_that_dies_at_any_batch_is_followed_by_one_that_knows_the_same() -> None:
    log = WaitingLog()
    known: dict[int, list[Waiting]] = {0: []}

    def note() -> None:
        known[log.log.end_offset] = list(log.waiting.pending)

    log.send([record(delay_ms=5), record(b"x"), record(delay_ms=50)], codec=Codec.LZ4)
    note()
    log.send([record(delay_ms=9)], producer_id=3, sequence=0, is_transactional=True)
    note()
    log.send([record(cron="* * * * *"), record(cancel=0)])
    note()
    log.end(3, MarkerKind.COMMIT)
    note()
    log.now_ms += 120_000
    while log.waiting.release(1, TimestampMs(log.now_ms)):
        note()
    note()
    log.rearm(log.log.end_offset, portion=1)
    note()
    whole = log.log.read(Offset(0), log.log.end_offset, 1 << 20, at_least_one=True)
    assert whole is not None
    data = log.log.read_bytes(whole)
    position, checked = 0, 0
    while position < len(data):
        position += read_header(data, position).size_bytes
        cut = WaitingLog(files=MemoryFiles())
        cut.log.append_as_follower(memoryview(data[:position]), build.NOW_MS)
        cut.lead()
        if cut.log.end_offset in known:
            assert list(cut.waiting.pending) == known[cut.log.end_offset]
            checked += 1
    assert checked >= 7


def test_the_log_begins_later_once_what_waits_was_appended_again() -> None:
    log = WaitingLog({"segment.bytes": "1024"})
    for number in range(10):
        log.send([record(b"%d" % number, delay_ms=1000 + number), record(bytes(300))])
    settled: list[object] = []
    assert log.waiting.clear(Offset(12), settled.append) == 0
    assert settled == []
    log.rearm(12, portion=2)
    assert settled == [None]
    assert log.waiting.clear(Offset(12)) == 12
    assert log.waiting.clear(Offset(14)) == 12
    log.log.advance_start(Offset(12))
    log.restart()
    log.now_ms += 5000
    log.release()
    copies = [one for one in log.seen() if one.headers]
    assert [one.value for one in copies] == [b"%d" % number for number in range(10)]
    assert [headers_of(one)["ottla.ticket"] for one in copies] == [
        b"%d" % (2 * number) for number in range(10)
    ]
    assert {headers_of(one)["ottla.sent-at"] for one in copies} == {str(NOW).encode()}


def test_the_log_does_not_begin_behind_a_transaction_that_is_open() -> None:
    log = WaitingLog()
    log.send([record(delay_ms=5)])
    log.send([record(b"open", delay_ms=5)], producer_id=3, sequence=0, is_transactional=True)
    log.send([record(b"x")])
    log.rearm(3)
    assert log.waiting.clear(Offset(3)) == 1
    log.end(3, MarkerKind.COMMIT)
    log.rearm(3)
    assert log.waiting.clear(Offset(3)) == 3


def test_what_could_not_be_cleared_is_not_appended_again_for_nobody() -> None:
    log = WaitingLog()
    log.send([record(delay_ms=5)])
    problems: list[ApiError | None] = []
    log.waiting.clear(Offset(1), problems.append)
    assert log.waiting.wants_rearm
    log.waiting._note_cleared(Offset(1), NotEnoughReplicasAfterAppend("too few"))
    assert [type(one) for one in problems] == [NotEnoughReplicasAfterAppend]
    assert not log.waiting.wants_rearm
    assert log.waiting.clear(Offset(1)) == 0
    log.rearm(1)
    assert log.waiting.clear(Offset(1)) == 1


def test_requests_that_wait_for_the_start_hear_that_the_partition_is_led_elsewhere() -> None:
    log = WaitingLog()
    log.send([record(delay_ms=5)])
    problems: list[ApiError | None] = []
    log.waiting.clear(Offset(1), problems.append)
    log.partition.give_up(NotLeader("gone"))
    assert [type(one) for one in problems] == [NotLeader]


def test_a_year_passes_with_a_day_of_retention() -> None:
    """What waits is appended again before its segment goes, some 365 times."""
    log = WaitingLog(
        {"retention.ms": str(DAY_MS), "segment.ms": str(DAY_MS // 2), "segment.bytes": "4096"}
    )
    chores = FakeChores(log)
    year = 365 * DAY_MS
    log.send([record(b"year", b"k", delay_ms=year), record(b"half", delay_ms=year // 2)])
    starts = set()
    for day in range(1, 367):
        log.now_ms = NOW + day * DAY_MS
        log.send([Record(timestamp_ms=TimestampMs(log.now_ms), value=bytes(500))] * 4)
        chores.run()
        if day % 30 == 0:
            log.restart()
        due = [b"half"] if day == 183 else [b"year"] if day == 365 else []
        before = log.log.end_offset
        log.release()
        assert [one.value for one in log.seen(before)] == due
        starts.add(log.log.start_offset)
    assert len(starts) > 300  # the log did lose its old segments
    assert log.log.size_bytes < 40_000


def test_what_is_appended_while_the_log_is_read_is_known_once_it_is_read() -> None:
    log = WaitingLog()
    log.send([record(b"old", delay_ms=50)])
    log.send([record(b"open", delay_ms=50)], producer_id=3, sequence=0, is_transactional=True)
    log.lead(loads=False)
    assert not log.waiting.is_loaded
    log.send([record(b"new", delay_ms=50), record(b"shown")])
    log.end(3, MarkerKind.COMMIT)
    with pytest.raises(LeaderNotAvailable, match="is being read"):
        log.send([record(cancel=0)])
    log.load()
    assert [one.ticket for one in log.waiting.pending] == [0, 1, 2]
    log.now_ms += 50
    log.release()
    assert [one.value for one in log.seen()] == [b"shown", b"old", b"open", b"new"]


def test_copies_that_wait_on_have_no_time_that_a_search_finds() -> None:
    log = WaitingLog()
    log.send([record(delay_ms=5000)])
    log.now_ms += 1000
    log.rearm(1)
    assert stored(log) == [(HIDES_ALL, -1), (HIDES_ALL | LEADER_WRITTEN, -1)]
    assert log.log.times.newest() is None


def released_in_turns(log: WaitingLog, portion: int) -> list[int]:
    """How many records each turn releases, until nothing is due; turns of sorting left out."""
    counts = list[int]()
    has_more = True
    while has_more:
        before = log.log.end_offset
        has_more = log.waiting.release(portion, TimestampMs(log.now_ms))
        counts.append(log.log.end_offset - before)
    return [count for count in counts if count]


def test_a_turn_releases_fewer_records_where_each_is_in_a_batch_of_its_own() -> None:
    log = WaitingLog()
    for number in range(300):
        log.send([record(b"%d" % number, deliver_at=NOW + 50)])
    log.send([record(b"%d" % number, deliver_at=NOW + 50) for number in range(300, 1300)])
    log.now_ms += 50
    counts = released_in_turns(log, 256)
    assert [one.value for one in log.seen()] == [b"%d" % number for number in range(1300)]
    assert max(counts[:8]) <= 40, "a batch that is opened is more work than a record"
    assert sum(counts[:8]) < 300
    assert max(counts) > 200, "and in the same batch there are as many as before"
    assert len(counts) <= 16


def test_what_waits_in_many_batches_is_appended_again_once() -> None:
    log = WaitingLog()
    for number in range(300):
        log.send([record(b"%d" % number, deliver_at=NOW + 50)])
    log.rearm(300, portion=256)
    assert log.log.end_offset == 600
    assert log.waiting.clear(Offset(300)) == 300
    assert [one.offset for one in log.waiting.pending] == list(range(300, 600))


def test_copies_of_large_records_fill_a_batch_of_a_megabyte() -> None:
    log = WaitingLog()
    value = bytes(100_000)
    log.send([record(value, deliver_at=NOW + 50) for _ in range(40)], codec=Codec.ZSTD)
    log.now_ms += 50
    counts = released_in_turns(log, 256)
    assert sum(counts) == 40
    assert max(counts) == 11
    assert len(log.seen()) == 40


def test_a_record_with_the_headers_of_a_copy_is_not_taken_for_one() -> None:
    """A client may send what a leader would write, byte for byte; released together, both hold."""
    log = WaitingLog()
    log.send([record(b"copied", delay_ms=1000)])
    log.rearm(1)
    late = Record(
        timestamp_ms=TimestampMs(NOW + 77),
        value=b"sent",
        headers=(
            ("ottla.ticket", b"0"),
            ("ottla.sent-at", str(NOW).encode()),
            ("ottla.delay-ms", b"1000"),
        ),
    )
    assert log.send([late]).base_offset == 2
    log.now_ms += 1000
    log.release()
    first, second = (headers_of(one) for one in log.seen())
    assert first == {"ottla.ticket": b"0", "ottla.sent-at": str(NOW).encode()}
    assert second == {"ottla.ticket": b"2", "ottla.sent-at": str(NOW + 77).encode()}
