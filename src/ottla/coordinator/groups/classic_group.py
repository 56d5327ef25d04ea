"""A group whose members assign partitions among themselves: join, sync, heartbeat, leave.

Everything that changes a classic group is called here, and nothing here knows loops, clocks or
logs. An event comes with the time and, if it has a response, a ticket. The decision says which
records to write and which tickets get their responses now: not only the event's own, for the last
member to join completes the joins of all.

           join                    all joined, or time is up            leader syncs
    EMPTY ------> PREPARING ------------------------------> COMPLETING -------------> STABLE
      ^             |   ^                                     |   join, leave,          |
      |  all gone   |   |              join, leave, silence   |   silence               |
      +-------------+   +-------------------------------------+-------------------------+

A classic group is stored as a whole and not replayed event by event, unlike the other machines:
`GroupStored` is one record with everything that the next leader of the shard must know, `stored`
makes it and `restore` reads it. It is written when the group becomes EMPTY or STABLE, and in these
states restoring the last record gives an equal group. A rebalance under way is lost with its
coordinator, and its members begin it again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Self

from ottla.coordinator.groups.classic_decision import DecisionDraft
from ottla.coordinator.groups.classic_membership import Member, Membership
from ottla.coordinator.groups.classic_protocol import GroupLimits, Join, Joined, Sync, Synced
from ottla.coordinator.groups.classic_rebalance import RebalanceDeadlines
from ottla.coordinator.groups.records import GroupDecision, GroupDropped, GroupStored, Record
from ottla.coordinator.runtime.decision import Ticket
from ottla.errors import ErrorCode
from ottla.model import TimestampMs
from ottla.protocol.consumer_protocol import CONSUMER, subscribed_topics

NEVER_CHANGED: Final = TimestampMs(-1)


class State(StrEnum):
    """States by the names that clients and tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True)
