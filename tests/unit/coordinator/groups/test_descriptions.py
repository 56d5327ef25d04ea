"""Groups as tools see them."""

from dataclasses import replace
from itertools import count

import pytest

from fakes import group_members
from fakes.tickets import FakeTicket
from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups.classic_group import ClassicGroup, State
from ottla.coordinator.groups.classic_protocol import GroupLimits, Joined
from ottla.coordinator.groups.consumer_group import ConsumerGroup, ConsumerLimits
from ottla.coordinator.groups.consumer_group_state import ConsumerGroupState
from ottla.coordinator.groups.consumer_heartbeat import ConsumerHeartbeat
from ottla.coordinator.groups.descriptions import (
    GroupType,
    ListedGroup,
    describe_consumer_group,
    describe_group,
    list_group,
)


@pytest.fixture
def catalog() -> TopicCatalog:
    return TopicCatalog(t=2)


@pytest.fixture
def consumer_group(catalog: TopicCatalog) -> ConsumerGroup:
    ids = count(1)
    return ConsumerGroup("g", ConsumerLimits, lambda: catalog.image, lambda: str(next(ids)))


@pytest.fixture
def classic_group() -> ClassicGroup:
    ids = count(1)
    return ClassicGroup("g", lambda: GroupLimits(initial_delay_ms=0), lambda: str(next(ids)))


def make_stable(group: ClassicGroup) -> str:
    """Join and sync one member; its id."""
    ((_, joined),) = group.join(FakeTicket(1), group_members.join(version=3), 0).responses
    assert isinstance(joined, Joined)
    group.sync(
        FakeTicket(2), group_members.sync(joined.member_id, 1, {joined.member_id: b"all"}), 0
    )
    return joined.member_id


def test_groups_are_listed_with_state_and_type(
    classic_group: ClassicGroup, consumer_group: ConsumerGroup
) -> None:
    assert list_group(classic_group) == ListedGroup("g", "", State.EMPTY, GroupType.CLASSIC)
    make_stable(classic_group)
    assert list_group(classic_group) == ListedGroup(
        "g", "consumer", State.STABLE, GroupType.CLASSIC
    )
    assert list_group(consumer_group) == ListedGroup(
        "g", "consumer", ConsumerGroupState.EMPTY, GroupType.CONSUMER
    )


def test_metadata_and_assignments_are_shown_while_they_belong_together(
    classic_group: ClassicGroup,
) -> None:
    member_id = make_stable(classic_group)
    stable = describe_group(classic_group)
    assert (stable.state, stable.protocol) == (State.STABLE, "range")
    (member,) = stable.members
    assert (member.member_id, member.client_id, member.client_host) == (
        member_id,
        "c",
        "/127.0.0.1",
    )
    assert (member.metadata, member.assignment) == (group_members.subscription("t"), b"all")
    classic_group.join(FakeTicket(1), group_members.join(version=3), 0)
    moving = describe_group(classic_group)
    assert moving.protocol == ""
    assert {(m.metadata, m.assignment) for m in moving.members} == {(b"", b"")}


def test_a_consumer_group_shows_current_and_target_assignments(
    consumer_group: ConsumerGroup, catalog: TopicCatalog
) -> None:
    join = ConsumerHeartbeat(
        member_id="a",
        epoch=0,
        rebalance_timeout_ms=5000,
        topics=frozenset({"t"}),
        owned=frozenset(),
    )
    consumer_group.consumer_heartbeat(FakeTicket(1), join, 0)
    consumer_group.consumer_heartbeat(FakeTicket(1), replace(join, member_id="b"), 0)
    described = describe_consumer_group(consumer_group)
    assert (described.epoch, described.target_epoch) == (2, 2)
    assert (described.state, described.assignor) == (ConsumerGroupState.RECONCILING, "uniform")
    first, second = described.members
    assert first.assigned == catalog.all_of("t"), "it has not heard of the other yet"
    assert second.assigned == frozenset()
    assert first.target | second.target == catalog.all_of("t")
    assert len(first.target) == len(second.target) == 1
    assert not first.is_classic
