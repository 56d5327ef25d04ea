"""Members of a classic group: found by both ids, led by the first, electing a protocol."""

import pytest

from fakes import group_members
from fakes.tickets import FakeTicket
from ottla.coordinator.groups.classic_membership import Member, Membership
from ottla.coordinator.groups.classic_protocol import GroupLimits
from ottla.errors import ErrorCode


def member(member_id: str, *protocols: str, instance_id: str | None = None) -> Member:
    join = group_members.join(
        member_id,
        instance_id=instance_id,
        protocols={name: f"{member_id}:{name}".encode() for name in protocols or ("range",)},
    )
    return Member.joining(join, 0)


def membership(*members: Member) -> Membership:
    made = Membership()
    for one in members:
        made.add(one)
    return made


def test_the_first_member_leads_and_the_oldest_follows_it() -> None:
    first, second, third = member("a"), member("b"), member("c")
    made = membership(first, second, third)
    assert made.leader == "a"
    made.remove(third)
    assert made.leader == "a"
    made.remove(first)
    assert made.leader == "b"
    made.remove(second)
    assert made.leader is None


def test_a_static_member_is_found_by_its_newest_id_alone() -> None:
    made = membership(member("old", instance_id="i"))
    assert made.check("old", "i") is ErrorCode.NONE
    made.rename("old", "new")
    assert made.check("new", "i") is ErrorCode.NONE
    assert made.check("old", "i") is ErrorCode.FENCED_INSTANCE_ID
    assert made.check("old", None) is ErrorCode.UNKNOWN_MEMBER_ID
    assert made.check("new", "other") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_renamed_member_keeps_its_index_and_its_leadership() -> None:
    made = membership(member("a"), member("old", instance_id="i"), member("c"))
    made.leader, made.unsynced = "old", {"old", "c"}
    made.rename("old", "new")
    assert list(made.members) == ["a", "new", "c"]
    assert (made.leader, made.unsynced) == ("new", {"new", "c"})


def test_the_protocol_that_most_list_first_is_elected_of_those_that_all_support() -> None:
    made = membership(
        member("a", "own", "sticky", "range"),
        member("b", "range", "sticky"),
        member("c", "sticky", "range"),
    )
    assert made.elect_protocol() == "sticky"


@pytest.mark.parametrize(
    ("protocols", "error"),
    [
        ({"sticky": b""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"sticky": b"", "range": b""}, ErrorCode.NONE),
    ],
)
def test_a_newcomer_shares_a_protocol_with_all(
    protocols: dict[str, bytes], error: ErrorCode
) -> None:
    made = membership(member("a"))
    join = group_members.join(protocols=protocols)
    assert made.check_join(join, "consumer", GroupLimits()) is error


def test_a_full_group_admits_members_that_replace_themselves() -> None:
    made = membership(member("a"), member("b", instance_id="i"))
    limits = GroupLimits(members_max=2)
    for join in (group_members.join("a"), group_members.join(instance_id="i")):
        assert made.check_join(join, "consumer", limits) is ErrorCode.NONE
    error = made.check_join(group_members.join(), "consumer", limits)
    assert error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_members_are_complete_when_all_have_joined_and_no_id_is_open() -> None:
    one = member("a")
    made = membership(one)
    assert not made.is_complete
    one.join_ticket = FakeTicket(1)
    assert made.is_complete
    assert made.joined() == [one]
    made.pending["b"] = 10
    assert not made.is_complete


def test_a_member_that_waits_for_a_response_has_no_deadline() -> None:
    one = member("a")
    made = membership(one)
    made.pending["b"] = 77
    assert sorted(made.deadlines()) == [77, 10_000]
    one.sync_ticket = FakeTicket(1)
    assert list(made.deadlines()) == [77]


def test_a_stored_member_is_restored_with_a_whole_session() -> None:
    one = member("a", "range", "sticky", instance_id="i")
    one.assignment = b"all"
    stored = one.stored("range")
    assert stored.subscription == b"a:range"
    restored = Member.restore(stored, "range", 500)
    assert restored.stored("range") == stored
    assert restored.deadline_ms == 500 + one.session_timeout_ms
