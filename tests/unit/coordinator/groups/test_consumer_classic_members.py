"""Classic members of a consumer group: their metadata is read, their assignment is encoded."""

import pytest

from fakes import group_members
from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups.classic_protocol import GroupLimits, Join
from ottla.coordinator.groups.consumer_classic_members import (
    check_join,
    check_sync,
    joining_member,
    synced,
)
from ottla.coordinator.groups.consumer_group_state import ReplayedGroup
from ottla.errors import InconsistentGroupProtocol, InvalidSessionTimeout
from ottla.protocol.consumer_protocol import parse_assignment

LIMITS = GroupLimits()


def test_a_members_subscription_is_that_of_its_first_protocol() -> None:
    join = group_members.join(protocols={"range": group_members.subscription("u", "t")})
    subscription = check_join(join, ReplayedGroup("g"), LIMITS)
    member = joining_member("g", "m", join, subscription)
    assert member.topics == ("t", "u")
    assert member.classic is not None
    assert member.classic.protocols == join.protocols


@pytest.mark.parametrize("session_ms", [5999, 1_800_001])
def test_a_session_timeout_out_of_range_is_refused_with_the_range(session_ms: int) -> None:
    with pytest.raises(InvalidSessionTimeout, match="between 6000 and 1800000"):
        check_join(group_members.join(session_ms=session_ms), ReplayedGroup("g"), LIMITS)


@pytest.mark.parametrize(
    "join",
    [
        group_members.join(protocol_type="connect"),
        group_members.join(protocols={"range": b"\xff"}),
        group_members.join(protocols={}),
    ],
)
def test_metadata_that_is_not_a_consumers_is_refused(join: Join) -> None:
    with pytest.raises(InconsistentGroupProtocol):
        check_join(join, ReplayedGroup("g"), LIMITS)


def test_a_member_that_shares_no_protocol_with_other_classic_ones_is_refused() -> None:
    group = ReplayedGroup("g")
    first = group_members.join("a")
    group.replay(joining_member("g", "a", first, check_join(first, group, LIMITS)))
    other = group_members.join(protocols={"sticky": group_members.subscription("t")})
    with pytest.raises(InconsistentGroupProtocol):
        check_join(other, group, LIMITS)


def test_an_assignment_is_encoded_with_topic_names() -> None:
    catalog = TopicCatalog(t=2)
    join = group_members.join("m")
    member = joining_member("g", "m", join, check_join(join, ReplayedGroup("g"), LIMITS))
    result = synced(member, catalog.all_of("t"), catalog.image)
    assert (result.protocol_type, result.protocol) == ("consumer", "range")
    assert parse_assignment(result.assignment) == {"t": [0, 1]}
    check_sync(group_members.sync("m", 1, protocol_name="range"), member)
    with pytest.raises(InconsistentGroupProtocol):
        check_sync(group_members.sync("m", 1, protocol_name="sticky"), member)
