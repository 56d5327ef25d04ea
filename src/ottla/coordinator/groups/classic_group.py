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

Only EMPTY and STABLE are written down, as one record with all that the next leader of the shard
must know; `restore` makes a group of it. A rebalance under way is lost with its coordinator, and
its members begin it again.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from ottla.coordinator.groups.records import (
    GroupDecision,
    GroupDropped,
    GroupEvent,
    GroupStored,
    Record,
    StoredMember,
)
from ottla.coordinator.runtime.decision import A, Response, Ticket
from ottla.errors import ErrorCode
from ottla.model import TimestampMs
from ottla.protocol.consumer_protocol import CONSUMER, subscribed_topics

NO_GENERATION: Final = -1
NEVER_CHANGED: Final = TimestampMs(-1)

_MEMBER_BYTES: Final = 256  # what a stored member takes besides metadata and assignment, roughly


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
    join_ticket: Ticket[Joined] | None = None
    sync_ticket: Ticket[Synced] | None = None

    def metadata(self, protocol: str | None) -> bytes:
        return next((p.metadata for p in self.protocols if p.name == protocol), b"")

    @property
    def is_waiting(self) -> bool:
        """It asked us something and is due an answer: its silence is our doing."""
        return self.join_ticket is not None or self.sync_ticket is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Settings that concern classic groups."""

    initial_delay_ms: int = 3000
    members_max: int = 2**31 - 1
    session_timeout_min_ms: int = 6000
    session_timeout_max_ms: int = 1_800_000
    stored_bytes_max: int = 16 << 20  # of a generation, written down: it is one record


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
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    changed_ms: TimestampMs = NEVER_CHANGED  # when what is written down last changed
    _pending: dict[str, int] = field(default_factory=dict)  # ids given out, and until when
    _static: dict[str, str] = field(default_factory=dict)  # instance id to member id
    _unsynced: set[str] = field(default_factory=set)  # who joined this generation and no more yet
    _sync_end_ms: int = 0  # how long those may take
    _rebalance_end_ms: int = 0
    _initial_end_ms: int | None = None  # a first rebalance waits for company, up to the end above
    _has_company: bool = False  # somebody came while it waited
    _responses: list[Response[Any]] = field(default_factory=list)
    _records: list[GroupEvent] = field(default_factory=list)

    @classmethod
    def restore(
        cls,
        record: GroupStored,
        limits: Callable[[], GroupLimits],
        new_id: Callable[[], str],
        now_ms: int,
    ) -> Self:
        """The group that wrote `record`; its members get a whole session to show up."""
        group = cls(record.group_id, limits, new_id)
        group.protocol_type = record.protocol_type or None
        group.protocol = record.protocol
        group.generation = record.generation
        group.leader = record.leader
        group.changed_ms = record.changed_ms
        for stored in record.members:
            group.members[stored.member_id] = _restored(stored, record.protocol, now_ms)
            if stored.instance_id is not None:
                group._static[stored.instance_id] = stored.member_id
        group.state = State.STABLE if group.members else State.EMPTY
        return group

    # What happens to a group

    def join(self, ticket: Ticket[Joined], join: Join, now_ms: int) -> GroupDecision:
        refusal = self._join_refusal(join)
        if refusal is not None:
            self._refuse_join(ticket, join, refusal)
        elif join.instance_id is not None and not join.member_id:
            self._join_static(ticket, join, now_ms)
        elif not join.member_id:
            self._join_new(ticket, join, now_ms)
        else:
            self._join_known(ticket, join, now_ms)
        return self._decision()

    def sync(self, ticket: Ticket[Synced], sync: Sync, now_ms: int) -> GroupDecision:
        error = self.check_member(sync.member_id, sync.instance_id, sync.generation)
        if error is ErrorCode.NONE:
            error = self._sync_refusal(sync)
        if error is not ErrorCode.NONE:
            self._respond(ticket, Synced(error=error))
            return self._decision()
        member = self.members[sync.member_id]
        self._touch(member, now_ms)
        self._unsynced.discard(member.member_id)
        if self.state is State.STABLE:
            self._respond(ticket, self._synced(member))
            return self._decision()
        self._cancel_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_ticket = ticket
        if member.member_id == self.leader:
            self._assign(sync.assignments, now_ms)
        return self._decision()

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        error = self.check_member(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        self._touch(self.members[member_id], now_ms)
        if self.state is State.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(
        self, identities: Sequence[tuple[str, str | None]], now_ms: int
    ) -> tuple[list[ErrorCode], GroupDecision]:
        """Members go by their own wish, or by an administrator's, who knows their instance id."""
        count = len(self.members)
        errors = [self._leave_one(member_id, instance_id) for member_id, instance_id in identities]
        if len(self.members) < count:
            self._note_departure(now_ms)
        elif self.state is State.PREPARING:
            self._try_complete(now_ms)  # one who was only expected will not come
        return errors, self._decision()

    def pass_time(self, now_ms: int) -> GroupDecision:
        """Whoever is silent for too long goes; a rebalance that took long enough ends."""
        self._pending = {m: end for m, end in self._pending.items() if end > now_ms}
        gone = [m for m in self.members.values() if not m.is_waiting and m.deadline_ms <= now_ms]
        if self._unsynced and self._sync_end_ms <= now_ms:
            gone += [m for m in self.members.values() if m.member_id in self._unsynced]
        for member in gone:
            if member.member_id in self.members:
                self._remove(member)
        if gone:
            self._note_departure(now_ms)
        if self.state is State.PREPARING:
            self._try_complete(now_ms)
        return self._decision()

    def rebalance(self, now_ms: int) -> GroupDecision:
        """Everybody has to join again, though nobody came or went."""
        self._rebalance(now_ms)
        return self._decision()

    def dissolve(self) -> GroupDecision:
        """The group goes on in another protocol: whoever waits is to join again there."""
        for member in self.members.values():
            self._cancel_join(member, ErrorCode.REBALANCE_IN_PROGRESS)
            self._cancel_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        return self._decision()

    def next_deadline_ms(self) -> int | None:
        """When `pass_time` next has something to do, at the latest."""
        return min(self._deadlines(), default=None)

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

    def check_commit(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Whether offsets may be committed: by its members, or by anybody while it has none."""
        if generation < 0 and self.state is State.EMPTY:
            return ErrorCode.NONE
        error = self.check_member(member_id, instance_id, generation)
        if error is ErrorCode.NONE and self.state is State.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS  # it has to fetch its assignment first
        return error

    def check_transactional_commit(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """The same within a transaction, whose coordinator fences too.

        Before version 3 a producer cannot say for which member it commits (KIP-447).
        """
        is_anonymous = not member_id and instance_id is None
        if generation < 0 and (is_anonymous or self.state is State.EMPTY):
            return ErrorCode.NONE
        return self.check_member(member_id, instance_id, generation)

    def touch(self, member_id: str, now_ms: int) -> None:
        """A commit is a sign of life too."""
        if member_id in self.members:
            self._touch(self.members[member_id], now_ms)

    def subscribed_topics(self) -> frozenset[str] | None:
        """What its consumers read; None when nobody can tell from outside."""
        if self.protocol_type != CONSUMER:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            known = subscribed_topics(member.metadata(self.protocol))
            if known is None:
                return None
            topics |= known
        return frozenset(topics)

    @property
    def is_forgettable(self) -> bool:
        """No members, none coming: only offsets may still matter."""
        return self.state is State.EMPTY and not self._pending

    @property
    def is_stored(self) -> bool:
        return self.changed_ms != NEVER_CHANGED

    def tombstones(self) -> tuple[Record, ...]:
        """What to write down to forget it."""
        return (GroupDropped(self.group_id),)

    def stored(self) -> GroupStored:
        """All of it that is to outlive this broker."""
        return GroupStored(
            group_id=self.group_id,
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            changed_ms=self.changed_ms,
            members=tuple(self._stored(member) for member in self.members.values()),
        )

    # Joining

    def _join_refusal(self, join: Join) -> ErrorCode | None:
        limits = self.limits()
        if not (
            limits.session_timeout_min_ms
            <= join.session_timeout_ms
            <= limits.session_timeout_max_ms
        ):
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if self._is_full(join, limits.members_max):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not join.protocols or not join.protocol_type or not self._fits(join):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return None

    def _is_full(self, join: Join, members_max: int) -> bool:
        """Who is a member or takes the place of one stays; others need room."""
        if join.member_id in self.members or join.instance_id in self._static:
            return False
        return len(self.members) >= members_max

    def _fits(self, join: Join) -> bool:
        """A newcomer shares the group's type and at least one protocol with everyone."""
        replaced = self._static.get(join.instance_id or "")
        others = [m for m in self.members.values() if m.member_id not in {join.member_id, replaced}]
        if not others:
            return True
        names = {p.name for p in join.protocols}
        for member in others:
            names &= {p.name for p in member.protocols}
        return bool(names) and join.protocol_type == self.protocol_type

    def _join_new(self, ticket: Ticket[Joined], join: Join, now_ms: int) -> None:
        member_id = f"{join.client_id}-{self.new_id()}"
        if join.needs_known_id:
            # It comes back with this id. Without that, whoever asks twice because the answer got
            # lost would be two members, one of them never heard of again (KIP-394).
            self._pending[member_id] = now_ms + join.session_timeout_ms
            self._respond(ticket, Joined(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
            return
        self._add(ticket, replace(join, member_id=member_id), now_ms)

    def _join_known(self, ticket: Ticket[Joined], join: Join, now_ms: int) -> None:
        if join.member_id in self._pending and join.instance_id is None:
            del self._pending[join.member_id]
            self._add(ticket, join, now_ms)
            return
        error = self.check_member(join.member_id, join.instance_id, self.generation)
        if error is not ErrorCode.NONE:
            self._refuse_join(ticket, join, error)
            return
        self._rejoin(ticket, join, now_ms)

    def _rejoin(self, ticket: Ticket[Joined], join: Join, now_ms: int) -> None:
        member = self.members[join.member_id]
        is_same = member.protocols == join.protocols
        is_follower = member.member_id != self.leader
        if is_same and (
            self.state is State.COMPLETING or (self.state is State.STABLE and is_follower)
        ):
            # It did not get our answer to its join: here it is again. A leader that joins again
            # while all is well wants to assign anew.
            self._touch(member, now_ms)
            self._respond(ticket, self._joined(member))
            return
        self._update(member, join, now_ms)
        self._await_join(member, ticket)
        self._rebalance(now_ms)

    def _join_static(self, ticket: Ticket[Joined], join: Join, now_ms: int) -> None:
        """A member that keeps its place through restarts (KIP-345)."""
        assert join.instance_id is not None
        new_id = f"{join.instance_id}-{self.new_id()}"
        old_id = self._static.get(join.instance_id)
        if old_id is None:
            self._add(ticket, replace(join, member_id=new_id), now_ms)
            return
        was_leader = old_id == self.leader
        member = self._rename(old_id, new_id)
        before = member.metadata(self.protocol)
        self._update(member, join, now_ms)
        if self.state is not State.STABLE or not self._is_unchanged(member, before):
            self._await_join(member, ticket)
            self._rebalance(now_ms)
            return
        self._store(now_ms)
        skips = was_leader and join.knows_skipping
        answer = self._joined(member, shows_members=skips)
        if was_leader and not skips:
            # Told that somebody else leads, it fetches its assignment instead of making a new one.
            answer = replace(answer, leader=old_id)
        self._respond(ticket, replace(answer, skips_assignment=skips))

    def _is_unchanged(self, member: Member, before: bytes) -> bool:
        """Whether the assignment still suits a static member that came back.

        Consumers also write what they own into their metadata, and after a restart own nothing:
        only what they subscribe to counts.
        """
        if self._elect_protocol() != self.protocol:
            return False
        now = member.metadata(self.protocol)
        if self.protocol_type != CONSUMER:
            return now == before
        wanted = subscribed_topics(now)
        return now == before if wanted is None else wanted == subscribed_topics(before)

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
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(new_id)
        if self.leader == old_id:
            self.leader = new_id
        return member

    def _add(self, ticket: Ticket[Joined], join: Join, now_ms: int) -> None:
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

    def _await_join(self, member: Member, ticket: Ticket[Joined]) -> None:
        self._cancel_join(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.join_ticket = ticket

    # Rebalancing

    def _rebalance(self, now_ms: int) -> None:
        """Everybody has to join again, unless that is what they are doing already."""
        if self.state is not State.PREPARING:
            self._prepare(now_ms)
        self._try_complete(now_ms)

    def _prepare(self, now_ms: int) -> None:
        for member in self.members.values():
            if member.sync_ticket is not None:
                self._cancel_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
                self._touch(member, now_ms)  # it was silent because we were
        self._unsynced.clear()
        was_empty = self.state is State.EMPTY
        self.state = State.PREPARING
        self._rebalance_end_ms = now_ms + self._longest_rebalance_ms()
        self._initial_end_ms = None
        if was_empty and self.limits().initial_delay_ms:
            self._has_company = False
            self._delay_start(now_ms)

    def _delay_start(self, now_ms: int) -> None:
        """More members may be about to come: one rebalance for all is better than one for each."""
        self._initial_end_ms = min(now_ms + self.limits().initial_delay_ms, self._rebalance_end_ms)

    def _try_complete(self, now_ms: int) -> None:
        if self._initial_end_ms is None:
            everyone = all(m.join_ticket is not None for m in self.members.values())
            if (everyone and not self._pending) or now_ms >= self._rebalance_end_ms:
                self._complete(now_ms)
        elif now_ms < self._initial_end_ms:
            return
        elif self._has_company and self._initial_end_ms < self._rebalance_end_ms:
            self._has_company = False
            self._delay_start(now_ms)
        else:
            self._initial_end_ms = None
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        """A new generation of those who joined; static members may be late, others may not."""
        joined = [m for m in self.members.values() if m.join_ticket is not None]
        for member in [m for m in self.members.values() if m.instance_id is None]:
            if member.join_ticket is None:
                self._remove(member)
        if self.members and not joined:
            # Only static members that are away: wait for one to come back or to be given up.
            first_end_ms = min(m.deadline_ms for m in self.members.values())
            self._rebalance_end_ms = max(first_end_ms, now_ms + self._longest_rebalance_ms())
            return
        self.generation += 1
        if not self.members:
            self.leader = self.protocol = None
            self.state = State.EMPTY
            self._store(now_ms)
            return
        if self.leader not in {m.member_id for m in joined}:
            self.leader = joined[0].member_id
        self.protocol = self._elect_protocol()
        self.state = State.COMPLETING
        self._unsynced = set(self.members)
        self._sync_end_ms = now_ms + self._longest_rebalance_ms()
        for member in joined:
            assert member.join_ticket is not None
            self._respond(member.join_ticket, self._joined(member))
            member.join_ticket = None
            self._touch(member, now_ms)

    def _elect_protocol(self) -> str:
        """Of those that all know, the one that most put first."""
        common = set.intersection(*({p.name for p in m.protocols} for m in self.members.values()))
        votes = Counter(
            next(p.name for p in m.protocols if p.name in common) for m in self.members.values()
        )
        return votes.most_common(1)[0][0]

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
        if sync.member_id == self.leader and self._is_too_large(sync.assignments):
            return ErrorCode.UNKNOWN_SERVER_ERROR  # what Kafka says when its record is too large
        return ErrorCode.NONE

    def _is_too_large(self, assignments: dict[str, bytes]) -> bool:
        size_bytes = sum(map(len, assignments.values())) + sum(
            _MEMBER_BYTES + len(m.metadata(self.protocol)) for m in self.members.values()
        )
        return size_bytes > self.limits().stored_bytes_max

    def _assign(self, assignments: dict[str, bytes], now_ms: int) -> None:
        """The leader has decided: everybody who waits for it learns its part."""
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self.state = State.STABLE
        self._store(now_ms)
        for member in self.members.values():
            if member.sync_ticket is not None:
                self._respond(member.sync_ticket, self._synced(member))
                member.sync_ticket = None
                self._touch(member, now_ms)

    def _store(self, now_ms: int) -> None:
        self.changed_ms = TimestampMs(now_ms)
        self._records.append(self.stored())

    def _stored(self, member: Member) -> StoredMember:
        return StoredMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=member.session_timeout_ms,
            subscription=member.metadata(self.protocol),
            assignment=member.assignment,
        )

    # Leaving

    def _leave_one(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if self._pending.pop(member_id, None) is not None:
            return ErrorCode.NONE
        if instance_id is not None and not member_id:
            member_id = self._static.get(instance_id, "")
        error = self.check_member(member_id, instance_id, self.generation)
        if error is ErrorCode.NONE:
            self._remove(self.members[member_id])
        return error

    def _remove(self, member: Member) -> None:
        self._cancel_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._cancel_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
        del self.members[member.member_id]
        self._unsynced.discard(member.member_id)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _note_departure(self, now_ms: int) -> None:
        if self.state is not State.EMPTY:
            self._rebalance(now_ms)

    # Answers and time

    def _joined(self, member: Member, *, shows_members: bool | None = None) -> Joined:
        if shows_members is None:
            shows_members = member.member_id == self.leader
        return Joined(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader or "",
            members=self._told_members() if shows_members else (),
        )

    def _told_members(self) -> tuple[tuple[str, str | None, bytes], ...]:
        """All members, for the one that assigns; static ones first.

        Given another order, the range assignor of kafka-python leaves members out.
        """
        in_order = sorted(self.members.values(), key=lambda m: m.instance_id is None)
        return tuple((m.member_id, m.instance_id, m.metadata(self.protocol)) for m in in_order)

    def _synced(self, member: Member) -> Synced:
        return Synced(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment
        )

    def _refuse_join(self, ticket: Ticket[Joined], join: Join, error: ErrorCode) -> None:
        self._respond(ticket, Joined(error=error, member_id=join.member_id))

    def _cancel_join(self, member: Member, error: ErrorCode) -> None:
        if member.join_ticket is not None:
            self._respond(member.join_ticket, Joined(error=error, member_id=member.member_id))
            member.join_ticket = None

    def _cancel_sync(self, member: Member, error: ErrorCode) -> None:
        if member.sync_ticket is not None:
            self._respond(member.sync_ticket, Synced(error=error))
            member.sync_ticket = None

    def _touch(self, member: Member, now_ms: int) -> None:
        member.deadline_ms = now_ms + member.session_timeout_ms

    def _respond(self, ticket: Ticket[A], value: A) -> None:
        self._responses.append(ticket.respond(value))

    def _decision(self) -> GroupDecision:
        decision = GroupDecision(tuple(self._records), tuple(self._responses))
        self._records.clear()
        self._responses.clear()
        return decision

    def _deadlines(self) -> Iterator[int]:
        yield from self._pending.values()
        for member in self.members.values():
            if not member.is_waiting:
                yield member.deadline_ms
        if self._unsynced:
            yield self._sync_end_ms
        if self.state is State.PREPARING:
            yield self._rebalance_end_ms if self._initial_end_ms is None else self._initial_end_ms


def _restored(stored: StoredMember, protocol: str | None, now_ms: int) -> Member:
    return Member(
        member_id=stored.member_id,
        instance_id=stored.instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        session_timeout_ms=stored.session_timeout_ms,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
        protocols=(Protocol(protocol or "", stored.subscription),),
        deadline_ms=now_ms + stored.session_timeout_ms,
        assignment=stored.assignment,
    )
