"""Which leases are renewed, and which are given up."""

import pytest

from ottla.client.share_records import Acknowledgement, ShareRecord
from ottla.model import TopicPartition, Uuid
from ottla.records.batch import Record
from ottla.work.errors import AlreadySettled, LeaseLost
from ottla.work.leases import LOOK_S, Lease, Leases, LeaseState

LOCK_S = 30.0


class FakeSession:
    is_open = True

    async def acknowledge(self, said: "list[Acknowledgement]") -> None:
        raise AssertionError("a core sends nothing")


def lease(now_s: float = 0.0, is_wanted: bool = True) -> Lease:
    tp, topic_id = TopicPartition("jobs", 1), Uuid(b"t" * 16)
    record = ShareRecord(tp, topic_id, Record(), 1, now_s + LOCK_S, FakeSession())  # type: ignore[arg-type]
    return Lease(record, now_s, LOCK_S, lambda: is_wanted)


def held(*leases: Lease, lease_max_s: float = 1000.0) -> Leases:
    found = Leases(lease_max_s)
    for one in leases:
        found.add(one)
    return found


def test_a_lease_is_renewed_after_a_third_of_its_lock() -> None:
    one = lease()
    leases = held(one)
    assert leases.due(9.9) == []
    assert leases.pause_s(9.9) == pytest.approx(0.1)
    assert leases.due(10.0) == [one]


def test_a_renewal_without_a_response_is_repeated_soon_and_not_at_once() -> None:
    one = lease()
    leases = held(one)
    assert leases.due(10.0) == [one]
    assert leases.due(10.1) == []
    assert leases.pause_s(10.1) == pytest.approx(0.4)
    assert leases.due(10.5) == [one]
    one.record.lock_end_s = 10.6 + LOCK_S
    assert leases.due(11.1) == []


def test_what_is_being_settled_is_not_renewed() -> None:
    one = lease()
    leases = held(one)
    one.begin_settling()
    assert leases.due(29.0) == []
    assert leases.pause_s(29.0) == LOOK_S
    assert leases.unwanted() == []


def test_a_lease_is_not_held_for_longer_than_allowed() -> None:
    one, other = lease(), lease(now_s=50.0)
    leases = held(one, other, lease_max_s=100.0)
    assert leases.take_overdue(99.9) == []
    assert leases.take_overdue(100.0) == [one]
    assert leases.due(100.0) == [other]
    assert leases.take_overdue(100.0) == [], "it is said once"


def test_what_nobody_wants_is_found() -> None:
    one, other = lease(is_wanted=False), lease()
    leases = held(one, other)
    assert leases.unwanted() == [one]
    leases.remove(one)
    assert leases.unwanted() == []
    assert len(leases) == 1


def test_a_message_is_settled_once() -> None:
    one = lease()
    one.begin_settling()
    with pytest.raises(AlreadySettled, match="jobs-1@0"):
        one.begin_settling()
    one.state = LeaseState.LOST
    with pytest.raises(LeaseLost, match="jobs-1@0"):
        one.begin_settling()
