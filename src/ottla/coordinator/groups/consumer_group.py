"""A group whose partitions the broker assigns (KIP-848): one kind of heartbeat does everything.

There are three epochs. The group's counts every change of its members, their subscriptions and
the topics in them. The target's is the group epoch that the target assignment was made for. A
member's is the target epoch that it has reached.

            join           next heartbeat of any member      all members have their targets
    EMPTY -------> ASSIGNING ------------------------> RECONCILING -----------------> STABLE
      ^                ^                                    |                            |
      |   all gone     +------------------------------------+----------------------------+
      +--------------------   join, leave, silence, other subscriptions, other topics

Members that use the classic protocol may be in the group as well, while clients are upgraded. They
join, sync and send classic heartbeats; their generation is their member epoch, and their assignment
is encoded in the bytes that classic consumers otherwise make for each other.

An event writes one record after the other, and decides the next on the state that the last has
changed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ottla.coordinator.groups.classic_protocol import GroupLimits, Join, Joined, Sync, Synced
from ottla.coordinator.groups.consumer_classic_members import (
    check_join,
    check_sync,
    joining_member,
    synced,
)
from ottla.coordinator.groups.consumer_group_state import ConsumerGroupState, ReplayedGroup
from ottla.coordinator.groups.consumer_heartbeat import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
)
from ottla.coordinator.groups.consumer_records import (
    ConsumerRecord,
    CurrentDropped,
    CurrentSet,
    EpochSet,
    MemberDropped,
    MemberState,
    MemberStored,
    TargetDropped,
    TargetSet,
)
from ottla.coordinator.groups.member_deadlines import MemberDeadlines
from ottla.coordinator.groups.pattern_subscriptions import PatternSubscriptions
from ottla.coordinator.groups.reconciliation import advance
from ottla.coordinator.groups.records import GroupDecision, GroupEvent
from ottla.coordinator.groups.target_assignment import preferred_assignor, target_records
from ottla.coordinator.groups.topics import (
    NOTHING,
    Partitions,
    Topic,
    Topics,
    of_names,
    topics_fingerprint,
)
from ottla.coordinator.runtime.decision import Decision, Responses, Ticket
from ottla.errors import (
    ApiError,
    ErrorCode,
    FencedMemberEpoch,
    InvalidRequest,
    RebalanceInProgress,
    UnreleasedInstanceId,
)
from ottla.protocol.consumer_protocol import CONSUMER


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLimits:
    """Settings of consumer groups."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5000
    members_max: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")  # the first one unless members prefer another
    allows_upgrade: bool = True
    allows_downgrade: bool = True
    classic: GroupLimits = field(default_factory=GroupLimits)


