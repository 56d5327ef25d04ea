"""All groups of one shard: their members, their committed offsets, their end."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ottla.coordinator.groups.classic_group import ClassicGroup
from ottla.coordinator.groups.classic_protocol import GroupLimits, Join, Joined, Sync, Synced
from ottla.coordinator.groups.commit_checks import (
    Committer,
    check_commit,
    check_fetch,
    check_transactional_commit,
)
from ottla.coordinator.groups.consumer_group import ConsumerGroup, ConsumerLimits
from ottla.coordinator.groups.consumer_heartbeat import (
    JOINING,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
)
from ottla.coordinator.groups.consumer_records import (
    CONSUMER_TOMBSTONES,
    ConsumerRecord,
    EpochDropped,
)
from ottla.coordinator.groups.descriptions import (
    ConsumerGroupDescription,
    GroupDescription,
    GroupSummary,
    ListedGroup,
    describe_consumer_group,
    describe_group,
    list_group,
)
from ottla.coordinator.groups.group_deadlines import GroupDeadlines
from ottla.coordinator.groups.migration import (
    may_downgrade,
    may_upgrade,
    to_classic_record,
    to_consumer_records,
)
from ottla.coordinator.groups.offset_expiry import ExpiredCounts, count_expired, expired_records
from ottla.coordinator.groups.offsets import (
    Commit,
    CommittedOffsets,
    DeletedOffsets,
    FoundOffsets,
)
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
from ottla.coordinator.groups.share_records import ShareGroupRecord
from ottla.coordinator.groups.topics import NO_TOPICS, Topics
from ottla.coordinator.runtime.decision import A, Decision, Responses, Ticket, merge
from ottla.coordinator.runtime.log_entries import ProducerIdentity, TransactionEnded
from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.protocol.consumer_protocol import CONSUMER

Group = ClassicGroup | ConsumerGroup


@dataclass(slots=True)
class Groups:
    """The machine of a shard: every event is a method call, with a ticket if it has a response."""

    limits: Callable[[], GroupLimits]
    new_id: Callable[[], str]
    metadata_bytes_max: Callable[[], int] = lambda: 4096
    consumer_limits: Callable[[str], ConsumerLimits] = lambda group_id: ConsumerLimits()
    topics: Callable[[], Topics] = lambda: NO_TOPICS
    has_room: Callable[[], bool] = lambda: True  # for one more group, in all shards together
    groups: dict[str, Group] = field(default_factory=dict)
    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)
    _deadlines: GroupDeadlines = field(default_factory=GroupDeadlines)

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
            return self._join_as_classic(ticket, group, join, now_ms)
        return self._after(group, group.join(ticket, join, now_ms), now_ms)

    def _join_as_classic(
        self, ticket: Ticket[Joined], group: ConsumerGroup, join: Join, now_ms: int
    ) -> GroupDecision:
        """An empty consumer group becomes a classic one with its first member."""
        epoch = group.replayed.epoch
        classic = ClassicGroup(group.group_id, self.limits, self.new_id, generation=epoch)
        decision = classic.join(ticket, join, now_ms)
        if classic.is_forgettable:
            return decision  # refused
        tombstones = group.tombstones()
        self.groups[group.group_id] = classic
        return self._note(classic, decision._replace(records=(*tombstones, *decision.records)))

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
            self._note(group, Decision())  # it got a deadline for joining again
        return _respond(ticket, error)

    def leave(
        self,
        ticket: Ticket[list[ErrorCode]],
        group_id: str,
        identities: Sequence[tuple[str, str | None]],
        now_ms: int,
    ) -> GroupDecision:
        """The response has one error for each member."""
        group = self.groups.get(group_id)
        if group is None:
            return _respond(ticket, [ErrorCode.UNKNOWN_MEMBER_ID] * len(identities))
        errors, decision = group.leave(identities, now_ms)
        decision = self._after(group, decision, now_ms)
        return decision._replace(responses=(*decision.responses, ticket.respond(errors)))

    def consumer_heartbeat(
        self,
        ticket: Ticket[ConsumerHeartbeatResult],
        group_id: str,
        heartbeat: ConsumerHeartbeat,
        now_ms: int,
    ) -> GroupDecision:
        """A heartbeat of the consumer protocol; the first one makes, or upgrades, the group."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            decision = group.consumer_heartbeat(ticket, heartbeat, now_ms)
            return self._after(group, decision, now_ms) if decision.records else decision
        if group is None and not self.has_room():
            text = "the broker has as many groups as max.groups allows: delete some, or raise it"
            return _refuse_heartbeat(ticket, heartbeat, ErrorCode.POLICY_VIOLATION, text)
        consumer = self._new_consumer(group_id)
        if group is None or heartbeat.epoch != JOINING:
            # The client is no member. Kafka responds that there is no such group, and its clients
            # give up: one that slept for long could as well join again.
            decision = consumer.consumer_heartbeat(ticket, heartbeat, now_ms)
            return self._adopt(consumer, decision)
        return self._upgrade(ticket, group, consumer, heartbeat, now_ms)

    # Changing the protocol

    def _upgrade(
        self,
        ticket: Ticket[ConsumerHeartbeatResult],
        old: ClassicGroup,
        new: ConsumerGroup,
        heartbeat: ConsumerHeartbeat,
        now_ms: int,
    ) -> GroupDecision:
        """A classic group becomes a consumer group, with the members that it has."""
        records = to_consumer_records(old, self.topics())
        if records is None or not may_upgrade(old, self.consumer_limits(old.group_id)):
            text = f"{old.group_id!r} is a classic group"
            return _refuse_heartbeat(ticket, heartbeat, ErrorCode.GROUP_ID_NOT_FOUND, text)
        for record in records:
            new.replay(record, now_ms)
        decision = new.consumer_heartbeat(ticket, heartbeat, now_ms)
        if not decision.records:
            return decision  # refused, and the classic group is unchanged
        waiting = old.dissolve().responses
        return self._adopt(
            new,
            Decision(
                (*old.tombstones(), *records, *decision.records), (*waiting, *decision.responses)
            ),
        )

    def _adopt(self, group: ConsumerGroup, decision: GroupDecision) -> GroupDecision:
        if not decision.records:
            return decision
        assert not isinstance(self.groups.get(group.group_id), ConsumerGroup), "it is adopted once"
        self.groups[group.group_id] = group
        return self._note(group, decision)

    def _after(self, group: Group, decision: GroupDecision, now_ms: int) -> GroupDecision:
        """The decision, and the downgrade that follows if only classic members are left."""
        if not (
            isinstance(group, ConsumerGroup)
            and decision.records
            and may_downgrade(group, self.consumer_limits(group.group_id))
        ):
            return self._note(group, decision)
        record = to_classic_record(group, self.topics(), now_ms)
        classic = ClassicGroup.restore(record, self.limits, self.new_id, now_ms)
        following = classic.rebalance(now_ms)
        tombstones = group.tombstones()
        self.groups[group.group_id] = classic
        return self._note(
            classic,
            Decision(
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
        """The response has one error for each commit."""
        error = check_commit(self.groups.get(group_id), committer)
        records, errors = self._decide_commits(group_id, committer, error, commits, now_ms)
        for record in records:
            self.offsets.replay(record)
        return Decision(records, (ticket.respond(errors),))

    def commit_in_transaction(
        self,
        ticket: Ticket[list[ErrorCode]],
        group_id: str,
        producer: ProducerIdentity,
        committer: Committer,
        commits: Sequence[Commit],
        now_ms: int,
    ) -> GroupDecision:
        """The same for offsets that count once the producer's transaction has committed."""
        error = check_transactional_commit(self.groups.get(group_id), committer)
        records, errors = self._decide_commits(group_id, committer, error, commits, now_ms)
        pending = tuple(OffsetPending(producer, record) for record in records)
        return self._replayed(pending, (ticket.respond(errors),), now_ms)

    def _decide_commits(
        self,
        group_id: str,
        committer: Committer,
        error: ErrorCode,
        commits: Sequence[Commit],
        now_ms: int,
    ) -> tuple[tuple[OffsetCommitted, ...], list[ErrorCode]]:
        """Records of the offsets that may be committed, and an error for each commit."""
        group = self.groups.get(group_id)
        if group is None:
            error = self._check_new(group_id, error)
        if error is not ErrorCode.NONE:
            return (), [error] * len(commits)
        records, errors = self.offsets.commit(
            group_id, commits, now_ms, metadata_bytes_max=self.metadata_bytes_max
        )
        if group is not None:
            group.touch(committer.member_id, now_ms)
        elif records:
            self._create(group_id)
        return records, errors

    def _check_new(self, group_id: str, error: ErrorCode) -> ErrorCode:
        """The error of a commit that would make a group, and perhaps one too many."""
        if error is ErrorCode.NONE and not self.has_room():
            return ErrorCode.POLICY_VIOLATION
        return error

    def fetch(
        self,
        ticket: Ticket[FoundOffsets],
        group_id: str,
        tps: Sequence[TopicPartition] | None,
        *,
        is_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> GroupDecision:
        """The response has an offset, or None, for each partition; for None, all offsets.

        With `is_stable`, an offset that an open transaction may move is an UnstableOffset. A
        client that claims to be a member of a consumer group and is not gets an error.
        """
        error = check_fetch(self.groups.get(group_id), member_id, member_epoch)
        if error is not ErrorCode.NONE:
            return _respond(ticket, error)
        offsets = self.offsets
        if tps is None:
            return _respond(ticket, offsets.fetch_all(group_id, is_stable=is_stable))
        found = [offsets.fetch(group_id, tp, is_stable=is_stable) for tp in tps]
        return _respond(ticket, found)

    def delete_offsets(
        self,
        ticket: Ticket[DeletedOffsets],
        group_id: str,
        tps: Sequence[TopicPartition],
        now_ms: int,
    ) -> GroupDecision:
        group = self.groups.get(group_id)
        if group is None:
            return _respond(ticket, DeletedOffsets(ErrorCode.GROUP_ID_NOT_FOUND))
        if group.members and group.protocol_type != CONSUMER:
            return _respond(ticket, DeletedOffsets(ErrorCode.NON_EMPTY_GROUP))
        subscribed = group.subscribed_topics() if group.members else frozenset[str]()
        in_use = [subscribed is None or tp.topic in subscribed for tp in tps]
        free = [tp for tp, used in zip(tps, in_use, strict=True) if not used]
        errors = (
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if used else ErrorCode.NONE for used in in_use
        )
        deleted = DeletedOffsets(ErrorCode.NONE, tuple(errors))
        return self._replayed(self.offsets.drop(group_id, free), (ticket.respond(deleted),), now_ms)

    # Administration and expiry

    def list(self, ticket: Ticket[list[ListedGroup]]) -> GroupDecision:
        return _respond(ticket, [list_group(group) for group in self.groups.values()])

    def summaries(self) -> Iterator[GroupSummary]:
        """Every group as it is in memory, with changes that are not committed yet."""
        for group in self.groups.values():
            yield GroupSummary(group.group_id, group.state, len(group.members))

    def describe(self, ticket: Ticket[GroupDescription | None], group_id: str) -> GroupDecision:
        """The response is None if there is no such classic group."""
        group = self.groups.get(group_id)
        return _respond(ticket, describe_group(group) if isinstance(group, ClassicGroup) else None)

    def describe_consumer(
        self, ticket: Ticket[ConsumerGroupDescription | None], group_id: str
    ) -> GroupDecision:
        """The response is None if there is no such consumer group."""
        group = self.groups.get(group_id)
        found = describe_consumer_group(group) if isinstance(group, ConsumerGroup) else None
        return _respond(ticket, found)

    def delete(self, ticket: Ticket[ErrorCode], group_id: str, now_ms: int) -> GroupDecision:
        group = self.groups.get(group_id)
        if group is None:
            return _respond(ticket, ErrorCode.GROUP_ID_NOT_FOUND)
        if group.members:
            return _respond(ticket, ErrorCode.NON_EMPTY_GROUP)
        records: tuple[Record, ...] = (*self.offsets.drop_all(group_id), *group.tombstones())
        return self._replayed(records, (ticket.respond(ErrorCode.NONE),), now_ms)

    def expire(
        self, ticket: Ticket[ExpiredCounts], retention_ms: int, now_ms: int
    ) -> GroupDecision:
        """Drop offsets that were not used for `retention_ms`, and groups without any."""
        records = expired_records(self.groups, self.offsets, now_ms - retention_ms)
        return self._replayed(records, (ticket.respond(count_expired(records)),), now_ms)

    def drop_partitions(
        self, ticket: Ticket[None], is_gone: Callable[[TopicPartition], bool], now_ms: int
    ) -> GroupDecision:
        """Drop the offsets of partitions that are gone."""
        dropped = self.offsets.drop_partitions(is_gone)
        return self._replayed(dropped, (ticket.respond(None),), now_ms)

    # Time

    def next_deadline_ms(self) -> int | None:
        """The time at which `pass_time` may next change something."""
        return self._deadlines.next_ms()

    def pass_time(self, now_ms: int) -> GroupDecision:
        due = list(self._deadlines.take_due(now_ms))
        return merge([self._pass_time_of(group_id, now_ms) for group_id in due])

    def _pass_time_of(self, group_id: str, now_ms: int) -> GroupDecision:
        group = self.groups.get(group_id)
        return self._after(group, group.pass_time(now_ms), now_ms) if group else Decision()

    def _note(self, group: Group, decision: GroupDecision) -> GroupDecision:
        """Note the group's next deadline, or remove a group that an event left without content."""
        if self._is_void(group):
            del self.groups[group.group_id]
        else:
            self._deadlines.note(group.group_id, group.next_deadline_ms())
        return decision

    def _is_void(self, group: Group) -> bool:
        """True after a refused join, or when an id that was given out has not been used."""
        return (
            group.is_forgettable
            and not group.is_stored
            and group.group_id not in self.offsets.by_group
            and group.group_id not in self.offsets.groups_pending
        )

    # Replaying

    def replay(self, record: GroupEvent, now_ms: int) -> None:
        """Apply a record of the log, or of a decision about offsets."""
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
                self._note(group, Decision())
            case GroupDropped(group_id):
                if isinstance(self.groups.get(group_id), ClassicGroup):
                    del self.groups[group_id]
            case ShareGroupRecord():
                raise AssertionError("share groups are not among these: see `AllGroups`")
            case _:
                self._replay_consumer(record, now_ms)

    def _replay_consumer(self, record: ConsumerRecord, now_ms: int) -> None:
        group = self.groups.get(record.group_id)
        if not isinstance(group, ConsumerGroup):
            if isinstance(record, CONSUMER_TOMBSTONES):
                return  # of a group that was dropped, or that is a classic one now
            group = self._new_consumer(record.group_id, now_ms)
            self.groups[record.group_id] = group
        if isinstance(record, EpochDropped):
            del self.groups[record.group_id]
        else:
            group.replay(record, now_ms)

    def end_load(self) -> None:
        """End a load: offsets without a group belong to consumers that assign by themselves."""
        for group_id in (*self.offsets.by_group, *self.offsets.groups_pending):
            if group_id not in self.groups:
                self._create(group_id)
        for group in list(self.groups.values()):
            self._note(group, Decision())

    def _replayed(
        self, records: tuple[GroupEvent, ...], responses: Responses, now_ms: int
    ) -> GroupDecision:
        for record in records:
            self.replay(record, now_ms)
        return Decision(records, responses)

    def _create(self, group_id: str) -> ClassicGroup:
        group = self.groups[group_id] = ClassicGroup(group_id, self.limits, self.new_id)
        return group

    def _new_consumer(self, group_id: str, empty_since_ms: int = 0) -> ConsumerGroup:
        limits = partial(self.consumer_limits, group_id)
        return ConsumerGroup(group_id, limits, self.topics, self.new_id, empty_since_ms)


def _respond(ticket: Ticket[A], value: A) -> GroupDecision:
    return Decision(responses=(ticket.respond(value),))


def _refuse_heartbeat(
    ticket: Ticket[ConsumerHeartbeatResult],
    heartbeat: ConsumerHeartbeat,
    error: ErrorCode,
    text: str,
) -> GroupDecision:
    return _respond(
        ticket, ConsumerHeartbeatResult(error=error, message=text, member_id=heartbeat.member_id)
    )
