"""The decision about one event of a classic group, collected while the event is handled."""

from dataclasses import dataclass, field
from typing import Any

from ottla.coordinator.groups.classic_membership import Member
from ottla.coordinator.groups.classic_protocol import Join, Joined, Synced
from ottla.coordinator.groups.records import GroupDecision, GroupEvent
from ottla.coordinator.runtime.decision import A, Decision, Response, Ticket
from ottla.errors import ErrorCode


@dataclass(slots=True)
class DecisionDraft:
    """Owned by a group; empty between two events."""

    records: list[GroupEvent] = field(default_factory=list)
    _responses: list[Response[Any]] = field(default_factory=list)

    def respond(self, ticket: Ticket[A], value: A) -> None:
        self._responses.append(ticket.respond(value))

    def refuse_join(self, ticket: Ticket[Joined], join: Join, error: ErrorCode) -> None:
        self.respond(ticket, Joined(error=error, member_id=join.member_id))

    def cancel_join(self, member: Member, error: ErrorCode) -> None:
        """Fail the join that a member waits for, if any."""
        if member.join_ticket is not None:
            self.respond(member.join_ticket, Joined(error=error, member_id=member.member_id))
            member.join_ticket = None

    def cancel_sync(self, member: Member, error: ErrorCode) -> None:
        """Fail the sync that a member waits for, if any."""
        if member.sync_ticket is not None:
            self.respond(member.sync_ticket, Synced(error=error))
            member.sync_ticket = None

    def cancel(self, member: Member, error: ErrorCode) -> None:
        """Fail every request of a member that waits."""
        self.cancel_join(member, error)
        self.cancel_sync(member, error)

    def finish(self) -> GroupDecision:
        """The decision; the next event begins with an empty draft."""
        decision = Decision(tuple(self.records), tuple(self._responses))
        self.records.clear()
        self._responses.clear()
        return decision