@dataclass(slots=True)
class ConsumerGroup:
    """Owned by a shard. `new_id` makes the ids of members that bring none."""

    group_id: str
    limits: Callable[[], ConsumerLimits]
    topics: Callable[[], Topics]
    new_id: Callable[[], str]
    empty_since_ms: int = 0  # not in the log: after a restart it counts from then
    replayed: ReplayedGroup = field(init=False)
    _topics_seen: Mapping[str, Topic] | None = None  # when the epoch was last computed
    _patterns: PatternSubscriptions = field(init=False)
    _deadlines: MemberDeadlines = field(default_factory=MemberDeadlines)
    _records: list[GroupEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.replayed = ReplayedGroup(self.group_id)
        self._patterns = PatternSubscriptions(self.group_id)

    # Events

    def consumer_heartbeat(
        self,
        ticket: Ticket[ConsumerHeartbeatResult],
        heartbeat: ConsumerHeartbeat,
        now_ms: int,
    ) -> GroupDecision:
        try:
            result = self._consumer_heartbeat(heartbeat, now_ms)
        except ApiError as refused:
            assert not self._records, "a refused heartbeat changes nothing"
            result = ConsumerHeartbeatResult(
                error=refused.code, message=str(refused), member_id=heartbeat.member_id
            )
        return self._decision((ticket.respond(result),))

    def join(self, ticket: Ticket[Joined], join: Join, now_ms: int) -> GroupDecision:
        """Add a classic member, or give one that has to rejoin its new assignment."""
        try:
            joined = self._join(join, now_ms)
        except ApiError as refused:
            assert not self._records, "a refused join changes nothing"
            joined = Joined(error=refused.code, member_id=join.member_id)
        return self._decision((ticket.respond(joined),))

    def sync(self, ticket: Ticket[Synced], sync: Sync, now_ms: int) -> GroupDecision:
        """Respond with a classic member's assignment, which the broker has made already."""
        try:
            result = self._sync(sync, now_ms)
        except ApiError as refused:
            result = Synced(error=refused.code)
        return Decision(responses=(ticket.respond(result),))

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """The heartbeat of a classic member: REBALANCE_IN_PROGRESS if it has to join again."""
        try:
            member = self.replayed.find_generation(member_id, instance_id, generation)
        except ApiError as refused:
            return refused.code
        self._touch(member, now_ms)
        if not self.replayed.has_to_rejoin(member_id):
            return ErrorCode.NONE
        self._deadlines.rejoin.setdefault(member_id, now_ms + member.rebalance_timeout_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def leave(
        self, identities: Sequence[tuple[str, str | None]], now_ms: int
    ) -> tuple[list[ErrorCode], GroupDecision]:
        """Remove classic members by member id, or by instance id as administrators do."""
        errors = []
        gone = []
        for known_id, instance_id in identities:
            member_id = known_id or self.replayed.static.get(instance_id or "", "")
            try:
                self.replayed.find_classic(member_id, instance_id)
            except ApiError as refused:
                errors.append(refused.code)
            else:
                errors.append(ErrorCode.NONE)
                gone.append(member_id)
        self._remove(dict.fromkeys(gone), now_ms)
        return errors, self._decision()

    def pass_time(self, now_ms: int) -> GroupDecision:
        """Remove members that have missed a deadline."""
        self._remove(self._deadlines.passed(now_ms), now_ms)
        return self._decision()

    def touch(self, member_id: str, now_ms: int) -> None:
        """Begin a member's session anew: a commit counts as a heartbeat."""
        if member_id in self.members:
            self._touch(self.members[member_id], now_ms)

    # Queries

    @property
    def members(self) -> dict[str, MemberStored]:
        return self.replayed.members

    @property
    def state(self) -> ConsumerGroupState:
        return self.replayed.state

    @property
    def protocol_type(self) -> str:
        return CONSUMER

    @property
    def is_forgettable(self) -> bool:
        return not self.members

    @property
    def is_stored(self) -> bool:
        return True

    @property
    def assignor(self) -> str:
        return preferred_assignor(self.replayed, self.limits().assignors)

    def next_deadline_ms(self) -> int | None:
        """The time at which `pass_time` next changes something, at the latest."""
        return self._deadlines.next_ms()

    def subscribed_topics(self) -> frozenset[str]:
        """The topics that its members read, by name or by pattern."""
        return self.replayed.subscribed_topics()

    def tombstones(self) -> tuple[ConsumerRecord, ...]:
        """Records that remove the group from the log."""
        return self.replayed.tombstones()

    # Heartbeats

    def _consumer_heartbeat(
        self, heartbeat: ConsumerHeartbeat, now_ms: int
    ) -> ConsumerHeartbeatResult:
        heartbeat.check(self.limits().assignors)
        if heartbeat.epoch < 0:
            return self._leave(heartbeat, now_ms)
        if heartbeat.epoch == JOINING:
            previous = self.replayed.find_joining(
                heartbeat.member_id, heartbeat.instance_id, self.limits().members_max
            )
            if previous is not None:
                self._check_released(previous, heartbeat)
        else:
            previous = self.replayed.find(heartbeat.member_id, heartbeat.instance_id)
            self._check_progress(heartbeat)
        known = previous or MemberStored(group_id=self.group_id, member_id="")
        updated = heartbeat.updated(known, heartbeat.member_id or self.new_id())
        before = self.replayed.current(updated.member_id)
        resets = heartbeat.epoch == JOINING
        self._admit(previous, updated, heartbeat.owned, now_ms, resets=resets)
        after = self.replayed.current(updated.member_id)
        is_changed = heartbeat.is_full or after.assigned != before.assigned
        return ConsumerHeartbeatResult(
            member_id=updated.member_id,
            epoch=after.epoch,
            interval_ms=self.limits().heartbeat_interval_ms,
            assigned=after.assigned if is_changed else None,
        )

    def _check_released(self, previous: MemberStored, heartbeat: ConsumerHeartbeat) -> None:
        """An instance can be replaced once its last member has left, or if that was classic."""
        is_other = previous.member_id != heartbeat.member_id
        is_away = self.replayed.current(previous.member_id).epoch == LEAVING_FOR_A_WHILE
        if is_other and previous.classic is None and not is_away:
            raise UnreleasedInstanceId(
                f"instance {heartbeat.instance_id!r} is still member {previous.member_id!r}"
            )

    def _check_progress(self, heartbeat: ConsumerHeartbeat) -> None:
        """A member that missed the last response may send the epoch before, and what it had."""
        current = self.replayed.current(heartbeat.member_id)
        epoch, owned = heartbeat.epoch, heartbeat.owned
        if epoch == current.epoch:
            return
        is_previous = epoch < current.epoch and epoch == current.previous_epoch
        if is_previous and owned is not None and owned <= current.assigned:
            return
        raise FencedMemberEpoch(
            f"the member is in epoch {current.epoch}, not {epoch}: give up all and join again"
        )

    def _leave(self, heartbeat: ConsumerHeartbeat, now_ms: int) -> ConsumerHeartbeatResult:
        member = self.replayed.find(heartbeat.member_id, heartbeat.instance_id)
        if heartbeat.epoch == LEAVING_FOR_A_WHILE:
            # It has closed, so partitions that were being revoked are free. The others wait for it.
            current = self.replayed.current(member.member_id)
            away = replace(
                current, epoch=heartbeat.epoch, state=MemberState.STABLE, revoking=NOTHING
            )
            self._write(away, now_ms)
            self._touch(member, now_ms)
        else:
            self._remove([member.member_id], now_ms)
        return ConsumerHeartbeatResult(member_id=heartbeat.member_id, epoch=heartbeat.epoch)

    # Members that use the classic protocol

    def _join(self, join: Join, now_ms: int) -> Joined:
        subscription = check_join(join, self.replayed, self.limits().classic)
        if join.member_id and join.instance_id is not None:
            previous: MemberStored | None = self.replayed.find(join.member_id, join.instance_id)
        else:
            previous = self.replayed.find_joining(
                join.member_id, join.instance_id, self.limits().members_max
            )
        member_id = join.member_id or f"{join.instance_id or join.client_id}-{self.new_id()}"
        if not join.member_id and join.instance_id is None and join.needs_known_id:
            return Joined(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        member = joining_member(self.group_id, member_id, join, subscription)
        owned = of_names(subscription.owned, self.topics())
        self._admit(previous, member, owned, now_ms, resets=False)
        self._deadlines.rejoin.pop(member_id, None)
        self._deadlines.sync[member_id] = now_ms + member.rebalance_timeout_ms
        return Joined(
            member_id=member_id,
            generation=self.replayed.current(member_id).epoch,
            protocol_type=CONSUMER,
            protocol=join.protocols[0].name,
        )

    def _sync(self, sync: Sync, now_ms: int) -> Synced:
        member = self.replayed.find_generation(sync.member_id, sync.instance_id, sync.generation)
        check_sync(sync, member)
        current = self.replayed.current(member.member_id)
        if self.replayed.epoch > current.epoch and current.state is not MemberState.UNREVOKED:
            end_ms = now_ms + member.rebalance_timeout_ms
            self._deadlines.rejoin.setdefault(member.member_id, end_ms)
            raise RebalanceInProgress("the assignment has changed: join again")
        self._deadlines.sync.pop(member.member_id, None)
        self._touch(member, now_ms)
        return synced(member, current.assigned, self.topics())

    # Joining, and everything that may follow from it

    def _admit(
        self,
        previous: MemberStored | None,
        member: MemberStored,
        owned: Partitions | None,
        now_ms: int,
        *,
        resets: bool,
    ) -> None:
        """Write the changes of a member, and take it one step towards its target."""
        _check_size(member, self.limits().classic.stored_bytes_max)
        self._check_known(member, owned)
        known = self.replayed.patterns
        resolved = self._patterns.resolve(member.pattern, known, self.topics(), now_ms)
        # From here on nothing is refused.
        if resolved is not None:
            self._write(resolved, now_ms)
        if previous is not None and previous.member_id != member.member_id:
            self._replace(previous, member, now_ms)
        elif resets and member.member_id in self.replayed.currents:
            # A member that joins has given up everything, also if it never left.
            self._write(CurrentSet(group_id=self.group_id, member_id=member.member_id), now_ms)
        if member != self.members.get(member.member_id):
            self._write(member, now_ms)
        is_other = previous is None or (
            (previous.topics, previous.pattern) != (member.topics, member.pattern)
        )
        self._refresh(now_ms, is_changed=is_other)
        self._retarget(now_ms)
        self._reconcile(member.member_id, owned, now_ms)
        self._touch(member, now_ms)

    def _check_known(self, member: MemberStored, owned: Partitions | None) -> None:
        """Refuse a member whose state a newer version has written, unless it owns nothing."""
        state = self.replayed.current(member.member_id).state
        if state is MemberState.UNKNOWN and (owned is None or owned):
            raise FencedMemberEpoch("the member's partitions are not known: join again with none")

    def _replace(self, old: MemberStored, new: MemberStored, now_ms: int) -> None:
        """Give a restarted instance, under its new id, all that its old id had."""
        current = self.replayed.current(old.member_id)
        target = self.replayed.target(old.member_id)
        self._drop(old.member_id, now_ms)
        self._write(new, now_ms)
        self._write(TargetSet(self.group_id, new.member_id, target), now_ms)
        self._write(
            replace(
                current,
                member_id=new.member_id,
                epoch=0,
                previous_epoch=0,
                state=MemberState.STABLE,
                revoking=NOTHING,
            ),
            now_ms,
        )

    def _refresh(self, now_ms: int, *, is_changed: bool) -> None:
        """Begin a new epoch if subscriptions, or the topics in them, have changed."""
        topics, before = self.topics(), self._topics_seen
        if not is_changed and topics.topics is before:
            return
        used = frozenset(member.pattern for member in self.members.values())
        for record in self._patterns.resolve_again(
            self.replayed.patterns, used, before or {}, topics, now_ms
        ):
            self._write(record, now_ms)
        self._topics_seen = topics.topics
        mark = topics_fingerprint(self.replayed.subscribed_topics(), topics)
        if is_changed or mark != self.replayed.fingerprint:
            epoch = self.replayed.epoch + 1
            self._write(EpochSet(group_id=self.group_id, epoch=epoch, fingerprint=mark), now_ms)

    def _retarget(self, now_ms: int) -> None:
        """Make a new target assignment, if there is none of this epoch."""
        if self.replayed.target_epoch != self.replayed.epoch:
            for record in target_records(self.replayed, self.assignor, self.topics()):
                self._write(record, now_ms)

    def _reconcile(self, member_id: str, owned: Partitions | None, now_ms: int) -> None:
        current = self.replayed.current(member_id)
        following = advance(
            current,
            self.replayed.target(member_id),
            self.replayed.target_epoch,
            owned,
            lambda partition: self.replayed.is_free(partition, member_id),
        )
        if following != current or member_id not in self.replayed.currents:
            assert all(self.replayed.is_free(p, member_id) for p in following.assigned), (
                "no partition is assigned to two members"
            )
            self._write(following, now_ms)

    # Leaving

    def _remove(self, member_ids: Iterable[str], now_ms: int) -> None:
        """Drop members; the next heartbeat of any other one gives away their partitions."""
        gone = list(member_ids)
        for member_id in gone:
            self._drop(member_id, now_ms)
        if gone:
            self._refresh(now_ms, is_changed=True)

    def _drop(self, member_id: str, now_ms: int) -> None:
        if member_id in self.replayed.currents:
            self._write(CurrentDropped(self.group_id, member_id), now_ms)
        if member_id in self.replayed.targets:
            self._write(TargetDropped(self.group_id, member_id), now_ms)
        self._write(MemberDropped(self.group_id, member_id), now_ms)

    # Replaying

    def replay(self, record: ConsumerRecord, now_ms: int) -> None:
        """Change the replayed state, and the deadlines that follow from it."""
        member_id = _member_id(record)
        before = self.replayed.currents.get(member_id)
        is_new = member_id not in self.members
        self.replayed.replay(record)
        match record:
            case MemberStored() if is_new:
                self._touch(record, now_ms)
            case MemberDropped():
                self._deadlines.forget(member_id)
                if not self.members:
                    self.empty_since_ms = now_ms
            case CurrentSet():
                self._time_revocation(before, record, now_ms)
            case _:
                pass

    def _time_revocation(self, before: CurrentSet | None, current: CurrentSet, now_ms: int) -> None:
        member = self.members.get(current.member_id)
        if current.state is not MemberState.UNREVOKED or member is None:
            self._deadlines.revocation.pop(current.member_id, None)
        elif before is None or (before.state, before.epoch) != (current.state, current.epoch):
            end_ms = now_ms + member.rebalance_timeout_ms
            self._deadlines.revocation[current.member_id] = end_ms

    def _write(self, record: ConsumerRecord, now_ms: int) -> None:
        if isinstance(record, EpochSet):
            assert record.epoch > self.replayed.epoch, "the epoch of a group only rises"
        self._records.append(record)
        self.replay(record, now_ms)

    def _decision(self, responses: Responses = ()) -> GroupDecision:
        decision = Decision(tuple(self._records), responses)
        self._records.clear()
        return decision

    def _touch(self, member: MemberStored, now_ms: int) -> None:
        session_ms = self.limits().session_timeout_ms
        if member.classic is not None:
            session_ms = member.classic.session_timeout_ms
        self._deadlines.session[member.member_id] = now_ms + session_ms


def _member_id(record: ConsumerRecord) -> str:
    match record:
        case MemberStored() | MemberDropped() | CurrentSet():
            return record.member_id
        case _:
            return ""


def _check_size(member: MemberStored, bytes_max: int) -> None:
    """Refuse a member whose record the log would refuse: that would cost the shard."""
    texts = [*member.topics, member.pattern or "", member.client_id, member.member_id]
    size_bytes = sum(4 * len(text) for text in texts)
    if member.classic is not None:
        size_bytes += sum(len(metadata) for _, metadata in member.classic.protocols)
    if size_bytes > bytes_max:
        raise InvalidRequest("the member's subscription is too large: subscribe to fewer topics")
