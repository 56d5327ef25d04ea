"""From one protocol to the other: who can, and what is kept."""

from itertools import count
from typing import Unpack

import pytest

from fakes import group_members
from fakes.tickets import FakeTicket
from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups.classic_group import ClassicGroup
from ottla.coordinator.groups.classic_protocol import GroupLimits, Joined
from ottla.coordinator.groups.consumer_group import ConsumerGroup, ConsumerLimits
from ottla.coordinator.groups.consumer_records import CurrentSet, EpochSet, MemberStored
from ottla.coordinator.groups.migration import (
    may_downgrade,
    may_upgrade,
    to_classic_record,
    to_consumer_records,
)
from ottla.protocol.consumer_protocol import parse_assignment


@pytest.fixture
def catalog() -> TopicCatalog:
    return TopicCatalog(t=2)


def joined(**more: Unpack[group_members.JoinOptions]) -> tuple[ClassicGroup, str]:
    ids = count(1)
    limits = GroupLimits(initial_delay_ms=0)
    group = ClassicGroup("g", lambda: limits, lambda: str(next(ids)))
    join = group_members.join(version=3, **more)
    ((_, answer),) = group.join(FakeTicket(1), join, 0).responses
    assert isinstance(answer, Joined)
    return group, answer.member_id


def synced(group: ClassicGroup, assignments: dict[str, bytes]) -> None:
    assert group.leader is not None
    group.sync(FakeTicket(1), group_members.sync(group.leader, group.generation, assignments), 0)


def test_members_keep_their_assignment_and_their_generation(catalog: TopicCatalog) -> None:
    group, member_id = joined()
    synced(group, {member_id: group_members.assignment({"t": [1], "gone": [0]})})
    records = to_consumer_records(group, catalog.image)
    assert records is not None
    assert EpochSet(group_id="g", epoch=1) in records
    (member,) = [record for record in records if isinstance(record, MemberStored)]
    assert member.topics == ("t",)
    assert member.classic is not None
    assert member.classic.protocols[0][0] == "range"
    (current,) = [record for record in records if isinstance(record, CurrentSet)]
    assert (current.epoch, current.assigned) == (1, frozenset({catalog.partition("t", 1)}))


def test_a_partition_that_clients_gave_away_twice_has_one_owner(catalog: TopicCatalog) -> None:
    group, first = joined()
    group.join(FakeTicket(2), group_members.join(version=3), 0)
    group.join(FakeTicket(3), group_members.join(first), 0)
    everything = group_members.assignment({"t": [0, 1]})
    synced(group, dict.fromkeys(group.members, everything))
    records = to_consumer_records(group, catalog.image)
    assert records is not None
    held = [r.assigned for r in records if isinstance(r, CurrentSet)]
    assert held == [catalog.all_of("t"), frozenset()]


@pytest.mark.parametrize(
    ("assignment", "more"),
    [
        (b"", {"protocols": {"range": b"\xff\xff"}}),
        (b"\xff\xff", {}),
        (b"", {"protocol_type": "connect"}),
    ],
)
def test_groups_that_speak_something_else_stay_as_they_are(
    catalog: TopicCatalog, assignment: bytes, more: group_members.JoinOptions
) -> None:
    group, member_id = joined(**more)
    synced(group, {member_id: assignment})
    assert to_consumer_records(group, catalog.image) is None


def consumer_group(catalog: TopicCatalog, members: dict[str, list[str]]) -> ConsumerGroup:
    """A consumer group of classic members, each with the protocols that it supports."""
    limits = ConsumerLimits()
    group = ConsumerGroup("g", lambda: limits, lambda: catalog.image, lambda: "1")
    for member_id, names in members.items():
        protocols = {name: group_members.subscription(name) for name in names}
        group.join(FakeTicket(1), group_members.join(member_id, protocols=protocols), 0)
    assert list(group.members) == list(members)
    return group


def test_the_way_back_takes_the_first_protocol_that_all_members_support(
    catalog: TopicCatalog,
) -> None:
    group = consumer_group(catalog, {"a": ["x", "y", "z"], "b": ["z", "y"]})
    stored = to_classic_record(group, catalog.image, 77)
    assert (stored.protocol_type, stored.protocol, stored.leader) == ("consumer", "y", "a")
    assert (stored.generation, stored.changed_ms) == (group.replayed.epoch, 77)
    assert [member.subscription for member in stored.members] == [
        group_members.subscription("y")
    ] * 2


def test_on_the_way_back_members_keep_what_they_hold(catalog: TopicCatalog) -> None:
    group = consumer_group(catalog, {"a": ["t"]})
    (member,) = to_classic_record(group, catalog.image, 0).members
    assert member.member_id == "a"
    assert parse_assignment(member.assignment) == {"t": [0, 1]}


def test_a_group_with_a_member_of_the_consumer_protocol_has_no_way_back(
    catalog: TopicCatalog,
) -> None:
    group = consumer_group(catalog, {"a": ["t"]})
    group.replay(MemberStored(group_id="g", member_id="b"), 0)
    assert not may_downgrade(group, ConsumerLimits())
    with pytest.raises(AssertionError, match="only classic members are left"):
        to_classic_record(group, catalog.image, 0)


def test_settings_decide_whether_a_group_may_change(catalog: TopicCatalog) -> None:
    group = consumer_group(catalog, {"a": ["t"], "b": ["t"]})
    assert may_downgrade(group, ConsumerLimits())
    assert not may_downgrade(group, ConsumerLimits(allows_downgrade=False))
    assert not may_downgrade(group, ConsumerLimits(classic=GroupLimits(members_max=1)))
    classic, _ = joined()
    assert may_upgrade(classic, ConsumerLimits(members_max=1))
    assert not may_upgrade(classic, ConsumerLimits(members_max=0))
    assert not may_upgrade(classic, ConsumerLimits(allows_upgrade=False))
    empty = ClassicGroup("g", GroupLimits, lambda: "1")
    assert may_upgrade(empty, ConsumerLimits(allows_upgrade=False))
