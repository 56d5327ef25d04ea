"""A partition as a share group reads it."""

from collections.abc import Sequence

import pytest

from ottla.errors import InvalidRequest
from ottla.model import Offset, ProducerId, Uuid
from ottla.queues.acknowledgements import (
    RETRY_DELAY_MAX_MS,
    Acknowledgement,
    AcknowledgeType,
)
from ottla.queues.errors import InvalidRecordState
from ottla.queues.share_limits import ShareLimits, portion_max
from ottla.queues.share_partition import Acquired, SharePartition, Stretch
from ottla.queues.share_state import (
    Cause,
    DeliveryState,
    Sender,
    StateBatch,
    StateRead,
    StateWrite,
    combine,
)

LIMITS = ShareLimits(deliveries_max=5, locks_max=100, lock_ms=30_000)
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
AVAILABLE, ACKNOWLEDGED = DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED
ARCHIVED = DeliveryState.ARCHIVED


def batch(first: int, last: int, state: DeliveryState, count: int) -> StateBatch:
    return StateBatch(Offset(first), Offset(last), state, count)


def stretch(start: int, end: int, *, has_records: bool = True) -> Stretch:
    return Stretch(Offset(start), Offset(end), has_records)


def begin(start: int = 0, *batches: StateBatch) -> SharePartition:
    return SharePartition.restore(StateRead(1, Offset(start), batches))


def acquire(
    partition: SharePartition,
    member: str,
    *found: Stretch,
    records_max: int = 500,
    now_ms: int = 0,
    limits: ShareLimits = LIMITS,
    is_strict: bool = False,
) -> list[tuple[int, ...]]:
    acquired = partition.acquire(member, found, limits, records_max, now_ms, is_strict=is_strict)
    return [tuple(item) for item in acquired]


def acknowledge(
    partition: SharePartition,
    member: str,
    first: int,
    last: int,
    *types: int,
    now_ms: int = 0,
    may_renew: bool = False,
) -> StateWrite | None:
    said = [Acknowledgement(Offset(first), Offset(last), types)]
    return partition.acknowledge(member, said, LIMITS, now_ms, may_renew=may_renew)


def test_two_members_get_different_records() -> None:
    partition = begin()
    log = (stretch(0, 10), stretch(10, 20))
    assert acquire(partition, "a", *log, records_max=10) == [(0, 9, 1)]
    assert partition.next_offset(0) == 10
    assert acquire(partition, "b", *log, records_max=10) == [(10, 19, 1)]


def test_batches_stay_whole_unless_the_number_of_records_is_strict() -> None:
    assert acquire(begin(), "a", stretch(0, 10), records_max=3) == [(0, 9, 1)]
    strict = begin()
    assert acquire(strict, "a", stretch(0, 10), records_max=3, is_strict=True) == [(0, 2, 1)]
    assert strict.next_offset(0) == 3


def test_what_is_accepted_moves_the_start_once_nothing_is_open_below() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 10))
    assert acknowledge(partition, "a", 5, 9, ACCEPT) == StateWrite(
        Offset(0), 5, (batch(5, 9, ACKNOWLEDGED, 1),)
    )
    assert partition.start_offset == 0
    written = acknowledge(partition, "a", 0, 4, ACCEPT)
    assert written is not None
    assert written.start_offset == partition.start_offset == 10
    assert written.complete_count == 0


def test_what_is_released_is_delivered_again_with_a_higher_count() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 4))
    assert acknowledge(partition, "a", 0, 3, ACCEPT, RELEASE, RELEASE, ACCEPT) == StateWrite(
        Offset(1), 1, (batch(1, 2, AVAILABLE, 1), batch(3, 3, ACKNOWLEDGED, 1))
    )
    assert acquire(partition, "b", stretch(0, 4)) == [(1, 2, 2)]


def test_at_the_delivery_limit_a_record_is_archived() -> None:
    partition = begin(0, batch(0, 0, AVAILABLE, 4))
    assert acquire(partition, "a", stretch(0, 1)) == [(0, 0, 5)]
    written = acknowledge(partition, "a", 0, 0, RELEASE)
    assert written == StateWrite(Offset(1), 0, ())


