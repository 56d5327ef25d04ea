"""What the scenarios cannot say in their few words; see tests/scenario/groups for the rest."""

from itertools import count
from typing import Unpack

import pytest

from fakes import group_members
from fakes.tickets import FakeTicket, responses
from ottla.coordinator.groups.classic_group import ClassicGroup, State
from ottla.coordinator.groups.classic_protocol import GroupLimits, Joined, Synced
from ottla.coordinator.groups.records import GroupDecision
from ottla.errors import ErrorCode


@pytest.fixture
def group() -> ClassicGroup:
    ids = count(1)
    return ClassicGroup("g", lambda: GroupLimits(initial_delay_ms=0), lambda: str(next(ids)))


def answers(decision: GroupDecision) -> dict[int, object]:
    return dict(responses(decision))


def first_member(group: ClassicGroup, **more: Unpack[group_members.JoinOptions]) -> str:
    joined = answers(group.join(FakeTicket(1), group_members.join(version=3, **more), 0))[1]
    assert isinstance(joined, Joined)
    group.sync(FakeTicket(2), group_members.sync(joined.member_id, 1, {joined.member_id: b"x"}), 0)
    assert group.state is State.STABLE
    return joined.member_id


def test_an_id_says_whose_it_is(group: ClassicGroup) -> None:
    assert first_member(group, client_id="clock") == "clock-1"


def test_the_leader_is_told_of_static_members_first(group: ClassicGroup) -> None:
    leader = first_member(group)
    group.join(FakeTicket(3), group_members.join(version=5, instance_id="clock"), 0)
    group.join(FakeTicket(4), group_members.join(version=3), 0)
    told = answers(group.join(FakeTicket(5), group_members.join(leader), 0))[5]
    assert isinstance(told, Joined)
    assert [instance_id for _, instance_id, _ in told.members] == ["clock", None, None]
    assert [one for one, _, _ in told.members][1] == leader


def test_a_second_join_of_a_member_that_waits_takes_the_place_of_the_first(
    group: ClassicGroup,
) -> None:
    member_id = first_member(group)
    group.join(FakeTicket(3), group_members.join(version=3), 0)
    other = group_members.join("c-2", version=3)
    decision = group.join(FakeTicket(4), other, 0)
    refused = answers(decision)[3]
    assert isinstance(refused, Joined)
    assert refused.error is ErrorCode.REBALANCE_IN_PROGRESS
    last = answers(group.join(FakeTicket(5), group_members.join(member_id), 0))
    assert set(last) == {4, 5}


def test_a_second_sync_of_a_member_that_waits_takes_the_place_of_the_first(
    group: ClassicGroup,
) -> None:
    member_id = first_member(group)
    group.join(FakeTicket(3), group_members.join(version=3), 0)
    group.join(FakeTicket(4), group_members.join(member_id), 0)
    group.sync(FakeTicket(5), group_members.sync("c-2", 2), 0)
    decision = group.sync(FakeTicket(6), group_members.sync("c-2", 2), 0)
    assert answers(decision) == {5: Synced(error=ErrorCode.REBALANCE_IN_PROGRESS)}


@pytest.mark.parametrize(
    ("protocol_type", "protocol_name", "error"),
    [
        (None, None, ErrorCode.NONE),
        ("consumer", "range", ErrorCode.NONE),
        ("connect", "range", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("consumer", "sticky", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_sync_that_names_another_protocol_is_refused(
    group: ClassicGroup, protocol_type: str | None, protocol_name: str | None, error: ErrorCode
) -> None:
    member_id = first_member(group)
    sync = group_members.sync(
        member_id, 1, protocol_type=protocol_type, protocol_name=protocol_name
    )
    answer = answers(group.sync(FakeTicket(3), sync, 0))[3]
    assert isinstance(answer, Synced)
    assert answer.error is error


@pytest.mark.parametrize("join", [{"protocols": {}}, {"protocol_type": ""}])
def test_a_join_without_protocols_is_refused(
    group: ClassicGroup, join: group_members.JoinOptions
) -> None:
    refused = answers(group.join(FakeTicket(1), group_members.join(version=3, **join), 0))[1]
    assert isinstance(refused, Joined)
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_one_who_was_only_expected_and_leaves_starts_no_rebalance(group: ClassicGroup) -> None:
    first_member(group)
    expected = answers(group.join(FakeTicket(3), group_members.join(), 0))[3]
    assert isinstance(expected, Joined)
    errors, _ = group.leave([(expected.member_id, None)], 0)
    assert errors == [ErrorCode.NONE]
    assert group.state is State.STABLE


def test_commits_keep_a_member_alive(group: ClassicGroup) -> None:
    member_id = first_member(group, session_ms=6000)
    group.touch(member_id, 5000)
    group.touch("stranger", 5000)
    group.pass_time(6000)
    assert member_id in group.members


def test_a_restored_group_is_stored_the_same_way(group: ClassicGroup) -> None:
    first_member(group, protocols={"range": group_members.subscription("t"), "sticky": b"2"})
    again = ClassicGroup.restore(group.stored(), group.limits, group.new_id, 500)
    assert again.stored() == group.stored()
    assert again.state is State.STABLE
    assert again.next_deadline_ms() == 10_500


def test_the_topics_of_a_group_that_is_not_of_consumers_are_unknown(group: ClassicGroup) -> None:
    first_member(group, protocol_type="connect")
    assert group.subscribed_topics() is None


def test_the_topics_of_consumers_are_those_they_subscribe_to(group: ClassicGroup) -> None:
    first_member(group)
    assert group.subscribed_topics() == frozenset({"t"})


def test_a_sync_during_a_rebalance_is_told_to_join_again(group: ClassicGroup) -> None:
    member_id = first_member(group)
    group.join(FakeTicket(3), group_members.join(version=3), 0)
    assert group.state is State.PREPARING
    decision = group.sync(FakeTicket(4), group_members.sync(member_id, 1), 0)
    assert answers(decision) == {4: Synced(error=ErrorCode.REBALANCE_IN_PROGRESS)}


def test_a_leader_that_is_away_is_replaced_by_a_member_that_has_joined(group: ClassicGroup) -> None:
    """A static member may be missing, and stays a member; it cannot assign meanwhile."""
    away = first_member(group, instance_id="i", session_ms=100_000, rebalance_ms=20_000)
    assert group.leader == away
    group.join(FakeTicket(3), group_members.join(version=3, rebalance_ms=20_000), 0)
    joined = answers(group.pass_time(20_000))[3]
    assert isinstance(joined, Joined)
    assert joined.leader == joined.member_id == group.leader != away
    assert {one for one, _, _ in joined.members} == {away, joined.member_id}
    assert away in group.members
