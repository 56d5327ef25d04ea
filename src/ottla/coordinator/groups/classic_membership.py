"""Members of a classic group: by member id, by instance id, and those that are yet to join."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from ottla.coordinator.groups.classic_protocol import GroupLimits, Join, Joined, Protocol, Synced
from ottla.coordinator.groups.records import StoredMember
from ottla.coordinator.runtime.decision import Ticket
from ottla.errors import ErrorCode
from ottla.protocol.consumer_protocol import subscribed_topics

_MEMBER_BYTES: Final = 256  # of a stored member besides metadata and assignment, roughly


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
    deadline_ms: int  # the end of its session, unless it waits for a response
    assignment: bytes = b""
    join_ticket: Ticket[Joined] | None = None
    sync_ticket: Ticket[Synced] | None = None

    @classmethod
    def joining(cls, join: Join, now_ms: int) -> Self:
        """A member without an assignment, as its join describes it."""
        return cls(
            member_id=join.member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            protocols=join.protocols,
            deadline_ms=now_ms + join.session_timeout_ms,
        )

    @classmethod
    def restore(cls, stored: StoredMember, protocol: str | None, now_ms: int) -> Self:
        """The inverse of `stored`; the member gets a whole session."""
        return cls(
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

    def stored(self, protocol: str | None) -> StoredMember:
        """The member as it is written to the log, with its metadata of the group's protocol."""
        return StoredMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=self.assignment,
        )

    def update(self, join: Join, now_ms: int) -> None:
        """Take over everything that another join of the same member may change."""
        self.protocols = join.protocols
        self.session_timeout_ms = join.session_timeout_ms
        self.rebalance_timeout_ms = join.rebalance_timeout_ms
        self.client_id, self.client_host = join.client_id, join.client_host
        self.touch(now_ms)

    def touch(self, now_ms: int) -> None:
        """Begin the session anew."""
        self.deadline_ms = now_ms + self.session_timeout_ms

    def metadata(self, protocol: str | None) -> bytes:
        return next((p.metadata for p in self.protocols if p.name == protocol), b"")

    @property
    def is_waiting(self) -> bool:
        """True while a request of the member waits for its response: its session cannot end."""
        return self.join_ticket is not None or self.sync_ticket is not None


@dataclass(slots=True)
class Membership:
    """Owned by a group. `static` names exactly the members that have an instance id."""

    members: dict[str, Member] = field(default_factory=dict)
    leader: str | None = None
    pending: dict[str, int] = field(default_factory=dict)  # ids given out, and until when
    static: dict[str, str] = field(default_factory=dict)  # instance id to member id
    unsynced: set[str] = field(default_factory=set)  # joined this generation, and not synced yet

    def add(self, member: Member) -> None:
        """Add a member; the first one leads."""
        assert member.member_id not in self.members, "a member is added once"
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self.leader = self.leader or member.member_id

    def rename(self, old_id: str, new_id: str) -> Member:
        """Give a static member that has restarted its new id, at the same index."""
        member = self.members[old_id]
        assert member.instance_id is not None, "only a static member restarts under a new id"
        # The order stays, because the first member of a group leads it.
        self.members = {
            (new_id if key == old_id else key): value for key, value in self.members.items()
        }
        member.member_id = new_id
        self.static[member.instance_id] = new_id
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(new_id)
        if self.leader == old_id:
            self.leader = new_id
        return member

    def remove(self, member: Member) -> None:
        """Remove a member; if it led, the oldest that is left does."""
        assert not member.is_waiting, "a member that is removed has got its responses"
        del self.members[member.member_id]
        self.unsynced.discard(member.member_id)
        if member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """The error of a request that comes from no member, or from a replaced instance."""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def check_join(self, join: Join, protocol_type: str | None, limits: GroupLimits) -> ErrorCode:
        """The error of a join that the group cannot admit, from any client."""
        shortest_ms, longest_ms = limits.session_timeout_min_ms, limits.session_timeout_max_ms
        if not shortest_ms <= join.session_timeout_ms <= longest_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        is_known = join.member_id in self.members or join.instance_id in self.static
        if not is_known and len(self.members) >= limits.members_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not join.protocols or not join.protocol_type or not self._fits(join, protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _fits(self, join: Join, protocol_type: str | None) -> bool:
        """True if a join shares the type, and one protocol, with all other members."""
        replaced = self.static.get(join.instance_id or "")
        others = [m for m in self.members.values() if m.member_id not in {join.member_id, replaced}]
        if not others:
            return True
        names = {p.name for p in join.protocols}
        for member in others:
            names &= {p.name for p in member.protocols}
        return bool(names) and join.protocol_type == protocol_type

    def elect_protocol(self) -> str:
        """Of the protocols that all members support, the one that most of them list first."""
        assert self.members, "a group without members has no protocol"
        common = set.intersection(*({p.name for p in m.protocols} for m in self.members.values()))
        votes = Counter(
            next(p.name for p in m.protocols if p.name in common) for m in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def joined(self) -> list[Member]:
        """Members that wait for the end of the rebalance."""
        return [m for m in self.members.values() if m.join_ticket is not None]

    @property
    def is_complete(self) -> bool:
        """True if every member has joined, and every id that was given out is used."""
        return not self.pending and all(m.join_ticket is not None for m in self.members.values())

    def longest_rebalance_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def metadata(self, protocol: str | None) -> tuple[tuple[str, str | None, bytes], ...]:
        """Member id, instance id and metadata of all members for the leader, static ones first.

        In another order, the range assignor of kafka-python leaves members out.
        """
        in_order = sorted(self.members.values(), key=lambda m: m.instance_id is None)
        return tuple((m.member_id, m.instance_id, m.metadata(protocol)) for m in in_order)

    def stored_bytes(self, protocol: str | None, assignments: Mapping[str, bytes]) -> int:
        """The size of the group's record with these assignments, roughly."""
        return sum(map(len, assignments.values())) + sum(
            _MEMBER_BYTES + len(m.metadata(protocol)) for m in self.members.values()
        )

    def subscribed_topics(self, protocol: str | None) -> frozenset[str] | None:
        """The topics of all members; None if the metadata of one cannot be parsed."""
        topics: set[str] = set()
        for member in self.members.values():
            known = subscribed_topics(member.metadata(protocol))
            if known is None:
                return None
            topics |= known
        return frozenset(topics)

    def deadlines(self) -> Iterator[int]:
        """Ends of sessions, and of the time in which ids that were given out can be used."""
        yield from self.pending.values()
        for member in self.members.values():
            if not member.is_waiting:
                yield member.deadline_ms