def test_a_rejected_record_does_not_come_again() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 2))
    acknowledge(partition, "a", 1, 1, REJECT)
    acknowledge(partition, "a", 0, 0, RELEASE)
    assert acquire(partition, "a", stretch(0, 2)) == [(0, 0, 2)]


def test_only_the_member_that_acquired_a_record_may_acknowledge_it() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 2))
    with pytest.raises(InvalidRecordState):
        acknowledge(partition, "b", 0, 1, ACCEPT)
    acknowledge(partition, "a", 1, 1, ACCEPT)
    with pytest.raises(InvalidRecordState):
        acknowledge(partition, "a", 0, 1, ACCEPT)
    assert acknowledge(partition, "a", 0, 0, ACCEPT) is not None  # the refused one changed nothing


@pytest.mark.parametrize(
    ("first", "last", "types"),
    [
        (0, 9, ()),
        (0, 9, (1, 1)),
        (3, 2, (1,)),
        (0, 9, (9,)),
        (0, 9, (-1,)),
        (0, 10, (1,)),
        (0, 2**62, (1,)),
        (-5, 3, (1,)),
        (0, 9, (4,)),
    ],
)
def test_a_wrong_acknowledgement_changes_nothing(
    first: int, last: int, types: Sequence[int]
) -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 10))
    with pytest.raises(InvalidRequest):
        acknowledge(partition, "a", first, last, *types)
    assert partition.unfinished_count == 10


def test_acknowledgements_must_ascend() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 10))
    said = [
        Acknowledgement(Offset(4), Offset(5), [ACCEPT]),
        Acknowledgement(Offset(5), Offset(6), [ACCEPT]),
    ]
    with pytest.raises(InvalidRequest):
        partition.acknowledge("a", said, LIMITS, 0, may_renew=False)


def test_offsets_below_the_start_are_ignored() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 10))
    acknowledge(partition, "a", 0, 4, ACCEPT)
    assert acknowledge(partition, "a", 0, 4, ACCEPT) is None
    assert acknowledge(partition, "a", 3, 5, ACCEPT) is not None


def test_a_lock_ends_and_renewing_prolongs_it() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 2), now_ms=1000)
    assert partition.next_deadline_ms(1000) == 31_000
    assert (
        acknowledge(partition, "a", 1, 1, AcknowledgeType.RENEW, now_ms=20_000, may_renew=True)
        is None
    )
    assert partition.expire(LIMITS, 30_999) is None
    assert partition.expire(LIMITS, 31_000) == StateWrite(
        Offset(0), 0, (batch(0, 0, AVAILABLE, 1),)
    )
    assert partition.next_deadline_ms(31_000) == 50_000
    assert acquire(partition, "b", stretch(0, 2)) == [(0, 0, 2)]


def test_a_member_that_leaves_in_order_has_not_used_up_a_delivery() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 2))
    acquire(partition, "b", stretch(0, 2), stretch(2, 4))
    partition.release_member("a", LIMITS, 0, counts=False)
    assert acquire(partition, "c", stretch(0, 4)) == [(0, 1, 1)]
    partition.release_member("c", LIMITS, 0, counts=True)
    assert acquire(partition, "c", stretch(0, 4)) == [(0, 1, 2)]


def test_the_window_counts_unfinished_records_and_not_its_length() -> None:
    partition = begin()
    log = [stretch(at, at + 50) for at in range(0, 1000, 50)]
    assert acquire(partition, "a", *log) == [(0, 99, 1)]
    assert not partition.has_room(LIMITS, 0)
    assert acquire(partition, "b", *log[2:]) == []
    acknowledge(partition, "a", 1, 99, ACCEPT)
    assert acquire(partition, "b", *log[2:]) == [(100, 199, 1)]
    assert partition.start_offset == 0


def test_the_last_delivery_is_of_one_record_alone() -> None:
    partition = begin(0, batch(0, 9, AVAILABLE, 4))
    assert acquire(partition, "a", stretch(0, 20)) == [(0, 0, 5)]
    assert acquire(partition, "b", stretch(0, 20)) == [(1, 1, 5)]