class ClassicGroup:
    """Owned by a shard. `new_id` makes the random part of a member id."""

    group_id: str
    limits: Callable[[], GroupLimits]
    new_id: Callable[[], str]
    state: State = State.EMPTY
    protocol_type: str | None = None
    protocol: str | None = None
    generation: int = 0
    changed_ms: TimestampMs = NEVER_CHANGED  # when the stored record was made
    membership: Membership = field(default_factory=Membership)
    _deadlines: RebalanceDeadlines = field(default_factory=RebalanceDeadlines)
    _draft: DecisionDraft = field(default_factory=DecisionDraft)

    @classmethod
    def restore(
        cls,
        record: GroupStored,
        limits: Callable[[], GroupLimits],
        new_id: Callable[[], str],
        now_ms: int,
    ) -> Self:
        """The inverse of `stored`; every member gets a whole session to send a heartbeat."""
        group = cls(record.group_id, limits, new_id)
        group.protocol_type = record.protocol_type or None
        group.protocol = record.protocol
        group.generation = record.generation
        group.changed_ms = record.changed_ms
        for stored in record.members:
            group.membership.add(Member.restore(stored, record.protocol, now_ms))
        group.membership.leader = record.leader
        group.state = State.STABLE if group.members else State.EMPTY
        return group

    # Events

    def join(self, ticket: Ticket[Joined], join: Join, now_ms: int) -> GroupDecision:
        error = self.membership.check_join(join, self.protocol_type, self.limits())
        if error is not ErrorCode.NONE:
            self._draft.refuse_join(ticket, join, error)
        elif join.instance_id is not None and not join.member_id:
            self._join_static(ticket, join, now_ms)
        elif not join.member_id:
            self._join_new(ticket, join, now_ms)
        else:
            self._join_known(ticket, join, now_ms)
        return self._draft.finish()

    def sync(self, ticket: Ticket[Synced], sync: Sync, now_ms: int) -> GroupDecision:
        error = self.check_member(sync.member_id, sync.instance_id, sync.generation)
        if error is ErrorCode.NONE:
            error = self._check_sync(sync)
        if error is not ErrorCode.NONE:
            self._draft.respond(ticket, Synced(error=error))
            return self._draft.finish()
        member = self.members[sync.member_id]
        member.touch(now_ms)
        self.membership.unsynced.discard(member.member_id)
        if self.state is State.STABLE:
            self._draft.respond(ticket, self._synced(member))
            return self._draft.finish()
        self._draft.cancel_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_ticket = ticket
        if member.member_id == self.leader:
            self._assign(sync.assignments, now_ms)
        return self._draft.finish()

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        error = self.check_member(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        self.members[member_id].touch(now_ms)
        if self.state is State.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(
        self, identities: Sequence[tuple[str, str | None]], now_ms: int
    ) -> tuple[list[ErrorCode], GroupDecision]:
        """Remove members by member id, or by instance id as administrators do."""
        count = len(self.members)
        errors = [self._leave_one(member_id, instance_id) for member_id, instance_id in identities]
        if len(self.members) < count:
            self._rebalance(now_ms)
        elif self.state is State.PREPARING:
            self._try_complete(now_ms)  # an id that was given out will not be used
        return errors, self._draft.finish()

    def pass_time(self, now_ms: int) -> GroupDecision:
        """Remove members whose session is over; end a rebalance that took its whole time."""
        membership = self.membership
        membership.pending = {m: end for m, end in membership.pending.items() if end > now_ms}
        gone = [m for m in self.members.values() if not m.is_waiting and m.deadline_ms <= now_ms]
        if membership.unsynced and self._deadlines.sync_end_ms <= now_ms:
            gone += [m for m in self.members.values() if m.member_id in membership.unsynced]
        for member in gone:
            if member.member_id in self.members:
                self._remove(member)
        if gone:
            self._rebalance(now_ms)
        if self.state is State.PREPARING:
            self._try_complete(now_ms)
        return self._draft.finish()

    def rebalance(self, now_ms: int) -> GroupDecision:
        """Have all members join again although none came or left."""
        self._rebalance(now_ms)
        return self._draft.finish()

    def dissolve(self) -> GroupDecision:
        """Fail all waiting requests: the group goes on in the consumer protocol."""
        for member in self.members.values():
            self._draft.cancel(member, ErrorCode.REBALANCE_IN_PROGRESS)
        return self._draft.finish()

    def touch(self, member_id: str, now_ms: int) -> None:
        """Begin a member's session anew: a commit counts as a heartbeat."""
        member = self.membership.members.get(member_id)
        if member is not None:
            member.touch(now_ms)

    # Queries

    @property
    def members(self) -> dict[str, Member]:
        return self.membership.members

    @property
    def leader(self) -> str | None:
        return self.membership.leader

    def next_deadline_ms(self) -> int | None:
        """The time at which `pass_time` next changes something, at the latest."""
        return min(self._deadlines_ms(), default=None)

    def check_member(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """The error of a request that does not come from a member of this generation."""
        error = self.membership.check(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics that its consumers read; None if their metadata does not say."""
        if self.protocol_type != CONSUMER:
            return None
        return self.membership.subscribed_topics(self.protocol)

    @property
    def is_forgettable(self) -> bool:
        """True if the group has no members and none are joining: only offsets may matter."""
        return self.state is State.EMPTY and not self.membership.pending

    @property
    def is_stored(self) -> bool:
        return self.changed_ms != NEVER_CHANGED

    def tombstones(self) -> tuple[Record, ...]:
        """Records that remove the group from the log."""
        return (GroupDropped(self.group_id),)

    def stored(self) -> GroupStored:
        """The group as it is written to the log."""
        return GroupStored(
            group_id=self.group_id,
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            changed_ms=self.changed_ms,
            members=tuple(member.stored(self.protocol) for member in self.members.values()),
        )

    # Joining

    def _join_new(self, ticket: Ticket[Joined], join: Join, now_ms: int) -> None:
        member_id = f"{join.client_id}-{self.new_id()}"
        if join.needs_known_id:
            # It comes back with this id. Without that, a client that joins twice because the
            # response got lost would be two members, one of them silent (KIP-394).
            self.membership.pending[member_id] = now_ms + join.session_timeout_ms
            required = Joined(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
            self._draft.respond(ticket, required)
            return
        self._add(ticket, replace(join, member_id=member_id), now_ms)

    def _join_known(self, ticket: Ticket[Joined], join: Join, now_ms: int) -> None:
        if join.member_id in self.membership.pending and join.instance_id is None:
            del self.membership.pending[join.member_id]
            self._add(ticket, join, now_ms)
            return
        error = self.check_member(join.member_id, join.instance_id, self.generation)
        if error is not ErrorCode.NONE:
            self._draft.refuse_join(ticket, join, error)
            return
        self._rejoin(ticket, join, now_ms)

    def _rejoin(self, ticket: Ticket[Joined], join: Join, now_ms: int) -> None:
        member = self.members[join.member_id]
        is_same = member.protocols == join.protocols
        is_follower = member.member_id != self.leader
        if is_same and (
            self.state is State.COMPLETING or (self.state is State.STABLE and is_follower)
        ):
            # The response to its join got lost: send it again. A leader that joins again while
            # the group is stable wants to assign anew.
            member.touch(now_ms)
            self._draft.respond(ticket, self._joined(member))
            return
        member.update(join, now_ms)
        self._await_join(member, ticket)
        self._rebalance(now_ms)

    def _join_static(self, ticket: Ticket[Joined], join: Join, now_ms: int) -> None:
        """A member that stays the same through restarts (KIP-345)."""
        assert join.instance_id is not None, "a static member has an instance id"
        new_id = f"{join.instance_id}-{self.new_id()}"
        old_id = self.membership.static.get(join.instance_id)
        if old_id is None:
            self._add(ticket, replace(join, member_id=new_id), now_ms)
            return
        was_leader = old_id == self.leader
        self._draft.cancel(self.members[old_id], ErrorCode.FENCED_INSTANCE_ID)
        member = self.membership.rename(old_id, new_id)
        before = member.metadata(self.protocol)
        member.update(join, now_ms)
        if self.state is not State.STABLE or not self._is_unchanged(member, before):
            self._await_join(member, ticket)
            self._rebalance(now_ms)
            return
        self._store(now_ms)
        skips = was_leader and join.supports_skip_assignment
        joined = self._joined(member, shows_members=skips)
        if was_leader and not skips:
            # Given another leader, it fetches its assignment instead of making a new one.
            joined = replace(joined, leader=old_id)
        self._draft.respond(ticket, replace(joined, skips_assignment=skips))

    def _is_unchanged(self, member: Member, before: bytes) -> bool:
        """True if the assignment still suits a static member that has restarted.

        Consumers also write the partitions they own into their metadata, and after a restart own
        none: only the subscribed topics count.
        """
        if self.membership.elect_protocol() != self.protocol:
            return False
        now = member.metadata(self.protocol)
        topics = subscribed_topics(now) if self.protocol_type == CONSUMER else None
        return now == before if topics is None else topics == subscribed_topics(before)

    def _add(self, ticket: Ticket[Joined], join: Join, now_ms: int) -> None:
        if not self.members:
            self.protocol_type = join.protocol_type
        member = Member.joining(join, now_ms)
        self.membership.add(member)
        self._deadlines.note_newcomer()
        self._await_join(member, ticket)
        self._rebalance(now_ms)

    def _await_join(self, member: Member, ticket: Ticket[Joined]) -> None:
        self._draft.cancel_join(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.join_ticket = ticket

    # Rebalancing

    def _rebalance(self, now_ms: int) -> None:
        """Have all members join again, unless a rebalance is under way."""
        if self.state is not State.PREPARING:
            self._prepare(now_ms)
        self._try_complete(now_ms)

    def _prepare(self, now_ms: int) -> None:
        for member in self.members.values():
            if member.sync_ticket is not None:
                self._draft.cancel_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
                member.touch(now_ms)  # it was silent because it waited for a response
        self.membership.unsynced.clear()
        was_empty = self.state is State.EMPTY
        self.state = State.PREPARING
        self._deadlines.begin(
            now_ms,
            timeout_ms=self.membership.longest_rebalance_ms(),
            delay_ms=self.limits().initial_delay_ms if was_empty else 0,
        )

    def _try_complete(self, now_ms: int) -> None:
        if self._deadlines.is_over(
            now_ms,
            delay_ms=self.limits().initial_delay_ms,
            is_complete=lambda: self.membership.is_complete,
        ):
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        """Begin a generation of the members that joined; only static ones may be missing."""
        assert self.state is State.PREPARING, "only a rebalance begins a generation"
        membership, joined = self.membership, self.membership.joined()
        for member in [m for m in self.members.values() if m.instance_id is None]:
            if member.join_ticket is None:
                self._remove(member)
        if self.members and not joined:
            # Only static members that are away: wait for one to come back or to be given up.
            first_end_ms = min(m.deadline_ms for m in self.members.values())
            latest_ms = now_ms + membership.longest_rebalance_ms()
            self._deadlines.end_ms = max(first_end_ms, latest_ms)
            return
        self.generation += 1
        if not self.members:
            membership.leader = self.protocol = None
            self.state = State.EMPTY
            self._store(now_ms)
            return
        if self.leader not in {m.member_id for m in joined}:
            membership.leader = joined[0].member_id
        self.protocol = membership.elect_protocol()
        self.state = State.COMPLETING
        membership.unsynced = set(self.members)
        self._deadlines.sync_end_ms = now_ms + membership.longest_rebalance_ms()
        for member in joined:
            assert member.join_ticket is not None, "a join that waits gets one response"
            self._draft.respond(member.join_ticket, self._joined(member))
            member.join_ticket = None
            member.touch(now_ms)

    # Syncing

    def _check_sync(self, sync: Sync) -> ErrorCode:
        if sync.protocol_type not in {None, self.protocol_type} or (
            sync.protocol_name not in {None, self.protocol}
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is State.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if sync.member_id == self.leader:
            size_bytes = self.membership.stored_bytes(self.protocol, sync.assignments)
            if size_bytes > self.limits().stored_bytes_max:
                return ErrorCode.UNKNOWN_SERVER_ERROR  # as Kafka does for too large a record
        return ErrorCode.NONE

    def _assign(self, assignments: dict[str, bytes], now_ms: int) -> None:
        """Store the leader's assignments, and send each to the member that waits for it."""
        assert self.state is State.COMPLETING, "a leader assigns once in a generation"
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self.state = State.STABLE
        self._store(now_ms)
        for member in self.members.values():
            if member.sync_ticket is not None:
                self._draft.respond(member.sync_ticket, self._synced(member))
                member.sync_ticket = None
                member.touch(now_ms)

    def _store(self, now_ms: int) -> None:
        self.changed_ms = TimestampMs(now_ms)
        self._draft.records.append(self.stored())

    # Leaving

    def _leave_one(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if self.membership.pending.pop(member_id, None) is not None:
            return ErrorCode.NONE
        if instance_id is not None and not member_id:
            member_id = self.membership.static.get(instance_id, "")
        error = self.check_member(member_id, instance_id, self.generation)
        if error is ErrorCode.NONE:
            self._remove(self.members[member_id])
        return error

    def _remove(self, member: Member) -> None:
        self._draft.cancel(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.membership.remove(member)

    # Responses and time

    def _joined(self, member: Member, *, shows_members: bool | None = None) -> Joined:
        if shows_members is None:
            shows_members = member.member_id == self.leader
        return Joined(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader or "",
            members=self.membership.metadata(self.protocol) if shows_members else (),
        )

    def _synced(self, member: Member) -> Synced:
        return Synced(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment
        )

    def _deadlines_ms(self) -> Iterator[int]:
        yield from self.membership.deadlines()
        if self.membership.unsynced:
            yield self._deadlines.sync_end_ms
        if self.state is State.PREPARING:
            yield self._deadlines.next_ms()
