"""A group whose members agree among themselves: join, sync, heartbeat, leave.

Everything that affects a classic group's state lives in this file, and this file knows nothing of
loops, clocks or logs. An event goes in with the time and, if it wants an answer, a ticket. What
comes out is what to write down and which tickets are answered now, not only the event's own: the
last member to join answers everybody who waited for it.

           join                    all joined, or time is up            leader syncs
    EMPTY ------> PREPARING ------------------------------> COMPLETING -------------> STABLE
      ^             |   ^                                     |   join, leave,          |
      |  all gone   |   |              join, leave, silence   |   silence               |
      +-------------+   +-------------------------------------+-------------------------+
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from ottla.coordinator.records import GroupStored, Record, StoredMember
from ottla.errors import ErrorCode
from ottla.model import TimestampMs

NO_GENERATION: Final = -1
NEVER_CHANGED: Final = TimestampMs(-1)
Ticket = int  # who is to be answered; given by the caller


class State(StrEnum):
    """The words that clients and tools see."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Protocol(NamedTuple):
    """One way of assigning that a member knows, with what it says about itself in it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """JoinGroup, as far as a group cares."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    needs_known_id: bool  # from version 4 on, a new member first fetches an id
    knows_skipping: bool  # from version 9 on, a leader can be told not to assign


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """SyncGroup: the leader brings the assignment of everyone."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The answer to a join."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()  # only for the leader
    skips_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The answer to a sync."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


Answer = Joined | Synced


class Outcome(NamedTuple):
    """What follows from an event: what to write down, and who is answered once it is."""

    records: tuple[Record, ...] = ()
    answers: tuple[tuple[Ticket, Answer], ...] = ()


@dataclass(slots=True, kw_only=True)
class Member:
    """Owned by its group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    deadline_ms: int  # when it counts as gone, unless it is waiting for us
    assignment: bytes = b""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None

    def metadata(self, protocol: str | None) -> bytes:
        return next((p.metadata for p in self.protocols if p.name == protocol), b"")

    @property
    def is_waiting(self) -> bool:
        """It asked us something and is due an answer: its silence is our doing."""
        return self.join_ticket is not None or self.sync_ticket is not None


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Settings that concern groups."""

    initial_delay_ms: int = 3000
    members_max: int = 2**31 - 1


@dataclass(slots=True)
class ClassicGroup:
    """Owned by a shard. `new_id` makes the random part of a member id."""

    group_id: str
    limits: GroupLimits
    new_id: Callable[[], str]
    state: State = State.EMPTY
    protocol_type: str | None = None
    protocol: str | None = None
    generation: int = 0
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    changed_ms: TimestampMs = NEVER_CHANGED
    _pending: dict[str, int] = field(default_factory=dict)  # ids given out, and until when
    _static: dict[str, str] = field(default_factory=dict)  # instance id to member id
    _rebalance_end_ms: int = 0
    _initial_end_ms: int | None = None  # a first rebalance waits for company, up to the end above
    _has_company: bool = False  # somebody came while it waited
    _answers: list[tuple[Ticket, Answer]] = field(default_factory=list)
    _records: list[Record] = field(default_factory=list)

    # What happens to a group

    def join(self, ticket: Ticket, join: Join, now_ms: int) -> Outcome:
        refusal = self._join_refusal(join)
        if refusal is not None:
            self._answer(ticket, Joined(error=refusal, member_id=join.member_id))
        elif join.instance_id is not None and not join.member_id:
            self._join_static(ticket, join, now_ms)
        elif not join.member_id:
            self._join_new(ticket, join, now_ms)
        else:
            self._join_known(ticket, join, now_ms)
        return self._outcome()

    def sync(self, ticket: Ticket, sync: Sync, now_ms: int) -> Outcome:
        error = self.check_member(sync.member_id, sync.instance_id, sync.generation)
        if error is ErrorCode.NONE:
            error = self._sync_refusal(sync)
        if error is not ErrorCode.NONE:
            self._answer(ticket, Synced(error=error))
            return self._outcome()
        member = self.members[sync.member_id]
        self._touch(member, now_ms)
        if self.state is State.STABLE:
            self._answer(ticket, self._synced(member.assignment))
            return self._outcome()
        self._cancel_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
        member.sync_ticket = ticket
        if member.member_id == self.leader:
            self._store(now_ms, sync.assignments)
        return self._outcome()

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        if member_id in self._pending:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self.check_member(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        self._touch(self.members[member_id], now_ms)
        if self.state is State.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(
        self, identities: list[tuple[str, str | None]], now_ms: int
    ) -> tuple[list[ErrorCode], Outcome]:
        """Members go by their own wish, or by an administrator's, who knows their instance id."""
        errors = [self._leave_one(member_id, instance_id) for member_id, instance_id in identities]
        if ErrorCode.NONE in errors:
            self._note_departure(now_ms)
        return errors, self._outcome()

    def pass_time(self, now_ms: int) -> Outcome:
        """Whoever is silent for too long goes; a rebalance that took long enough ends."""
        self._pending = {m: end for m, end in self._pending.items() if end > now_ms}
        silent = [m for m in self.members.values() if not m.is_waiting and m.deadline_ms <= now_ms]
        for member in silent:
            self._remove(member)
        if silent:
            self._note_departure(now_ms)
        if self.state is State.PREPARING:
            self._try_complete(now_ms)
        elif self.state is State.COMPLETING and self._rebalance_end_ms <= now_ms:
            self._drop_unsynced(now_ms)
        return self._outcome()

    def next_deadline_ms(self) -> int | None:
        """When `pass_time` next has something to do, at the latest."""
        return min(self._deadlines(), default=None)

    def replay(self, record: GroupStored, now_ms: int) -> None:
        """The only writer of what is persistent. After a load it is all that there is."""
        self.protocol_type = record.protocol_type or None
        self.protocol = record.protocol
        self.generation = record.generation
        self.leader = record.leader
        self.changed_ms = record.changed_ms
        for stored in record.members:
            member = self.members.get(stored.member_id) or self._load(stored, now_ms)
            member.assignment = stored.assignment
        known = {stored.member_id for stored in record.members}
        for member in [m for m in self.members.values() if m.member_id not in known]:
            self._remove(member)
        self.state = State.STABLE if self.members else State.EMPTY

    # What others may ask

    def check_member(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Whether a request comes from a member of the present generation."""
        if instance_id is not None:
            current = self._static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    def touch(self, member_id: str, now_ms: int) -> None:
        """A commit is a sign of life too."""
        self._touch(self.members[member_id], now_ms)

    @property
    def is_forgettable(self) -> bool:
        """No members, none coming: only offsets may still matter."""
        return self.state is State.EMPTY and not self._pending

    # Joining

    def _join_refusal(self, join: Join) -> ErrorCode | None:
        is_new = join.member_id not in self.members and (
            join.instance_id is None or join.instance_id not in self._static
        )
        if is_new and len(self.members) + len(self._pending) >= self.limits.members_max + (
            join.member_id in self._pending
        ):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not join.protocols or not join.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not self._fits(join):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return None

    def _fits(self, join: Join) -> bool:
        """A newcomer shares the group's type and at least one protocol with everyone."""
        others = [m for m in self.members.values() if m.member_id != join.member_id]
        if join.instance_id in self._static:
            others = [m for m in others if m.instance_id != join.instance_id]
        if not others:
            return True
        names = {p.name for p in join.protocols}
        for member in others:
            names &= {p.name for p in member.protocols}
        return bool(names) and join.protocol_type == self.protocol_type

    def _join_new(self, ticket: Ticket, join: Join, now_ms: int) -> None:
        member_id = f"{join.client_id}-{self.new_id()}"
        if join.needs_known_id:
            self._pending[member_id] = now_ms + join.session_timeout_ms
            self._answer(ticket, Joined(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
            return
        self._add(ticket, replace(join, member_id=member_id), now_ms)

    def _join_known(self, ticket: Ticket, join: Join, now_ms: int) -> None:
        if join.member_id in self._pending:
            if join.instance_id is not None:
                self._refuse_join(ticket, join, ErrorCode.UNKNOWN_MEMBER_ID)
                return
            del self._pending[join.member_id]
            self._add(ticket, join, now_ms)
            return
        if join.instance_id is not None and join.instance_id in self._static:
            if self._static[join.instance_id] != join.member_id:
                self._refuse_join(ticket, join, ErrorCode.FENCED_INSTANCE_ID)
                return
        elif join.instance_id is not None or join.member_id not in self.members:
            self._refuse_join(ticket, join, ErrorCode.UNKNOWN_MEMBER_ID)
            return
        self._rejoin(ticket, join, now_ms)

    def _rejoin(self, ticket: Ticket, join: Join, now_ms: int) -> None:
        member = self.members[join.member_id]
        is_same = member.protocols == join.protocols
        if self.state is State.COMPLETING and is_same:
            # It did not get our answer to its join: here it is again.
            self._touch(member, now_ms)
            self._answer(ticket, self._joined(member))
            return
        if self.state is State.STABLE and is_same and member.member_id != self.leader:
            self._touch(member, now_ms)
            self._answer(ticket, self._joined(member))
            return
        self._update(member, join, now_ms)
        self._await_join(member, ticket)
        self._rebalance(now_ms)

    def _join_static(self, ticket: Ticket, join: Join, now_ms: int) -> None:
        assert join.instance_id is not None
        new_id = f"{join.instance_id}-{self.new_id()}"
        old_id = self._static.get(join.instance_id)
        if old_id is None:
            self._add(ticket, replace(join, member_id=new_id), now_ms)
            return
        was_leader = old_id == self.leader
        member = self._rename(old_id, new_id)
        is_same = member.metadata(self.protocol) == next(
            (p.metadata for p in join.protocols if p.name == self.protocol), None
        )
        self._update(member, join, now_ms)
        if self.state is State.STABLE and is_same:
            self._store(now_ms, {m.member_id: m.assignment for m in self.members.values()})
            skips = was_leader and join.knows_skipping
            answer = self._joined(member, is_leader=skips)
            if was_leader and not skips:
                answer = replace(answer, leader=old_id)
            self._answer(ticket, replace(answer, skips_assignment=skips))
            return
        self._await_join(member, ticket)
        self._rebalance(now_ms)

    def _rename(self, old_id: str, new_id: str) -> Member:
        """A static member came back: it takes its own place, and its old self is fenced."""
        member = self.members[old_id]
        self._cancel_join(member, ErrorCode.FENCED_INSTANCE_ID)
        self._cancel_sync(member, ErrorCode.FENCED_INSTANCE_ID)
        # In place, because the first member of a group leads it.
        self.members = {
            (new_id if key == old_id else key): value for key, value in self.members.items()
        }
        member.member_id = new_id
        assert member.instance_id is not None
        self._static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        return member

    def _add(self, ticket: Ticket, join: Join, now_ms: int) -> None:
        member = Member(
            member_id=join.member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            protocols=join.protocols,
            deadline_ms=now_ms + join.session_timeout_ms,
        )
        if not self.members:
            self.protocol_type = join.protocol_type
            self.leader = None
        self.members[join.member_id] = member
        if join.instance_id is not None:
            self._static[join.instance_id] = join.member_id
        self.leader = self.leader or join.member_id
        self._has_company = True
        self._await_join(member, ticket)
        self._rebalance(now_ms)

    def _update(self, member: Member, join: Join, now_ms: int) -> None:
        member.protocols = join.protocols
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.client_id, member.client_host = join.client_id, join.client_host
        self._touch(member, now_ms)

    def _await_join(self, member: Member, ticket: Ticket) -> None:
        self._cancel_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
        member.join_ticket = ticket

    # Rebalancing

    def _rebalance(self, now_ms: int) -> None:
        """Everybody has to join again, unless that is what they are doing already."""
        if self.state is State.COMPLETING:
            for member in self.members.values():
                self._cancel_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        if self.state is not State.PREPARING:
            was_empty = self.state is State.EMPTY
            self.state = State.PREPARING
            self._rebalance_end_ms = now_ms + self._longest_rebalance_ms()
            self._initial_end_ms = None
            if was_empty and self.limits.initial_delay_ms:
                self._initial_end_ms = min(
                    now_ms + self.limits.initial_delay_ms, self._rebalance_end_ms
                )
                self._has_company = False
        self._try_complete(now_ms)

    def _try_complete(self, now_ms: int) -> None:
        if self._initial_end_ms is not None:
            if now_ms < self._initial_end_ms:
                return
            if self._has_company and self._initial_end_ms < self._rebalance_end_ms:
                self._has_company = False
                self._initial_end_ms = min(
                    now_ms + self.limits.initial_delay_ms, self._rebalance_end_ms
                )
                return
            self._initial_end_ms = None
        everyone = all(m.join_ticket is not None for m in self.members.values())
        if (everyone and not self._pending) or now_ms >= self._rebalance_end_ms:
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        """A new generation of those who joined; static members may be late, others may not."""
        for member in [
            m for m in self.members.values() if m.join_ticket is None and m.instance_id is None
        ]:
            self._remove(member)
        self.generation += 1
        if not self.members:
            self.leader = self.protocol = None
            self._store(now_ms, {})
            return
        self._choose_leader()
        self.protocol = self._elect_protocol()
        self.state = State.COMPLETING
        self.changed_ms = TimestampMs(now_ms)
        self._rebalance_end_ms = now_ms + self._longest_rebalance_ms()
        for member in self.members.values():
            if member.join_ticket is not None:
                self._answer(member.join_ticket, self._joined(member))
                member.join_ticket = None
                self._touch(member, now_ms)

    def _choose_leader(self) -> None:
        joined = [m.member_id for m in self.members.values() if m.join_ticket is not None]
        if self.leader not in joined:
            self.leader = joined[0] if joined else next(iter(self.members))

    def _elect_protocol(self) -> str:
        """Of those that all know, the one that most put first."""
        common = set.intersection(*({p.name for p in m.protocols} for m in self.members.values()))
        votes = Counter(
            next(p.name for p in m.protocols if p.name in common) for m in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _drop_unsynced(self, now_ms: int) -> None:
        """Somebody joined and then did not fetch its assignment in time."""
        for member in [m for m in self.members.values() if m.sync_ticket is None]:
            if member.instance_id is None:
                self._remove(member)
        self._note_departure(now_ms)

    def _longest_rebalance_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    # Syncing

    def _sync_refusal(self, sync: Sync) -> ErrorCode:
        if sync.protocol_type not in {None, self.protocol_type} or (
            sync.protocol_name not in {None, self.protocol}
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is State.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if self.state is State.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def _store(self, now_ms: int, assignments: dict[str, bytes]) -> None:
        """Write the generation down; replayed at once, answered when it is committed."""
        record = GroupStored(
            group_id=self.group_id,
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            changed_ms=TimestampMs(now_ms),
            members=tuple(
                self._stored(member, assignments.get(member.member_id, b""))
                for member in self.members.values()
            ),
        )
        self._records.append(record)
        self.replay(record, now_ms)
        for member in self.members.values():
            if member.sync_ticket is not None:
                self._answer(member.sync_ticket, self._synced(member.assignment))
                member.sync_ticket = None
                self._touch(member, now_ms)

    def _stored(self, member: Member, assignment: bytes) -> StoredMember:
        return StoredMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=member.session_timeout_ms,
            subscription=member.metadata(self.protocol),
            assignment=assignment,
        )

    def _load(self, stored: StoredMember, now_ms: int) -> Member:
        member = Member(
            member_id=stored.member_id,
            instance_id=stored.instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            session_timeout_ms=stored.session_timeout_ms,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            protocols=(Protocol(self.protocol or "", stored.subscription),),
            deadline_ms=now_ms + stored.session_timeout_ms,
        )
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        return member

    # Leaving

    def _leave_one(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            current = self._static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if member_id and member_id != current:
                return ErrorCode.FENCED_INSTANCE_ID
            self._remove(self.members[current])
            return ErrorCode.NONE
        if self._pending.pop(member_id, None) is not None:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._remove(member)
        return ErrorCode.NONE

    def _remove(self, member: Member) -> None:
        self._cancel_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._cancel_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
        del self.members[member.member_id]
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _note_departure(self, now_ms: int) -> None:
        if self.state in {State.STABLE, State.COMPLETING}:
            self._rebalance(now_ms)
        elif self.state is State.PREPARING:
            self._try_complete(now_ms)

    # Answers and time

    def _joined(self, member: Member, *, is_leader: bool | None = None) -> Joined:
        if is_leader is None:
            is_leader = member.member_id == self.leader
        return Joined(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader or "",
            members=tuple(
                (m.member_id, m.instance_id, m.metadata(self.protocol))
                for m in self.members.values()
            )
            if is_leader
            else (),
        )

    def _synced(self, assignment: bytes) -> Synced:
        return Synced(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=assignment
        )

    def _refuse_join(self, ticket: Ticket, join: Join, error: ErrorCode) -> None:
        self._answer(ticket, Joined(error=error, member_id=join.member_id))

    def _cancel_join(self, member: Member, error: ErrorCode) -> None:
        if member.join_ticket is not None:
            self._answer(member.join_ticket, Joined(error=error, member_id=member.member_id))
            member.join_ticket = None

    def _cancel_sync(self, member: Member, error: ErrorCode) -> None:
        if member.sync_ticket is not None:
            self._answer(member.sync_ticket, Synced(error=error))
            member.sync_ticket = None

    def _touch(self, member: Member, now_ms: int) -> None:
        member.deadline_ms = now_ms + member.session_timeout_ms

    def _answer(self, ticket: Ticket, answer: Answer) -> None:
        self._answers.append((ticket, answer))

    def _outcome(self) -> Outcome:
        outcome = Outcome(tuple(self._records), tuple(self._answers))
        self._records.clear()
        self._answers.clear()
        return outcome

    def _deadlines(self) -> Iterator[int]:
        yield from self._pending.values()
        for member in self.members.values():
            if not member.is_waiting:
                yield member.deadline_ms
        if self.state is State.PREPARING and self._initial_end_ms is not None:
            yield self._initial_end_ms
        elif self.state in {State.PREPARING, State.COMPLETING}:
            yield self._rebalance_end_ms