def test_records_that_were_delivered_often_do_not_follow_others() -> None:
    partition = begin(0, batch(0, 3, AVAILABLE, 0), batch(4, 7, AVAILABLE, 2))
    assert acquire(partition, "a", stretch(0, 10)) == [(0, 3, 1)]
    assert acquire(partition, "a", stretch(4, 10)) == [(4, 5, 3)]


@pytest.mark.parametrize(
    ("count", "expected"), [(0, None), (1, None), (2, 50), (3, 25), (4, 1), (5, 1)]
)
def test_portions_shrink(count: int, expected: int | None) -> None:
    assert portion_max(count, 100, 5) == expected


def test_markers_and_gaps_are_finished_at_once() -> None:
    partition = begin()
    found = (stretch(0, 2), stretch(2, 5, has_records=False), stretch(5, 6))
    assert acquire(partition, "a", *found) == [(0, 1, 1), (5, 5, 1)]
    written = partition.take_write()
    assert written == StateWrite(Offset(0), 3, (batch(2, 4, ARCHIVED, 0),))


def test_records_that_retention_removed_are_forgotten() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 10))
    written = partition.note_log_start(4)
    assert written == StateWrite(Offset(4), 0, ())
    assert partition.note_log_start(4) is None
    assert acknowledge(partition, "a", 0, 9, ACCEPT) is not None
    written = partition.note_log_start(50)
    assert written == StateWrite(Offset(50), 0, ())
    assert partition.next_offset(0) == 50


def test_holes_in_what_was_written_are_available() -> None:
    partition = begin(0, batch(3, 4, ACKNOWLEDGED, 1), batch(7, 7, AVAILABLE, 2))
    assert partition.end_offset == 8
    limits = LIMITS._replace(deliveries_max=10)
    assert partition.acquire("a", [stretch(0, 8)], limits, 500, 0) == [
        Acquired(Offset(0), Offset(2), 1),
        Acquired(Offset(5), Offset(6), 1),
        Acquired(Offset(7), Offset(7), 3),
    ]


def release(
    partition: SharePartition,
    first: int,
    last: int,
    limits: ShareLimits,
    now_ms: int,
    *,
    delay_ms: int = -1,
    is_uncounted: bool = False,
) -> StateWrite | None:
    said = [Acknowledgement(Offset(first), Offset(last), [RELEASE], delay_ms, is_uncounted)]
    return partition.acknowledge("a", said, limits, now_ms, may_renew=False)


WAITING = LIMITS._replace(backoff_ms=100, backoff_max_ms=300)


def test_a_released_record_waits_twice_as_long_each_time_and_holds_up_no_other() -> None:
    partition = begin()
    log = [stretch(0, 2), stretch(2, 3)]
    now_ms = 1000
    assert acquire(partition, "a", *log, records_max=1) == [(0, 1, 1)]
    written = release(partition, 0, 0, WAITING, now_ms)
    assert written is not None
    assert written.batches == (batch(0, 0, AVAILABLE, 1)._replace(not_before_ms=1100),)
    assert partition.next_offset(now_ms) == 2
    assert acquire(partition, "b", stretch(2, 3), now_ms=now_ms) == [(2, 2, 1)]
    assert partition.next_deadline_ms(now_ms) == 1100
    for waited_ms, deliveries in ((100, 2), (200, 3), (300, 4)):  # the last would be 400
        assert acquire(partition, "a", *log, now_ms=now_ms + waited_ms - 1) == []
        now_ms += waited_ms
        assert partition.next_offset(now_ms) == 0
        assert acquire(partition, "a", *log, now_ms=now_ms) == [(0, 0, deliveries)]
        release(partition, 0, 0, WAITING, now_ms)


def test_waits_are_kept_over_a_crash() -> None:
    partition = begin(0, batch(0, 4, AVAILABLE, 1)._replace(not_before_ms=500))
    assert partition.waiting_count(499) == 5
    assert partition.next_offset(499) == 5
    assert partition.next_offset(500) == 0


