"""From one protocol to the other: who can, and what is kept."""

from itertools import count
from typing import Unpack

import pytest

from fakes import group_members
from fakes.tickets import FakeTicket
from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups.classic_group import ClassicGroup
from ottla.coordinator.groups.classic_protocol import GroupLimits, Joined
from ottla.coordinator.groups.consumer_records import CurrentSet, EpochSet, MemberStored
from ottla.coordinator.groups.migration import to_consumer_records


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
