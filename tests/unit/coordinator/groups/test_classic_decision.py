"""The decision about one event: every ticket gets one response, and the next event none of it."""

from fakes import group_members
from fakes.tickets import FakeTicket
from ottla.coordinator.groups.classic_decision import DecisionDraft
from ottla.coordinator.groups.classic_membership import Member
from ottla.coordinator.groups.classic_protocol import Joined, Synced
from ottla.coordinator.groups.records import GroupDecision, GroupDropped
from ottla.errors import ErrorCode


def test_a_draft_is_empty_after_its_decision() -> None:
    draft = DecisionDraft()
    draft.records.append(GroupDropped("g"))
    draft.respond(FakeTicket(1), Synced())
    assert draft.finish() == GroupDecision((GroupDropped("g"),), (FakeTicket(1).respond(Synced()),))
    assert draft.finish() == GroupDecision()


def test_a_request_is_cancelled_once() -> None:
    draft = DecisionDraft()
    member = Member.joining(group_members.join("m"), 0)
    member.join_ticket, member.sync_ticket = FakeTicket(1), FakeTicket(2)
    fenced = ErrorCode.FENCED_INSTANCE_ID
    draft.cancel(member, fenced)
    draft.cancel(member, fenced)
    assert not member.is_waiting
    assert draft.finish().responses == (
        (FakeTicket(1), Joined(error=fenced, member_id="m")),
        (FakeTicket(2), Synced(error=fenced)),
    )