def test_a_member_says_how_long_a_record_waits() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 3))
    release(partition, 0, 0, WAITING, 0, delay_ms=0)
    release(partition, 1, 1, WAITING, 0, delay_ms=5000)
    assert partition.next_offset(0) == 0
    assert acquire(partition, "a", stretch(0, 3)) == [(0, 0, 2)]
    assert partition.next_offset(4999) == 3
    assert partition.next_offset(5000) == 1
    with pytest.raises(InvalidRequest):
        release(partition, 2, 2, WAITING, 0, delay_ms=RETRY_DELAY_MAX_MS + 1)


def test_an_acceptance_with_a_delay_that_cannot_be_is_refused() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 1))
    said = Acknowledgement(Offset(0), Offset(0), [1], RETRY_DELAY_MAX_MS + 1)
    with pytest.raises(InvalidRequest):
        partition.acknowledge("a", [said], LIMITS, 0, may_renew=False)


def test_giving_back_what_was_not_looked_at_does_not_count() -> None:
    partition = begin(0, batch(0, 0, AVAILABLE, 4))
    assert acquire(partition, "a", stretch(0, 1)) == [(0, 0, 5)]
    release(partition, 0, 0, WAITING, 0, is_uncounted=True)
    assert acquire(partition, "a", stretch(0, 1)) == [(0, 0, 5)]


def test_without_a_limit_of_deliveries_a_record_is_never_archived() -> None:
    unlimited = LIMITS._replace(deliveries_max=0)
    partition = begin(0, batch(0, 1, AVAILABLE, 2**15 - 1))
    for _ in range(2):
        assert acquire(partition, "a", stretch(0, 2), limits=unlimited) == [(0, 1, 2**15 - 1)]
        release(partition, 0, 1, unlimited, 0)


def test_records_that_wait_do_not_use_up_the_window() -> None:
    partition = begin()
    log = [stretch(at, at + 100) for at in range(0, 10_000, 100)]
    acquire(partition, "a", log[0])
    release(partition, 0, 99, WAITING, 0)
    assert partition.has_room(WAITING, 0)
    assert acquire(partition, "a", log[1], limits=WAITING) == [(100, 199, 1)]
    assert not partition.has_room(WAITING, 0)
    for item in log[1:81]:
        acquire(partition, "a", item, limits=WAITING)
        release(partition, item.start, item.end - 1, WAITING, 0)
    assert partition.waiting_count(0) == 8100
    assert not partition.has_room(WAITING, 0), "the table of those that wait is bounded"


def test_finished_records_become_one_range_again() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 50))
    for at in range(49, 0, -2):
        acknowledge(partition, "a", at, at, ACCEPT)
    assert len(partition._ranges) == 50
    for at in range(2, 50, 2):
        acknowledge(partition, "a", at, at, ACCEPT)
    assert len(partition._ranges) == 2, "one that is acquired, and the rest"


def test_what_members_hold_counts_when_keys_begin_to_be_ordered() -> None:
    """The second of two records of a key comes back first; the third waits for its backoff."""
    partition = begin()
    acquire(partition, "a", stretch(0, 3))
    partition.order_by_key(True)
    partition.scan([stretch(0, 3)], dict.fromkeys(range(3), b"k"), LIMITS)
    release(partition, 1, 1, LIMITS, 0)
    release(partition, 2, 2, LIMITS, 0, delay_ms=500)
    assert partition.next_ready(0) is None, "the first one is not finished"
    acknowledge(partition, "a", 0, 0, ACCEPT)
    assert partition.acquire_ready("b", 3, LIMITS, 10, 0) == [Acquired(Offset(1), Offset(1), 2)]
    said = [Acknowledgement(Offset(1), Offset(1), [ACCEPT])]
    partition.acknowledge("b", said, LIMITS, 0, may_renew=False)
    assert partition.next_ready(499) is None
    assert partition.next_ready(500) == 2


def test_a_record_limit_that_ends_inside_a_batch_ends_the_search() -> None:
    """What lies behind the window's end is not looked at: there would be a hole."""
    partition = begin()
    acquire(partition, "a", stretch(0, 1))
    acquire(partition, "b", stretch(1, 3), records_max=1, is_strict=True)
    release(partition, 0, 0, LIMITS, 0)
    log = (stretch(0, 1), stretch(1, 3), stretch(3, 4, has_records=False))
    assert acquire(partition, "a", *log, records_max=2, is_strict=True) == [(0, 0, 2)]
    assert partition.end_offset == 2


