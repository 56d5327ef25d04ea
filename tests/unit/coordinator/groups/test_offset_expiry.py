"""Offsets expire when no member reads them any more; a group goes with its last offset."""

from itertools import count

import pytest

from fakes import group_members
from fakes.tickets import FakeTicket
from ottla.coordinator.groups.classic_group import ClassicGroup
from ottla.coordinator.groups.classic_protocol import GroupLimits, Joined
from ottla.coordinator.groups.consumer_records import EpochDropped, TargetEpochDropped
from ottla.coordinator.groups.offset_expiry import count_expired, expired_records
from ottla.coordinator.groups.offsets import CommittedOffsets
from ottla.coordinator.groups.records import (
    GroupDropped,
    OffsetCommitted,
    OffsetDropped,
    OffsetPending,
)
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.model import Offset, ProducerEpoch, ProducerId, TimestampMs, TopicPartition

T, U = TopicPartition("t", 0), TopicPartition("u", 0)


@pytest.fixture
def group() -> ClassicGroup:
    ids = count(1)
    return ClassicGroup("g", lambda: GroupLimits(initial_delay_ms=0), lambda: str(next(ids)))


def committed(tp: TopicPartition, committed_ms: int) -> OffsetCommitted:
    return OffsetCommitted(
        group_id="g", tp=tp, offset=Offset(1), committed_ms=TimestampMs(committed_ms)
    )


def offsets(**committed_ms: int) -> CommittedOffsets:
    """Offsets of partition 0 of these topics."""
    made = CommittedOffsets()
    for topic, time_ms in committed_ms.items():
        made.replay(committed(TopicPartition(topic, 0), time_ms))
    return made


def make_stable(group: ClassicGroup, now_ms: int) -> str:
    """One member that reads t; its id."""
    ((_, joined),) = group.join(FakeTicket(1), group_members.join(version=3), now_ms).responses
    assert isinstance(joined, Joined)
    group.sync(FakeTicket(2), group_members.sync(joined.member_id, 1, {}), now_ms)
    return joined.member_id


def test_the_last_offset_takes_its_group_with_it(group: ClassicGroup) -> None:
    known = offsets(t=10, u=20)
    assert expired_records({"g": group}, known, 9) == ()
    assert expired_records({"g": group}, known, 10) == (OffsetDropped("g", T),)
    assert expired_records({"g": group}, known, 20) == (
        OffsetDropped("g", T),
        OffsetDropped("g", U),
        GroupDropped("g"),
    )


def test_offsets_of_a_subscribed_topic_do_not_expire(group: ClassicGroup) -> None:
    make_stable(group, 0)
    assert expired_records({"g": group}, offsets(t=10, u=10), 10**9) == (OffsetDropped("g", U),)


def test_retention_begins_when_the_last_member_leaves(group: ClassicGroup) -> None:
    member_id = make_stable(group, 0)
    group.leave([(member_id, None)], 50)
    assert expired_records({"g": group}, offsets(t=10), 49) == ()
    assert expired_records({"g": group}, offsets(t=10), 50) != ()


def test_a_group_that_rebalances_loses_nothing(group: ClassicGroup) -> None:
    group.join(FakeTicket(1), group_members.join(), 0)
    known = offsets(u=10)
    group.join(FakeTicket(2), group_members.join(version=3), 0)
    assert expired_records({"g": group}, known, 10**9) == ()


def test_an_offset_of_an_open_transaction_keeps_itself_and_its_group(group: ClassicGroup) -> None:
    known = offsets(t=10)
    producer = ProducerIdentity(ProducerId(7), ProducerEpoch(0))
    known.replay_pending(OffsetPending(producer, committed(T, 10)))
    assert expired_records({"g": group}, known, 10**9) == ()


def test_offsets_are_counted_apart_from_the_tombstones_of_groups(group: ClassicGroup) -> None:
    expired = expired_records({"g": group}, offsets(t=10, u=20), 20)
    assert len(expired) == 3
    assert count_expired(expired) == (2, 1)
    consumer = (EpochDropped("c"), TargetEpochDropped("c"))
    assert count_expired((*expired, *consumer)) == (2, 2)
    assert count_expired(()) == (0, 0)
