"""All groups of one shard: who they are, what they committed, when they are forgotten."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush
from typing import Final, NamedTuple

from ottla.coordinator.classic_group import (
    CONSUMER,
    ClassicGroup,
    GroupLimits,
    Join,
    Joined,
    State,
    Sync,
    Synced,
)
from ottla.coordinator.offsets import Commit, CommittedOffsets
from ottla.coordinator.outcome import Outcome, Ticket
from ottla.coordinator.records import (
    GroupDropped,
    GroupStored,
    OffsetCommitted,
    OffsetDropped,
    Record,
)
from ottla.errors import ErrorCode
from ottla.model import TopicPartition

_GROUP_NOT_FOUND_FROM: Final = 9  # before, OffsetCommit has no better word than a wrong generation


class GroupType(StrEnum):
    """The words that clients and tools see."""

    CLASSIC = "Classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """Who commits offsets: a member of a generation, or somebody who manages them alone."""

    member_id: str
    instance_id: str | None
    generation: int
    version: int  # of OffsetCommit


class ListedGroup(NamedTuple):
    """A group in a list of groups."""

    group_id: str
    protocol_type: str
    state: State
    type: GroupType


class GroupFigures(NamedTuple):
    """A group in figures, for those who watch."""

    group_id: str
    state: State
    members_count: int


class DescribedMember(NamedTuple):
    """A member as its group's description shows it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as tools show it; metadata and assignments only while they belong together."""

    group_id: str
    state: State
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


@dataclass(frozen=True, slots=True)
class DeletedOffsets:
    """The answer to OffsetDelete: one error for all, or one for each partition."""

    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()