# Durable leases

DURABLE = LIMITS._replace(is_lease_durable=True)


def test_a_durable_lease_is_written_and_restored_for_its_member() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 3), limits=DURABLE, now_ms=5)
    written = partition.take_write()
    assert written is not None
    (held,) = written.batches
    assert held == StateBatch(Offset(0), Offset(2), DeliveryState.ACQUIRED, 1, member="a")
    restored = SharePartition.restore(StateRead(1, Offset(0), written.batches), 90)
    assert restored.next_deadline_ms(0) == 90
    assert acquire(restored, "b", stretch(0, 3), now_ms=89) == []
    with pytest.raises(InvalidRecordState):
        acknowledge(restored, "b", 0, 0, ACCEPT)
    assert acknowledge(restored, "a", 0, 0, ACCEPT) is not None
    restored.expire(DURABLE, 90)
    assert acquire(restored, "b", stretch(1, 3), now_ms=90) == [(1, 2, 2)], "it was delivered"


def test_renewing_a_durable_lease_writes_nothing() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 3), limits=DURABLE)
    partition.take_write()
    assert acknowledge(partition, "a", 0, 2, AcknowledgeType.RENEW, may_renew=True) is None


def test_a_durable_lease_holds_up_its_key() -> None:
    partition = begin()
    partition.order_by_key(True)
    partition.scan([stretch(0, 2)], dict.fromkeys(range(2), b"k"), DURABLE)
    assert partition.acquire_ready("a", 2, DURABLE, 10, 0) == [Acquired(Offset(0), Offset(0), 1)]
    assert partition.take_write() is not None
    assert partition.next_ready(0) is None, "the first one is not finished"


# Expiry


def expired(start: int, end: int) -> Stretch:
    return Stretch(Offset(start), Offset(end), False, is_expired=True)


def test_expired_records_are_passed_over_unless_a_member_holds_them() -> None:
    partition = begin()
    acquire(partition, "a", stretch(0, 1))
    log = (expired(0, 2), stretch(2, 3))
    assert acquire(partition, "b", *log) == [(2, 2, 1)]
    written = partition.take_write()
    assert written is not None
    assert written.batches == (batch(1, 1, ARCHIVED, 0),)
    assert acknowledge(partition, "a", 0, 0, ACCEPT) is not None


def test_expired_records_are_dead_if_the_group_has_dead_letters() -> None:
    partition = begin()
    limits = LIMITS._replace(has_dead_letters=True)
    log = (stretch(0, 1), expired(1, 3), stretch(3, 4))
    assert acquire(partition, "a", *log, limits=limits) == [(0, 0, 1), (3, 3, 1)]
    dead = [(dead.offset, dead.deliveries, dead.cause) for dead in partition.dead.next(10)]
    assert dead == [(1, 0, Cause.EXPIRED), (2, 0, Cause.EXPIRED)]


def test_the_reason_of_a_reject_is_kept_until_its_dead_letter_is_written() -> None:
    partition = begin()
    limits = LIMITS._replace(has_dead_letters=True)
    acquire(partition, "a", stretch(0, 3), limits=limits)
    said = [
        Acknowledgement(Offset(0), Offset(0), [REJECT], reason="bad"),
        Acknowledgement(Offset(1), Offset(2), [REJECT], reason="x" * 300),
    ]
    written = partition.acknowledge("a", said, limits, 0, may_renew=False)
    assert written is not None
    partition.dead.begin([0, 1], Sender(ProducerId(1), 0, Uuid(b"t" * 16), 0))
    begun = partition.take_write()
    assert begun is not None
    kept = combine(written.batches, begun.batches, Offset(0))
    restored = SharePartition.restore(StateRead(1, Offset(0), kept))
    assert [dead.reason for dead in restored.dead.sending()] == ["bad", "x" * 200]
    assert [dead.reason for dead in restored.dead.next(10)] == ["x" * 200]
