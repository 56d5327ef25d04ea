"""A group whose assignment the broker makes (KIP-848): one kind of heartbeat does everything.

There are three epochs. The group's counts every change of its members, their subscriptions and
the topics they mean. The target's is the group epoch that the present assignment was made for. A
member's is the target epoch that it has reached.

            join             next heartbeat of anybody         everybody has what it is to have
    EMPTY -------> ASSIGNING ------------------------> RECONCILING -----------------> STABLE
      ^                ^                                    |                            |
      |   all gone     +------------------------------------+----------------------------+
      +--------------------   join, leave, silence, other subscriptions, other topics

Members of the older protocol may be in the group as well, while clients are being exchanged. They
join, sync and send the older heartbeat; their generation is their member epoch, and what they
are given is told to them in the bytes that consumers otherwise make for each other.

An event writes one record after the other, and decides the next on what the last has changed.
Deadlines are not written down; whoever replays gives every member its whole time again.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ottla.coordinator.groups.assignors import ASSIGNORS, Subscriber
from ottla.coordinator.groups.classic_group import GroupLimits, Join, Joined, Sync, Synced
from ottla.coordinator.groups.consumer_group_state import ConsumerGroupState, WrittenGroup
from ottla.coordinator.groups.consumer_records import (
    ClassicPart,
    ConsumerRecord,
    CurrentDropped,
    CurrentSet,
    EpochSet,
    MemberDropped,
    MemberState,
    MemberStored,
    PatternDropped,
    PatternResolved,
    TargetDropped,
    TargetEpochSet,
    TargetSet,
)
from ottla.coordinator.groups.reconciliation import advance
from ottla.coordinator.groups.records import GroupDecision, GroupEvent
from ottla.coordinator.groups.topic_pattern import InvalidPattern, TopicPattern
from ottla.coordinator.groups.topics import (
    NOTHING,
    Partitions,
    Topic,
    Topics,
    of_names,
    to_names,
    topics_fingerprint,
)
from ottla.coordinator.runtime.decision import Responses, Ticket
from ottla.errors import (
    ApiError,
    ErrorCode,
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidRegularExpression,
    InvalidRequest,
    InvalidSessionTimeout,
    RebalanceInProgress,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from ottla.model import TimestampMs, Uuid
from ottla.protocol.consumer_protocol import CONSUMER, assignment_bytes, parse_subscription

JOINING: Final = 0  # instead of an epoch
LEAVING: Final = -1
LEAVING_FOR_A_WHILE: Final = -2  # a static member that will be back
_COMMIT_FROM: Final = 9  # OffsetCommit: before, it knows no member epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat, as far as a group cares; None is "as before"."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    makes_own_id: bool = True  # from version 1 on

    @property
    def is_full(self) -> bool:
        """It says everything, so it may have missed what it was told."""
        says_topics = self.topics is not None or self.pattern is not None
        return self.epoch == JOINING or (
            self.rebalance_timeout_ms is not None and says_topics and self.owned is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatResult:
    """The answer to a heartbeat; `assigned` is None when it is as before."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assigned: Partitions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLimits:
    """Settings that concern these groups."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5000
    members_max: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")  # the first is taken unless members wish
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
    empty_since_ms: int = 0  # nobody remembers this after a restart, so it counts from then
    written: WrittenGroup = field(init=False)
    _seen: Mapping[str, Topic] | None = None  # the topics when they were last looked at
    _compiled: dict[str, TopicPattern] = field(default_factory=dict)
    _session_ends: dict[str, int] = field(default_factory=dict)
    _revoke_ends: dict[str, int] = field(default_factory=dict)
    _rejoin_ends: dict[str, int] = field(default_factory=dict)  # of members of the older protocol
    _sync_ends: dict[str, int] = field(default_factory=dict)
    _records: list[GroupEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.written = WrittenGroup(self.group_id)

    # What happens to a group

    def beat(
        self, ticket: Ticket[ConsumerHeartbeatResult], beat: ConsumerHeartbeat, now_ms: int
    ) -> GroupDecision:
        try:
            answer = self._beat(beat, now_ms)
        except ApiError as refused:
            assert not self._records, "refused, and changed nevertheless"
            answer = ConsumerHeartbeatResult(
                error=refused.code, message=str(refused), member_id=beat.member_id
            )
        return self._decision((ticket.respond(answer),))

    def join(self, ticket: Ticket[Joined], join: Join, now_ms: int) -> GroupDecision:
        """A member of the older protocol joins, or joins again because it was told to."""
        try:
            answer = self._join(join, now_ms)
        except ApiError as refused:
            assert not self._records, "refused, and changed nevertheless"
            answer = Joined(error=refused.code, member_id=join.member_id)
        return self._decision((ticket.respond(answer),))

    def sync(self, ticket: Ticket[Synced], sync: Sync, now_ms: int) -> GroupDecision:
        """It asks for its assignment, which is there already."""
        try:
            answer = self._sync(sync, now_ms)
        except ApiError as refused:
            answer = Synced(error=refused.code)
        return GroupDecision(responses=(ticket.respond(answer),))

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """The older heartbeat says only whether a member has to join again."""
        try:
            member = self._classic_member(member_id, instance_id, generation)
        except ApiError as refused:
            return refused.code
        self._touch(member, now_ms)
        if not self._has_to_rejoin(member_id):
            return ErrorCode.NONE
        self._rejoin_ends.setdefault(member_id, now_ms + member.rebalance_timeout_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def leave(
        self, identities: Sequence[tuple[str, str | None]], now_ms: int
    ) -> tuple[list[ErrorCode], GroupDecision]:
        """Members of the older protocol go, or an administrator removes them."""
        errors = []
        gone = []
        for known_id, instance_id in identities:
            member_id = known_id or self.written.static.get(instance_id or "", "")
            try:
                self._member_of_older(member_id, instance_id)
            except ApiError as refused:
                errors.append(refused.code)
            else:
                errors.append(ErrorCode.NONE)
                gone.append(member_id)
        self._remove(dict.fromkeys(gone), now_ms)
        return errors, self._decision()

    def pass_time(self, now_ms: int) -> GroupDecision:
        """Whoever is silent, or does not let go, for too long is no member any more."""
        gone = {
            member_id: None
            for ends in self._ends()
            for member_id, end_ms in ends.items()
            if end_ms <= now_ms
        }
        self._remove(gone, now_ms)
        return self._decision()

    def next_deadline_ms(self) -> int | None:
        """When `pass_time` next has something to do, at the latest."""
        return min((min(ends.values()) for ends in self._ends() if ends), default=None)

    # What others may ask

    @property
    def members(self) -> dict[str, MemberStored]:
        return self.written.members

    @property
    def state(self) -> ConsumerGroupState:
        return self.written.state

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
        """The one that most members wish for, of those that are allowed."""
        allowed = self.limits().assignors
        wishes = Counter(m.assignor for m in self.members.values() if m.assignor in allowed)
        return max(wishes, key=lambda name: (wishes[name], name or ""), default=None) or allowed[0]

    def check_commit(self, member_id: str, epoch: int, version: int) -> ErrorCode:
        """Whether offsets may be committed: by its members, or by anybody while it has none."""
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is not None and member.classic is None and version < _COMMIT_FROM:
            return ErrorCode.UNSUPPORTED_VERSION
        return self._check_epoch(member, epoch)

    def check_transactional_commit(
        self, member_id: str, instance_id: str | None, epoch: int
    ) -> ErrorCode:
        """The same within a transaction, whose coordinator fences too.

        Before version 3 a producer cannot say for which member it commits (KIP-447).
        """
        is_anonymous = not member_id and instance_id is None
        if epoch < 0 and (is_anonymous or not self.members):
            return ErrorCode.NONE
        return self._check_epoch(self.members.get(member_id), epoch)

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether offsets may be seen: by anybody who does not claim to be a member."""
        if not member_id and epoch < 0:
            return ErrorCode.NONE
        return self._check_epoch(self.members.get(member_id or ""), epoch)

    def _check_epoch(self, member: MemberStored | None, epoch: int) -> ErrorCode:
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == self.written.current(member.member_id).epoch:
            return ErrorCode.NONE
        is_classic = member.classic is not None
        return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH

    def touch(self, member_id: str, now_ms: int) -> None:
        """A commit is a sign of life, as it is in groups of the older protocol."""
        if member_id in self.members:
            self._touch(self.members[member_id], now_ms)

    def subscribed_topics(self) -> frozenset[str]:
        """What its members read, by name or by pattern."""
        return self.written.subscribed_topics()

    def tombstones(self) -> tuple[ConsumerRecord, ...]:
        """What to write down to forget it."""
        return self.written.tombstones()

    # Heartbeats

    def _beat(self, beat: ConsumerHeartbeat, now_ms: int) -> ConsumerHeartbeatResult:
        self._check_shape(beat)
        if beat.epoch < 0:
            return self._leave(beat, now_ms)
        if beat.epoch == JOINING:
            previous = self._joining(beat.member_id, beat.instance_id)
            if previous is not None:
                self._check_released(previous, beat)
        else:
            previous = self._member(beat.member_id, beat.instance_id)
            self._check_progress(beat)
        updated = self._updated(previous, beat)
        before = self.written.current(updated.member_id)
        self._admit(previous, updated, beat.owned, now_ms, resets=beat.epoch == JOINING)
        after = self.written.current(updated.member_id)
        is_news = beat.is_full or after.assigned != before.assigned
        return ConsumerHeartbeatResult(
            member_id=updated.member_id,
            epoch=after.epoch,
            interval_ms=self.limits().heartbeat_interval_ms,
            assigned=after.assigned if is_news else None,
        )

    def _check_shape(self, beat: ConsumerHeartbeat) -> None:
        """What is wrong with a heartbeat, whoever sends it."""
        limits = self.limits()
        if beat.epoch < LEAVING_FOR_A_WHILE:
            raise InvalidRequest(f"{beat.epoch} is not the epoch of a member")
        if not beat.member_id and (beat.epoch != JOINING or beat.makes_own_id):
            raise InvalidRequest("a member id must be given")
        if beat.instance_id == "" or beat.rack_id == "":
            raise InvalidRequest("an instance id or rack id must not be empty")
        if beat.epoch == LEAVING_FOR_A_WHILE and beat.instance_id is None:
            raise InvalidRequest("only a member with an instance id can leave for a while")
        if beat.epoch == JOINING:
            _check_join(beat)
        if beat.assignor is not None and beat.assignor not in limits.assignors:
            raise UnsupportedAssignor(
                f"{beat.assignor!r} is not one of {', '.join(limits.assignors)}"
            )

    def _check_released(self, previous: MemberStored, beat: ConsumerHeartbeat) -> None:
        """An instance's place is free once its last member said goodbye, or speaks older words."""
        is_other = previous.member_id != beat.member_id
        is_away = self.written.current(previous.member_id).epoch == LEAVING_FOR_A_WHILE
        if is_other and previous.classic is None and not is_away:
            raise UnreleasedInstanceId(
                f"instance {beat.instance_id!r} is still member {previous.member_id!r}"
            )

    def _check_progress(self, beat: ConsumerHeartbeat) -> None:
        """A member that missed our last answer may come with the epoch before, and what it had."""
        current = self.written.current(beat.member_id)
        if beat.epoch == current.epoch:
            return
        missed = beat.epoch < current.epoch and beat.epoch == current.previous_epoch
        if missed and (beat.owned or NOTHING) <= current.assigned and beat.owned is not None:
            return
        raise FencedMemberEpoch(
            f"the member is in epoch {current.epoch}, not {beat.epoch}: give up all and join again"
        )

    def _updated(self, previous: MemberStored | None, beat: ConsumerHeartbeat) -> MemberStored:
        """The member with all that this heartbeat says about it."""
        known = previous or MemberStored(group_id=self.group_id, member_id="")
        if beat.epoch == JOINING:  # it says everything, and what it does not say is not so
            known = replace(known, rack_id=None, topics=(), pattern=None, assignor=None)
        timeout_ms = beat.rebalance_timeout_ms
        return replace(
            known,
            member_id=beat.member_id or self.new_id(),
            instance_id=beat.instance_id or known.instance_id,
            rack_id=beat.rack_id or known.rack_id,
            client_id=beat.client_id,
            client_host=beat.client_host,
            topics=known.topics if beat.topics is None else tuple(sorted(beat.topics)),
            pattern=known.pattern if beat.pattern is None else beat.pattern or None,
            rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms is None else timeout_ms,
            assignor=beat.assignor or known.assignor,
            classic=None,
        )

    def _leave(self, beat: ConsumerHeartbeat, now_ms: int) -> ConsumerHeartbeatResult:
        member = self._member(beat.member_id, beat.instance_id)
        if beat.epoch == LEAVING_FOR_A_WHILE:
            # It has closed, so what it was letting go of is free. The rest waits for its return.
            current = self.written.current(member.member_id)
            self._write(
                replace(current, epoch=beat.epoch, state=MemberState.STABLE, revoking=NOTHING),
                now_ms,
            )
            self._touch(member, now_ms)
        else:
            self._remove([member.member_id], now_ms)
        return ConsumerHeartbeatResult(member_id=beat.member_id, epoch=beat.epoch)

    # Members of the older protocol

    def _join(self, join: Join, now_ms: int) -> Joined:
        limits = self.limits().classic
        shortest_ms, longest_ms = limits.session_timeout_min_ms, limits.session_timeout_max_ms
        if not shortest_ms <= join.session_timeout_ms <= longest_ms:
            raise InvalidSessionTimeout("")
        if join.protocol_type != CONSUMER or not self._fits(join):
            raise InconsistentGroupProtocol("")
        subscription = parse_subscription(join.protocols[0].metadata)
        if subscription is None:
            raise InconsistentGroupProtocol("")
        if join.member_id and join.instance_id is not None:
            previous: MemberStored | None = self._member(join.member_id, join.instance_id)
        else:
            previous = self._joining(join.member_id, join.instance_id)
        member_id = join.member_id or f"{join.instance_id or join.client_id}-{self.new_id()}"
        if not join.member_id and join.instance_id is None and join.needs_known_id:
            return Joined(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        member = MemberStored(
            group_id=self.group_id,
            member_id=member_id,
            instance_id=join.instance_id,
            rack_id=subscription.rack_id,
            client_id=join.client_id,
            client_host=join.client_host,
            topics=tuple(sorted(subscription.topics)),
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            classic=ClassicPart(join.session_timeout_ms, join.protocols),
        )
        owned = of_names(subscription.owned, self.topics())
        self._admit(previous, member, owned, now_ms, resets=False)
        self._rejoin_ends.pop(member_id, None)
        self._sync_ends[member_id] = now_ms + member.rebalance_timeout_ms
        return Joined(
            member_id=member_id,
            generation=self.written.current(member_id).epoch,
            protocol_type=CONSUMER,
            protocol=join.protocols[0].name,
        )

    def _fits(self, join: Join) -> bool:
        """It shares a way of assigning with all others, should they have to assign themselves."""
        names = {protocol.name for protocol in join.protocols}
        for member in self.members.values():
            if member.classic is not None and member.member_id != join.member_id:
                names &= {name for name, _ in member.classic.protocols}
        return bool(names)

    def _sync(self, sync: Sync, now_ms: int) -> Synced:
        member = self._classic_member(sync.member_id, sync.instance_id, sync.generation)
        assert member.classic is not None
        name, metadata = member.classic.protocols[0]
        if sync.protocol_type not in {None, CONSUMER} or sync.protocol_name not in {None, name}:
            raise InconsistentGroupProtocol("")
        current = self.written.current(member.member_id)
        if self.written.epoch > current.epoch and current.state is not MemberState.UNREVOKED:
            self._rejoin_ends.setdefault(member.member_id, now_ms + member.rebalance_timeout_ms)
            raise RebalanceInProgress("")
        self._sync_ends.pop(member.member_id, None)
        self._touch(member, now_ms)
        subscription = parse_subscription(metadata)
        version = 0 if subscription is None else subscription.version
        assignment = assignment_bytes(to_names(current.assigned, self.topics()), version)
        return Synced(protocol_type=CONSUMER, protocol=name, assignment=assignment)

    def _member_of_older(self, member_id: str, instance_id: str | None) -> MemberStored:
        member = self._member(member_id, instance_id)
        if member.classic is None:
            raise UnknownMemberId(f"{member_id!r} does not use the older protocol")
        return member

    def _classic_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> MemberStored:
        member = self._member_of_older(member_id, instance_id)
        if generation != self.written.current(member_id).epoch:
            raise IllegalGeneration("")
        return member

    def _has_to_rejoin(self, member_id: str) -> bool:
        """The group has moved on, or the member has something to let go of or to get."""
        current = self.written.current(member_id)
        if current.epoch < self.written.epoch or current.state is MemberState.UNREVOKED:
            return True
        if current.state is not MemberState.UNRELEASED:
            return False
        return all(self.written.is_free(p, member_id) for p in self.written.target(member_id))

    # Joining, and everything that may follow from it

    def _member(self, member_id: str, instance_id: str | None) -> MemberStored:
        """Who this is, if it is one of us."""
        if instance_id is not None:
            current = self.written.static.get(instance_id)
            if current is None:
                raise UnknownMemberId(f"nobody here is instance {instance_id!r}")
            if current != member_id:
                raise FencedInstanceId(f"instance {instance_id!r} is member {current!r} now")
        if member_id not in self.members:
            raise UnknownMemberId(f"{member_id!r} is not a member of {self.group_id!r}")
        return self.members[member_id]

    def _joining(self, member_id: str, instance_id: str | None) -> MemberStored | None:
        """Whose place a newcomer takes: its own, or that of its instance; None for a new one."""
        mine = self.members.get(member_id)
        place = None if instance_id is None else self.written.static.get(instance_id)
        if place is not None:
            if mine is not None and mine.member_id != place:
                raise FencedInstanceId(f"instance {instance_id!r} is member {place!r}")
            return self.members[place]
        if mine is None and len(self.members) >= self.limits().members_max:
            raise GroupMaxSizeReached(f"{self.group_id!r} has as many members as it may")
        return mine

    def _admit(
        self,
        previous: MemberStored | None,
        member: MemberStored,
        owned: Partitions | None,
        now_ms: int,
        *,
        resets: bool,
    ) -> None:
        """Write down what is new about a member, and take it one step towards its target."""
        self._check_size(member)
        self._check_known(member, owned)
        resolved = self._resolved(member.pattern, now_ms)  # the last thing that can be refused
        if resolved is not None:
            self._write(resolved, now_ms)
        if previous is not None and previous.member_id != member.member_id:
            self._replace(previous, member, now_ms)
        elif resets and member.member_id in self.written.currents:
            # Whoever joins has given up everything, also if it has been here all the time.
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

    def _check_size(self, member: MemberStored) -> None:
        """A member is one record, and a record that the log refuses would cost us the shard."""
        texts = [*member.topics, member.pattern or "", member.client_id, member.member_id]
        size_bytes = sum(4 * len(text) for text in texts)
        if member.classic is not None:
            size_bytes += sum(len(metadata) for _, metadata in member.classic.protocols)
        if size_bytes > self.limits().classic.stored_bytes_max:
            raise InvalidRequest("a member cannot say so much about itself")

    def _check_known(self, member: MemberStored, owned: Partitions | None) -> None:
        """A newer coordinator may have written a state that we do not know."""
        state = self.written.current(member.member_id).state
        if state is MemberState.UNKNOWN and (owned is None or owned):
            raise FencedMemberEpoch("what this member has is not known: join again with nothing")

    def _replace(self, old: MemberStored, new: MemberStored, now_ms: int) -> None:
        """An instance is back under another id: what was its own stays its own."""
        current = self.written.current(old.member_id)
        target = self.written.target(old.member_id)
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
        """A new epoch, if members want other topics or the topics are others than they were."""
        topics = self.topics()
        if not is_changed and topics.topics is self._seen:
            return
        self._resolve_again(topics, now_ms)
        self._seen = topics.topics
        mark = topics_fingerprint(self.written.subscribed_topics(), topics)
        if is_changed or mark != self.written.fingerprint:
            epoch = self.written.epoch + 1
            self._write(EpochSet(group_id=self.group_id, epoch=epoch, fingerprint=mark), now_ms)

    def _retarget(self, now_ms: int) -> None:
        """Decide anew who is to have what, if that was not done in this epoch."""
        if self.written.target_epoch == self.written.epoch:
            return
        topics = self.topics().topics
        subscribers = {
            member.member_id: Subscriber(
                member.instance_id,
                frozenset(
                    topics[name].id for name in self.written.wanted(member) if name in topics
                ),
                self.written.target(member.member_id),
            )
            for member in self.members.values()
        }
        counts: dict[Uuid, int] = {
            topics[name].id: len(topics[name].partitions)
            for name in self.written.subscribed_topics()
            if name in topics
        }
        targets = ASSIGNORS[self.assignor](subscribers, counts)
        for member_id, partitions in targets.items():
            if self.written.targets.get(member_id) != partitions:
                self._write(TargetSet(self.group_id, member_id, partitions), now_ms)
        self._write(TargetEpochSet(self.group_id, self.written.epoch), now_ms)

    def _reconcile(self, member_id: str, owned: Partitions | None, now_ms: int) -> None:
        current = self.written.current(member_id)
        following = advance(
            current,
            self.written.target(member_id),
            self.written.target_epoch,
            owned,
            lambda partition: self.written.is_free(partition, member_id),
        )
        if following != current or member_id not in self.written.currents:
            self._write(following, now_ms)

    # Leaving

    def _remove(self, member_ids: Iterable[str], now_ms: int) -> None:
        """They are gone. Who gets what they had is decided at the next heartbeat of anybody."""
        gone = list(member_ids)
        for member_id in gone:
            self._drop(member_id, now_ms)
        if gone:
            self._refresh(now_ms, is_changed=True)

    def _drop(self, member_id: str, now_ms: int) -> None:
        if member_id in self.written.currents:
            self._write(CurrentDropped(self.group_id, member_id), now_ms)
        if member_id in self.written.targets:
            self._write(TargetDropped(self.group_id, member_id), now_ms)
        self._write(MemberDropped(self.group_id, member_id), now_ms)

    # Patterns

    def _resolved(self, pattern: str | None, now_ms: int) -> PatternResolved | None:
        """What to write down about a pattern that nobody here has had."""
        if pattern is None or pattern in self.written.patterns:
            return None
        topics = self.topics()
        try:
            compiled = TopicPattern(pattern)
            found = compiled.find(_visible(topics, topics.topics))
        except InvalidPattern as problem:
            raise InvalidRegularExpression(f"{pattern[:100]!r}: {problem}") from None
        self._compiled[pattern] = compiled
        return self._resolution(pattern, found, now_ms)

    def _resolve_again(self, topics: Topics, now_ms: int) -> None:
        """Patterns that nobody has any more are forgotten, the others see what is new."""
        used = {member.pattern for member in self.members.values()}
        before = self._seen if self._seen is not None else {}
        fresh = topics.topics.keys() - before.keys()
        for pattern, resolved in list(self.written.patterns.items()):
            if pattern not in used:
                self._compiled.pop(pattern, None)
                self._write(PatternDropped(self.group_id, pattern), now_ms)
                continue
            found = {name for name in resolved.topics if name in topics.topics}
            found |= self._find(pattern, _visible(topics, fresh))
            if found != set(resolved.topics):
                self._write(self._resolution(pattern, found, now_ms), now_ms)

    def _find(self, pattern: str, names: Iterable[str]) -> frozenset[str]:
        """Nothing, for a pattern that another version accepted or that has become too costly."""
        try:
            if pattern not in self._compiled:
                self._compiled[pattern] = TopicPattern(pattern)
            return self._compiled[pattern].find(names)
        except InvalidPattern:
            return frozenset()

    def _resolution(self, pattern: str, found: Iterable[str], now_ms: int) -> PatternResolved:
        known = self.written.patterns.get(pattern)
        return PatternResolved(
            group_id=self.group_id,
            pattern=pattern,
            topics=tuple(sorted(found)),
            version=0 if known is None else known.version + 1,
            resolved_ms=TimestampMs(now_ms),
        )

    # Replaying

    def replay(self, record: ConsumerRecord, now_ms: int) -> None:
        """What is written down changes, and with it what somebody has to do in time."""
        before = self.written.currents.get(_member_id(record))
        is_new = _member_id(record) not in self.members
        self.written.replay(record)
        match record:
            case MemberStored() if is_new:
                self._touch(record, now_ms)
            case MemberDropped(_, member_id):
                for ends in self._ends():
                    ends.pop(member_id, None)
                if not self.members:
                    self.empty_since_ms = now_ms
            case CurrentSet():
                self._time_revocation(before, record, now_ms)
            case _:
                pass

    def _time_revocation(self, before: CurrentSet | None, current: CurrentSet, now_ms: int) -> None:
        member = self.members.get(current.member_id)
        if current.state is not MemberState.UNREVOKED or member is None:
            self._revoke_ends.pop(current.member_id, None)
        elif before is None or (before.state, before.epoch) != (current.state, current.epoch):
            self._revoke_ends[current.member_id] = now_ms + member.rebalance_timeout_ms

    def _write(self, record: ConsumerRecord, now_ms: int) -> None:
        self._records.append(record)
        self.replay(record, now_ms)

    def _decision(self, responses: Responses = ()) -> GroupDecision:
        decision = GroupDecision(tuple(self._records), responses)
        self._records.clear()
        return decision

    # Time

    def _touch(self, member: MemberStored, now_ms: int) -> None:
        session_ms = self.limits().session_timeout_ms
        if member.classic is not None:
            session_ms = member.classic.session_timeout_ms
        self._session_ends[member.member_id] = now_ms + session_ms

    def _ends(self) -> Iterator[dict[str, int]]:
        yield self._session_ends
        yield self._revoke_ends
        yield self._rejoin_ends
        yield self._sync_ends


def _member_id(record: ConsumerRecord) -> str:
    match record:
        case MemberStored() | MemberDropped() | CurrentSet():
            return record.member_id
        case _:
            return ""


def _check_join(beat: ConsumerHeartbeat) -> None:
    if beat.rebalance_timeout_ms is None:
        raise InvalidRequest("a rebalance timeout must be given when joining")
    if beat.owned is None or beat.owned:
        raise InvalidRequest("whoever joins must say that it has no partitions")
    if not beat.topics and not beat.pattern:
        raise InvalidRequest("topics or a regular expression must be given when joining")


def _visible(topics: Topics, names: Iterable[str]) -> list[str]:
    """What a pattern can mean: not the topics that brokers keep for themselves."""
    return [name for name in names if not topics.topics[name].is_internal]
