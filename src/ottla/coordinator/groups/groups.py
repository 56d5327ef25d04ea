"""All groups of one shard: who they are, what they committed, when they are forgotten."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush
from typing import Final, NamedTuple

from ottla.coordinator.groups.classic_group import (
    ClassicGroup,
    GroupLimits,
    Join,
    Joined,
    State,
    Sync,
    Synced,
)
from ottla.coordinator.groups.consumer_group import (
    JOINING,
    ConsumerGroup,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    ConsumerLimits,
)
from ottla.coordinator.groups.consumer_group_state import ConsumerGroupState
from ottla.coordinator.groups.consumer_records import (
    ConsumerRecord,
    CurrentDropped,
    EpochDropped,
    MemberDropped,
    PatternDropped,
    TargetDropped,
    TargetEpochDropped,
)
from ottla.coordinator.groups.migration import to_classic_record, to_consumer_records
from ottla.coordinator.groups.offsets import Commit, CommittedOffsets, FoundOffset
from ottla.coordinator.groups.records import (
    GroupDecision,
    GroupDropped,
    GroupEvent,
    GroupStored,
    OffsetCommitted,
    OffsetDropped,
    OffsetPending,
    Record,
)
from ottla.coordinator.groups.topics import NO_TOPICS, Partitions, Topics
from ottla.coordinator.runtime.decision import A, Responses, Ticket
from ottla.coordinator.runtime.log_entries import ProducerIdentity, TransactionEnded
from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.protocol.consumer_protocol import CONSUMER

Group = ClassicGroup | ConsumerGroup
FoundOffsets = list[FoundOffset] | ErrorCode  # the error of a reader that is no member
_TOMBSTONES: Final = (
    EpochDropped,
    MemberDropped,
    TargetEpochDropped,
    TargetDropped,
    CurrentDropped,
    PatternDropped,
)
_GROUP_NOT_FOUND_FROM: Final = 9  # before, OffsetCommit has no better word than a wrong generation


class GroupType(StrEnum):
    """The words that clients and tools see."""

    CLASSIC = "Classic"
    CONSUMER = "Consumer"


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
    state: State | ConsumerGroupState
    type: GroupType


class GroupSummary(NamedTuple):
    """A group in figures, for those who watch."""

    group_id: str
    state: State | ConsumerGroupState
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


class DescribedConsumer(NamedTuple):
    """A member of a consumer group as its group's description shows it."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str | None
    assigned: Partitions
    target: Partitions
    is_classic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription:
    """A consumer group as tools show it."""

    group_id: str
    state: ConsumerGroupState
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]


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
    consumer_limits: Callable[[], ConsumerLimits] = ConsumerLimits
    topics: Callable[[], Topics] = lambda: NO_TOPICS
    has_room: Callable[[], bool] = lambda: True  # for one more group, in all shards together
    groups: dict[str, Group] = field(default_factory=dict)
    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)
    _due: list[tuple[int, str]] = field(default_factory=list)
    _due_ms: dict[str, int] = field(default_factory=dict)

    # Membership

    def join(self, ticket: Ticket[Joined], group_id: str, join: Join, now_ms: int) -> GroupDecision:
        group = self.groups.get(group_id)
        if group is None:
            if join.member_id:
                error = ErrorCode.UNKNOWN_MEMBER_ID
                return _respond(ticket, Joined(error=error, member_id=join.member_id))
            if not self.has_room():
                return _respond(ticket, Joined(error=ErrorCode.POLICY_VIOLATION))
            group = self._create(group_id)
        elif isinstance(group, ConsumerGroup) and not group.members:
            return self._join_anew(ticket, group, join, now_ms)
        return self._after(group, group.join(ticket, join, now_ms), now_ms)

    def _join_anew(
        self, ticket: Ticket[Joined], group: ConsumerGroup, join: Join, now_ms: int
    ) -> GroupDecision:
        """Nobody is left of the newer protocol: the group is whatever its first member is."""
        made = ClassicGroup(
            group.group_id, self.limits, self.new_id, generation=group.written.epoch
        )
        decision = made.join(ticket, join, now_ms)
        if made.is_forgettable:
            return decision  # refused
        tombstones = group.tombstones()
        self.groups[group.group_id] = made
        return self._note(made, decision._replace(records=(*tombstones, *decision.records)))

    def sync(self, ticket: Ticket[Synced], group_id: str, sync: Sync, now_ms: int) -> GroupDecision:
        group = self.groups.get(group_id)
        if group is None:
            return _respond(ticket, Synced(error=ErrorCode.UNKNOWN_MEMBER_ID))
        return self._note(group, group.sync(ticket, sync, now_ms))

    def heartbeat(
        self,
        ticket: Ticket[ErrorCode],
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
    ) -> GroupDecision:
        group = self.groups.get(group_id)
        if group is None:
            return _respond(ticket, ErrorCode.UNKNOWN_MEMBER_ID)
        error = group.heartbeat(member_id, instance_id, generation, now_ms)
        if error is ErrorCode.REBALANCE_IN_PROGRESS and isinstance(group, ConsumerGroup):
            self._note(group, GroupDecision())  # it has only so long to join again
        return _respond(ticket, error)

    def leave(
        self,
        ticket: Ticket[list[ErrorCode]],
        group_id: str,
        identities: Sequence[tuple[str, str | None]],
        now_ms: int,
    ) -> GroupDecision:
        """Answered with one error for each member."""
        group = self.groups.get(group_id)
        if group is None:
            return _respond(ticket, [ErrorCode.UNKNOWN_MEMBER_ID] * len(identities))
        errors, decision = group.leave(identities, now_ms)
        decision = self._after(group, decision, now_ms)
        return decision._replace(responses=(*decision.responses, ticket.respond(errors)))

    def beat(
        self,
        ticket: Ticket[ConsumerHeartbeatResult],
        group_id: str,
        beat: ConsumerHeartbeat,
        now_ms: int,
    ) -> GroupDecision:
        """The heartbeat of the newer protocol; the first one makes a group, or changes its kind."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            decision = group.beat(ticket, beat, now_ms)
            return self._after(group, decision, now_ms) if decision.records else decision
        if group is None and not self.has_room():
            text = "the broker has as many groups as max.groups allows: delete some, or raise it"
            return _refuse_beat(ticket, beat, ErrorCode.POLICY_VIOLATION, text)
        made = ConsumerGroup(group_id, self.consumer_limits, self.topics, self.new_id)
        if group is None or beat.epoch != JOINING:
            # Whoever does not join is no member. Kafka says that there is no such group, and its
            # clients give up: one that slept for long could as well join again.
            return self._adopt(made, made.beat(ticket, beat, now_ms))
        return self._upgrade(ticket, group, made, beat, now_ms)

    # Changing the protocol

    def _upgrade(
        self,
        ticket: Ticket[ConsumerHeartbeatResult],
        old: ClassicGroup,
        new: ConsumerGroup,
        beat: ConsumerHeartbeat,
        now_ms: int,
    ) -> GroupDecision:
        """A classic group becomes one of the newer protocol, with the members that it has."""
        limits = self.consumer_limits()
        is_allowed = limits.allows_upgrade and len(old.members) <= limits.members_max
        records = to_consumer_records(old, self.topics())
        if records is None or (old.members and not is_allowed):
            return _refuse_beat(
                ticket, beat, ErrorCode.GROUP_ID_NOT_FOUND, f"{old.group_id!r} is a classic group"
            )
        for record in records:
            new.replay(record, now_ms)
        decision = new.beat(ticket, beat, now_ms)
        if not decision.records:
            return decision  # refused: the old one has not noticed anything
        waiting = old.dissolve().responses
        return self._adopt(
            new,
            GroupDecision(
                (*old.tombstones(), *records, *decision.records), (*waiting, *decision.responses)
            ),
        )

    def _adopt(self, group: ConsumerGroup, decision: GroupDecision) -> GroupDecision:
        if not decision.records:
            return decision
        self.groups[group.group_id] = group
        return self._note(group, decision)

    def _after(self, group: Group, decision: GroupDecision, now_ms: int) -> GroupDecision:
        """What an event at a group is followed by: maybe the last of the newer protocol is gone."""
        limits = self.consumer_limits()
        if not (
            isinstance(group, ConsumerGroup)
            and decision.records
            and limits.allows_downgrade
            and group.written.is_classic_only
            and len(group.members) <= limits.classic.members_max
        ):
            return self._note(group, decision)
        record = to_classic_record(group, self.topics(), now_ms)
        made = ClassicGroup.restore(record, self.limits, self.new_id, now_ms)
        following = made.rebalance(now_ms)
        tombstones = group.tombstones()
        self.groups[group.group_id] = made
        return self._note(
            made,
            GroupDecision(
                (*decision.records, *tombstones, record, *following.records),
                (*decision.responses, *following.responses),
            ),
        )

    # Offsets

    def commit(
        self,
        ticket: Ticket[list[ErrorCode]],
        group_id: str,
        committer: Committer,
        commits: Sequence[Commit],
        now_ms: int,
    ) -> GroupDecision:
        """Answered with one error for each commit."""
        error = self._commit_refusal(group_id, committer)
        if error is not ErrorCode.NONE:
            return GroupDecision(responses=(ticket.respond([error] * len(commits)),))
        records, errors = self._take_commits(group_id, committer.member_id, commits, now_ms)
        return self._replayed(records, (ticket.respond(errors),), now_ms)

    def _commit_refusal(self, group_id: str, committer: Committer) -> ErrorCode:
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group.check_commit(committer.member_id, committer.generation, committer.version)
        if group is not None:
            return group.check_commit(
                committer.member_id, committer.instance_id, committer.generation
            )
        if committer.generation < 0:  # it assigns partitions itself and only keeps offsets here
            return ErrorCode.NONE if self.has_room() else ErrorCode.POLICY_VIOLATION
        if committer.version >= _GROUP_NOT_FOUND_FROM:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.ILLEGAL_GENERATION

    def commit_in_transaction(
        self,
        ticket: Ticket[list[ErrorCode]],
        group_id: str,
        producer: ProducerIdentity,
        committer: Committer,
        commits: Sequence[Commit],
        now_ms: int,
    ) -> GroupDecision:
        """The same, but it counts only once the producer's transaction has committed."""
        error = self._transactional_commit_refusal(group_id, committer)
        if error is not ErrorCode.NONE:
            return GroupDecision(responses=(ticket.respond([error] * len(commits)),))
        records, errors = self._take_commits(group_id, committer.member_id, commits, now_ms)
        pending = tuple(OffsetPending(producer, record) for record in records)
        return self._replayed(pending, (ticket.respond(errors),), now_ms)

    def _take_commits(
        self, group_id: str, member_id: str, commits: Sequence[Commit], now_ms: int
    ) -> tuple[tuple[OffsetCommitted, ...], list[ErrorCode]]:
        """What may be written of the offsets that somebody commits, and an error for each."""
        records, errors = self.offsets.commit(
            group_id, commits, now_ms, metadata_bytes_max=self.metadata_bytes_max()
        )
        group = self.groups.get(group_id)
        if group is not None:
            group.touch(member_id, now_ms)
        elif records:
            self._create(group_id)
        return records, errors

    def _transactional_commit_refusal(self, group_id: str, committer: Committer) -> ErrorCode:
        group = self.groups.get(group_id)
        if group is not None:
            return group.check_transactional_commit(
                committer.member_id, committer.instance_id, committer.generation
            )
        if committer.generation >= 0:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE if self.has_room() else ErrorCode.POLICY_VIOLATION

    def fetch(
        self,
        ticket: Ticket[FoundOffsets],
        group_id: str,
        wanted: Sequence[TopicPartition] | None,
        *,
        is_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> GroupDecision:
        """Answered with one offset, or None, for each partition; with all for None.

        `is_stable` asks for offsets that no open transaction is about to move. Somebody who
        claims to be a member of a consumer group and is not is answered with an error.
        """
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            error = group.check_fetch(member_id, member_epoch)
            if error is not ErrorCode.NONE:
                return _respond(ticket, error)
        offsets = self.offsets
        if wanted is None:
            return _respond(ticket, offsets.fetch_all(group_id, is_stable=is_stable))
        found = [offsets.fetch(group_id, tp, is_stable=is_stable) for tp in wanted]
        return _respond(ticket, found)

    def delete_offsets(
        self,
        ticket: Ticket[DeletedOffsets],
        group_id: str,
        wanted: Sequence[TopicPartition],
        now_ms: int,
    ) -> GroupDecision:
        group = self.groups.get(group_id)
        if group is None:
            return _respond(ticket, DeletedOffsets(ErrorCode.GROUP_ID_NOT_FOUND))
        if group.members and group.protocol_type != CONSUMER:
            return _respond(ticket, DeletedOffsets(ErrorCode.NON_EMPTY_GROUP))
        subscribed = group.subscribed_topics() if group.members else frozenset[str]()
        in_use = [subscribed is None or tp.topic in subscribed for tp in wanted]
        free = [tp for tp, used in zip(wanted, in_use, strict=True) if not used]
        errors = (
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if used else ErrorCode.NONE for used in in_use
        )
        answer = DeletedOffsets(ErrorCode.NONE, tuple(errors))
        return self._replayed(self.offsets.drop(group_id, free), (ticket.respond(answer),), now_ms)

    # Administration

    def list(self, ticket: Ticket[list[ListedGroup]]) -> GroupDecision:
        listed = [
            ListedGroup(g.group_id, g.protocol_type or "", g.state, _type(g))
            for g in self.groups.values()
        ]
        return _respond(ticket, listed)

    def figures(self) -> Iterator[GroupSummary]:
        """Every group as it is in memory: what a crash could undo is counted too."""
        for group in self.groups.values():
            yield GroupSummary(group.group_id, group.state, len(group.members))

    def describe(self, ticket: Ticket[GroupDescription | None], group_id: str) -> GroupDecision:
        """Answered with None when there is no such classic group."""
        group = self.groups.get(group_id)
        return _respond(ticket, _describe(group) if isinstance(group, ClassicGroup) else None)

    def describe_consumer(
        self, ticket: Ticket[ConsumerGroupDescription | None], group_id: str
    ) -> GroupDecision:
        """Answered with None when there is no such consumer group."""
        group = self.groups.get(group_id)
        found = _describe_consumer(group) if isinstance(group, ConsumerGroup) else None
        return _respond(ticket, found)

    def delete(self, ticket: Ticket[ErrorCode], group_id: str, now_ms: int) -> GroupDecision:
        group = self.groups.get(group_id)
        if group is None:
            return _respond(ticket, ErrorCode.GROUP_ID_NOT_FOUND)
        if group.members:
            return _respond(ticket, ErrorCode.NON_EMPTY_GROUP)
        records: tuple[Record, ...] = (*self.offsets.drop_all(group_id), *group.tombstones())
        return self._replayed(records, (ticket.respond(ErrorCode.NONE),), now_ms)

    # Forgetting

    def expire(self, ticket: Ticket[int], retention_ms: int, now_ms: int) -> GroupDecision:
        """Forget offsets that nobody used for so long, and groups that have nothing left.

        Answered with the number of records that say so.
        """
        records: list[Record] = []
        for group_id, group in self.groups.items():
            expired = self._expired(group, now_ms - retention_ms)
            records += expired
            left = len(self.offsets.by_group.get(group_id, ())) - len(expired)
            is_awaited = group_id in self.offsets.groups_pending
            if left == 0 and group.is_forgettable and not is_awaited:
                records += group.tombstones()
        return self._replayed(tuple(records), (ticket.respond(len(records)),), now_ms)

    def _expired(self, group: Group, before_ms: int) -> tuple[OffsetDropped, ...]:
        if isinstance(group, ConsumerGroup):
            since_ms = 0 if group.members else group.empty_since_ms
            subscribed = group.subscribed_topics()
            return self.offsets.expired(group.group_id, since_ms, subscribed, before_ms)
        if group.state is State.EMPTY:
            return self.offsets.expired(group.group_id, group.changed_ms, frozenset(), before_ms)
        if group.state is State.STABLE and (topics := group.subscribed_topics()) is not None:
            return self.offsets.expired(group.group_id, 0, topics, before_ms)
        return ()

    def drop_topics(
        self, ticket: Ticket[None], is_gone: Callable[[str], bool], now_ms: int
    ) -> GroupDecision:
        """Topics were deleted: how far they were read means nothing any more."""
        return self._replayed(self.offsets.drop_topics(is_gone), (ticket.respond(None),), now_ms)

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `pass_time` may next have something to do."""
        return self._due[0][0] if self._due else None

    def pass_time(self, now_ms: int) -> GroupDecision:
        decisions = [
            self._after(group, group.pass_time(now_ms), now_ms)
            for group in list(self._take_due(now_ms))
        ]
        return GroupDecision(
            tuple(record for decision in decisions for record in decision.records),
            tuple(answer for decision in decisions for answer in decision.responses),
        )

    def _take_due(self, now_ms: int) -> Iterator[Group]:
        while self._due and self._due[0][0] <= now_ms:
            due_ms, group_id = heappop(self._due)
            if self._due_ms.get(group_id) == due_ms:
                del self._due_ms[group_id]
                if group_id in self.groups:
                    yield self.groups[group_id]

    def _note(self, group: Group, decision: GroupDecision) -> GroupDecision:
        """An event may have brought a deadline forward, or come to nothing."""
        if self._is_nothing(group):
            del self.groups[group.group_id]
            return decision
        deadline_ms = group.next_deadline_ms()
        known_ms = self._due_ms.get(group.group_id)
        if deadline_ms is not None and (known_ms is None or deadline_ms < known_ms):
            self._due_ms[group.group_id] = deadline_ms
            heappush(self._due, (deadline_ms, group.group_id))
        return decision

    def _is_nothing(self, group: Group) -> bool:
        """A refused join made it, say, or an id was given out that nobody came back with."""
        return (
            group.is_forgettable
            and not group.is_stored
            and group.group_id not in self.offsets.by_group
            and group.group_id not in self.offsets.groups_pending
        )

    # Replaying

    def replay(self, record: GroupEvent, now_ms: int) -> None:
        """What a load reads, and what a decision about offsets becomes."""
        match record:
            case OffsetCommitted():
                self.offsets.replay(record)
            case OffsetPending():
                self.offsets.replay_pending(record)
            case TransactionEnded():
                self.offsets.replay_end(record)
            case OffsetDropped():
                self.offsets.replay_drop(record)
            case GroupStored():
                group = ClassicGroup.restore(record, self.limits, self.new_id, now_ms)
                self.groups[record.group_id] = group
                self._note(group, GroupDecision())
            case GroupDropped(group_id):
                if isinstance(self.groups.get(group_id), ClassicGroup):
                    del self.groups[group_id]
            case _:
                self._replay_consumer(record, now_ms)

    def _replay_consumer(self, record: ConsumerRecord, now_ms: int) -> None:
        group = self.groups.get(record.group_id)
        if not isinstance(group, ConsumerGroup):
            if isinstance(record, _TOMBSTONES):
                return  # of a group that is gone, or that changed its protocol
            group = self._create_consumer(record.group_id, now_ms)
        if isinstance(record, EpochDropped):
            del self.groups[record.group_id]
        else:
            group.replay(record, now_ms)

    def end_load(self) -> None:
        """The log has been read: offsets without a group are one that manages itself."""
        for group_id in (*self.offsets.by_group, *self.offsets.groups_pending):
            if group_id not in self.groups:
                self._create(group_id)
        for group in list(self.groups.values()):
            self._note(group, GroupDecision())

    def _replayed(
        self, records: tuple[GroupEvent, ...], responses: Responses, now_ms: int
    ) -> GroupDecision:
        for record in records:
            self.replay(record, now_ms)
        return GroupDecision(records, responses)

    def _create(self, group_id: str) -> ClassicGroup:
        group = self.groups[group_id] = ClassicGroup(group_id, self.limits, self.new_id)
        return group

    def _create_consumer(self, group_id: str, now_ms: int) -> ConsumerGroup:
        group = ConsumerGroup(
            group_id, self.consumer_limits, self.topics, self.new_id, empty_since_ms=now_ms
        )
        self.groups[group_id] = group
        return group


def _respond(ticket: Ticket[A], value: A) -> GroupDecision:
    return GroupDecision(responses=(ticket.respond(value),))


def _refuse_beat(
    ticket: Ticket[ConsumerHeartbeatResult], beat: ConsumerHeartbeat, error: ErrorCode, text: str
) -> GroupDecision:
    return _respond(
        ticket, ConsumerHeartbeatResult(error=error, message=text, member_id=beat.member_id)
    )


def _type(group: Group) -> GroupType:
    return GroupType.CONSUMER if isinstance(group, ConsumerGroup) else GroupType.CLASSIC


def _describe_consumer(group: ConsumerGroup) -> ConsumerGroupDescription:
    return ConsumerGroupDescription(
        group_id=group.group_id,
        state=group.state,
        epoch=group.written.epoch,
        target_epoch=group.written.target_epoch,
        assignor=group.assignor,
        members=tuple(
            DescribedConsumer(
                member.member_id,
                member.instance_id,
                member.rack_id,
                group.written.current(member.member_id).epoch,
                member.client_id,
                member.client_host,
                member.topics,
                member.pattern,
                group.written.current(member.member_id).assigned,
                group.written.target(member.member_id),
                member.classic is not None,
            )
            for member in group.members.values()
        ),
    )


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