@dataclass(slots=True)
class Groups:
    """Owned by a shard: every event goes in here, with a ticket if it wants an answer.

    A group's deadlines move with every heartbeat, nearly always into the future. So each group
    has one place in a heap, at a time that may be too early and is never too late.
    """

    limits: Callable[[], GroupLimits]
    new_id: Callable[[], str]
    metadata_bytes_max: Callable[[], int] = lambda: 4096
    groups: dict[str, ClassicGroup] = field(default_factory=dict)
    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)
    _due: list[tuple[int, str]] = field(default_factory=list)
    _due_ms: dict[str, int] = field(default_factory=dict)

    # Membership

    def join(self, ticket: Ticket, group_id: str, join: Join, now_ms: int) -> Outcome:
        group = self.groups.get(group_id)
        if group is None:
            if join.member_id:
                error = ErrorCode.UNKNOWN_MEMBER_ID
                return _answer(ticket, Joined(error=error, member_id=join.member_id))
            group = self._create(group_id)
        return self._note(group, group.join(ticket, join, now_ms))

    def sync(self, ticket: Ticket, group_id: str, sync: Sync, now_ms: int) -> Outcome:
        group = self.groups.get(group_id)
        if group is None:
            return _answer(ticket, Synced(error=ErrorCode.UNKNOWN_MEMBER_ID))
        return self._note(group, group.sync(ticket, sync, now_ms))

    def heartbeat(
        self,
        ticket: Ticket,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
    ) -> Outcome:
        group = self.groups.get(group_id)
        if group is None:
            return _answer(ticket, ErrorCode.UNKNOWN_MEMBER_ID)
        return _answer(ticket, group.heartbeat(member_id, instance_id, generation, now_ms))

    def leave(
        self, ticket: Ticket, group_id: str, identities: list[tuple[str, str | None]], now_ms: int
    ) -> Outcome:
        """Answered with one error for each member."""
        group = self.groups.get(group_id)
        if group is None:
            return _answer(ticket, [ErrorCode.UNKNOWN_MEMBER_ID] * len(identities))
        errors, outcome = group.leave(identities, now_ms)
        outcome = self._note(group, outcome)
        return outcome._replace(answers=(*outcome.answers, (ticket, errors)))

    # Offsets

    def commit(
        self,
        ticket: Ticket,
        group_id: str,
        committer: Committer,
        commits: Sequence[Commit],
        now_ms: int,
    ) -> Outcome:
        """Answered with one error for each commit."""
        error = self._commit_refusal(group_id, committer)
        if error is not ErrorCode.NONE:
            return _answer(ticket, [error] * len(commits))
        records, errors = self.offsets.commit(
            group_id, commits, now_ms, metadata_bytes_max=self.metadata_bytes_max()
        )
        group = self.groups.get(group_id)
        if group is not None:
            group.touch(committer.member_id, now_ms)
        elif records:
            self._create(group_id)
        return self._replayed(records, ((ticket, errors),), now_ms)

    def _commit_refusal(self, group_id: str, committer: Committer) -> ErrorCode:
        group = self.groups.get(group_id)
        if group is not None:
            return group.check_commit(
                committer.member_id, committer.instance_id, committer.generation
            )
        if committer.generation < 0:
            return ErrorCode.NONE  # it assigns partitions itself and only keeps its offsets here
        if committer.version >= _GROUP_NOT_FOUND_FROM:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.ILLEGAL_GENERATION

    def fetch(
        self, ticket: Ticket, group_id: str, wanted: Sequence[TopicPartition] | None
    ) -> Outcome:
        """Answered with one offset, or None, for each partition; with all for None."""
        if wanted is None:
            return _answer(ticket, self.offsets.fetch_all(group_id))
        return _answer(ticket, [self.offsets.fetch(group_id, tp) for tp in wanted])

    def delete_offsets(
        self, ticket: Ticket, group_id: str, wanted: Sequence[TopicPartition], now_ms: int
    ) -> Outcome:
        group = self.groups.get(group_id)
        if group is None:
            return _answer(ticket, DeletedOffsets(ErrorCode.GROUP_ID_NOT_FOUND))
        if group.state is not State.EMPTY and group.protocol_type != CONSUMER:
            return _answer(ticket, DeletedOffsets(ErrorCode.NON_EMPTY_GROUP))
        subscribed = group.subscribed_topics() if group.members else frozenset[str]()
        in_use = [subscribed is None or tp.topic in subscribed for tp in wanted]
        free = [tp for tp, used in zip(wanted, in_use, strict=True) if not used]
        errors = (
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if used else ErrorCode.NONE for used in in_use
        )
        answer = DeletedOffsets(ErrorCode.NONE, tuple(errors))
        return self._replayed(self.offsets.drop(group_id, free), ((ticket, answer),), now_ms)

    # Administration

    def list(self, ticket: Ticket) -> Outcome:
        listed = [
            ListedGroup(g.group_id, g.protocol_type or "", g.state, GroupType.CLASSIC)
            for g in self.groups.values()
        ]
        return _answer(ticket, listed)

    def figures(self) -> Iterator[GroupFigures]:
        """Every group as it is in memory: what a crash could undo is counted too."""
        for group in self.groups.values():
            yield GroupFigures(group.group_id, group.state, len(group.members))

    def describe(self, ticket: Ticket, group_id: str) -> Outcome:
        """Answered with None when there is no such group."""
        group = self.groups.get(group_id)
        return _answer(ticket, None if group is None else _describe(group))

    def delete(self, ticket: Ticket, group_id: str, now_ms: int) -> Outcome:
        group = self.groups.get(group_id)
        if group is None:
            return _answer(ticket, ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not State.EMPTY:
            return _answer(ticket, ErrorCode.NON_EMPTY_GROUP)
        records: tuple[Record, ...] = (*self.offsets.drop_all(group_id), GroupDropped(group_id))
        return self._replayed(records, ((ticket, ErrorCode.NONE),), now_ms)

    # Forgetting

    def expire(self, ticket: Ticket, retention_ms: int, now_ms: int) -> Outcome:
        """Forget offsets that nobody used for so long, and groups that have nothing left.

        Answered with the number of records that say so.
        """
        records: list[Record] = []
        for group_id, group in self.groups.items():
            expired = self._expired(group, now_ms - retention_ms)
            records += expired
            left = len(self.offsets.by_group.get(group_id, ())) - len(expired)
            if left == 0 and group.is_forgettable:
                records.append(GroupDropped(group_id))
        return self._replayed(tuple(records), ((ticket, len(records)),), now_ms)

    def _expired(self, group: ClassicGroup, before_ms: int) -> tuple[OffsetDropped, ...]:
        if group.state is State.EMPTY:
            return self.offsets.expired(group.group_id, group.changed_ms, frozenset(), before_ms)
        if group.state is State.STABLE and (topics := group.subscribed_topics()) is not None:
            return self.offsets.expired(group.group_id, 0, topics, before_ms)
        return ()

    def drop_topics(self, ticket: Ticket, is_gone: Callable[[str], bool], now_ms: int) -> Outcome:
        """Topics were deleted: how far they were read means nothing any more."""
        return self._replayed(self.offsets.drop_topics(is_gone), ((ticket, None),), now_ms)

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `pass_time` may next have something to do."""
        return self._due[0][0] if self._due else None

    def pass_time(self, now_ms: int) -> Outcome:
        outcomes = [
            self._note(group, group.pass_time(now_ms)) for group in list(self._take_due(now_ms))
        ]
        return Outcome(
            tuple(record for outcome in outcomes for record in outcome.records),
            tuple(answer for outcome in outcomes for answer in outcome.answers),
        )

    def _take_due(self, now_ms: int) -> Iterator[ClassicGroup]:
        while self._due and self._due[0][0] <= now_ms:
            due_ms, group_id = heappop(self._due)
            if self._due_ms.get(group_id) == due_ms:
                del self._due_ms[group_id]
                if group_id in self.groups:
                    yield self.groups[group_id]

    def _note(self, group: ClassicGroup, outcome: Outcome) -> Outcome:
        """An event may have brought a deadline forward, or come to nothing."""
        if self._is_nothing(group):
            del self.groups[group.group_id]
            return outcome
        deadline_ms = group.next_deadline_ms()
        known_ms = self._due_ms.get(group.group_id)
        if deadline_ms is not None and (known_ms is None or deadline_ms < known_ms):
            self._due_ms[group.group_id] = deadline_ms
            heappush(self._due, (deadline_ms, group.group_id))
        return outcome

    def _is_nothing(self, group: ClassicGroup) -> bool:
        """A refused join made it, say, or an id was given out that nobody came back with."""
        return (
            group.is_forgettable
            and not group.is_stored
            and group.group_id not in self.offsets.by_group
        )

    # Replaying

    def replay(self, record: Record, now_ms: int) -> None:
        """What a load reads, and what a decision about offsets becomes."""
        match record:
            case OffsetCommitted():
                self.offsets.replay(record)
            case OffsetDropped():
                self.offsets.replay_drop(record)
            case GroupStored():
                group = ClassicGroup.restore(record, self.limits, self.new_id, now_ms)
                self.groups[record.group_id] = group
                self._note(group, Outcome())
            case GroupDropped(group_id):
                self.groups.pop(group_id, None)

    def end_load(self) -> None:
        """The log has been read: offsets without a group are one that manages itself."""
        for group_id in self.offsets.by_group:
            if group_id not in self.groups:
                self._create(group_id)
        for group in list(self.groups.values()):
            if self._is_nothing(group):
                del self.groups[group.group_id]

    def _replayed(
        self, records: tuple[Record, ...], answers: tuple[tuple[Ticket, object], ...], now_ms: int
    ) -> Outcome:
        for record in records:
            self.replay(record, now_ms)
        return Outcome(records, answers)

    def _create(self, group_id: str) -> ClassicGroup:
        group = self.groups[group_id] = ClassicGroup(group_id, self.limits, self.new_id)
        return group


def _answer(ticket: Ticket, answer: object) -> Outcome:
    return Outcome(answers=((ticket, answer),))


def _describe(group: ClassicGroup) -> GroupDescription:
    is_stable = group.state is State.STABLE
    return GroupDescription(
        group_id=group.group_id,
        state=group.state,
        protocol_type=group.protocol_type or "",
        protocol=(group.protocol or "") if is_stable else "",
        members=tuple(
            DescribedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol) if is_stable else b"",
                member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        ),
    )
