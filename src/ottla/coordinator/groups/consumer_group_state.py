"""The state of a consumer group that is replayed from the log."""

from dataclasses import dataclass, field
from enum import StrEnum

from ottla.coordinator.groups.classic_protocol import Join
from ottla.coordinator.groups.consumer_records import (
    ConsumerRecord,
    CurrentDropped,
    CurrentSet,
    EpochDropped,
    EpochSet,
    MemberDropped,
    MemberState,
    MemberStored,
    PatternDropped,
    PatternResolved,
    TargetDropped,
    TargetEpochDropped,
    TargetEpochSet,
    TargetSet,
)
from ottla.coordinator.groups.topics import NOTHING, IdPartition, Partitions
from ottla.errors import FencedInstanceId, GroupMaxSizeReached, IllegalGeneration, UnknownMemberId


class ConsumerGroupState(StrEnum):
    """States by the names that clients and tools show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(slots=True)
class ReplayedGroup:
    """Owned by its group. `replay` is the only writer, so the log has everything in here."""

    group_id: str
    epoch: int = 0
    target_epoch: int = 0
    fingerprint: int = 0  # of the topics as they were in `epoch`
    members: dict[str, MemberStored] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    currents: dict[str, CurrentSet] = field(default_factory=dict)
    patterns: dict[str, PatternResolved] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)  # instance id to member id
    owners: dict[IdPartition, str] = field(default_factory=dict)

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self.is_settled(member_id) for member_id in self.members):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_classic_only(self) -> bool:
        """True if the group has members and all of them use the classic protocol."""
        return bool(self.members) and all(m.classic is not None for m in self.members.values())

    # Members

    def find(self, member_id: str, instance_id: str | None) -> MemberStored:
        """The member with this id; raises UnknownMemberId, or FencedInstanceId if replaced."""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                raise UnknownMemberId(f"no member has instance id {instance_id!r}")
            if current != member_id:
                raise FencedInstanceId(f"instance {instance_id!r} is member {current!r} now")
        if member_id not in self.members:
            raise UnknownMemberId(f"{member_id!r} is not a member of {self.group_id!r}")
        return self.members[member_id]

    def find_classic(self, member_id: str, instance_id: str | None) -> MemberStored:
        """The same for a member that has to use the classic protocol."""
        member = self.find(member_id, instance_id)
        if member.classic is None:
            raise UnknownMemberId(f"{member_id!r} does not use the classic protocol")
        return member

    def find_generation(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> MemberStored:
        """The same for a classic member whose epoch has to be `generation`."""
        member = self.find_classic(member_id, instance_id)
        epoch = self.current(member_id).epoch
        if generation != epoch:
            raise IllegalGeneration(f"the member is in generation {epoch}, not {generation}")
        return member

    def find_joining(
        self, member_id: str, instance_id: str | None, members_max: int
    ) -> MemberStored | None:
        """The member that a join continues: its own, or its instance's; None for a new one."""
        known = self.members.get(member_id)
        instance = None if instance_id is None else self.static.get(instance_id)
        if instance is not None:
            if known is not None and known.member_id != instance:
                raise FencedInstanceId(f"instance {instance_id!r} is member {instance!r}")
            return self.members[instance]
        if known is None and len(self.members) >= members_max:
            raise GroupMaxSizeReached(f"{self.group_id!r} has as many members as it may")
        return known

    def fits(self, join: Join) -> bool:
        """True if a classic member shares a protocol with all others, for a later downgrade."""
        names = {protocol.name for protocol in join.protocols}
        for member in self.members.values():
            if member.classic is not None and member.member_id != join.member_id:
                names &= {name for name, _ in member.classic.protocols}
        return bool(names)

    def has_to_rejoin(self, member_id: str) -> bool:
        """True if a classic member's assignment changes: it gets a new one by joining again."""
        current = self.current(member_id)
        if current.epoch < self.epoch or current.state is MemberState.UNREVOKED:
            return True
        if current.state is not MemberState.UNRELEASED:
            return False
        return all(self.is_free(p, member_id) for p in self.target(member_id))

    # Assignments

    def current(self, member_id: str) -> CurrentSet:
        """The current assignment of a member; empty, in epoch 0, until it gets its first."""
        return self.currents.get(member_id) or CurrentSet(
            group_id=self.group_id, member_id=member_id
        )

    def target(self, member_id: str) -> Partitions:
        """The target assignment of a member."""
        return self.targets.get(member_id, NOTHING)

    def held(self, member_id: str) -> Partitions:
        """Partitions that a member may read: assigned, or to be revoked and not given up yet."""
        current = self.current(member_id)
        return current.assigned | current.revoking

    def is_settled(self, member_id: str) -> bool:
        """True when the member's current assignment equals its target."""
        current = self.current(member_id)
        return current.state is MemberState.STABLE and current.epoch == self.target_epoch

    def is_free(self, partition: IdPartition, member_id: str) -> bool:
        """True if no other member holds the partition."""
        return self.owners.get(partition, member_id) == member_id

    # Subscriptions

    def subscription(self, member: MemberStored) -> frozenset[str]:
        """The topic names that a member subscribes to, whether or not such topics exist."""
        resolved = self.patterns.get(member.pattern or "")
        return frozenset(member.topics).union(() if resolved is None else resolved.topics)

    def subscribed_topics(self) -> frozenset[str]:
        """The topic names that any member subscribes to, by name or by pattern."""
        return frozenset().union(*(self.subscription(member) for member in self.members.values()))

    def tombstones(self) -> tuple[ConsumerRecord, ...]:
        """Records that remove the group from the log."""
        group_id = self.group_id
        return (
            *(CurrentDropped(group_id, member_id) for member_id in self.currents),
            *(TargetDropped(group_id, member_id) for member_id in self.targets),
            TargetEpochDropped(group_id),
            *(MemberDropped(group_id, member_id) for member_id in self.members),
            *(PatternDropped(group_id, pattern) for pattern in self.patterns),
            EpochDropped(group_id),
        )

    # Replaying

    def replay(self, record: ConsumerRecord) -> None:
        assert record.group_id == self.group_id, "a record is replayed by the group it names"
        match record:
            case EpochSet():
                self.epoch, self.fingerprint = record.epoch, record.fingerprint
            case TargetEpochSet(_, epoch):
                self.target_epoch = epoch
            case MemberStored():
                self._replay_member(record)
            case TargetSet(_, member_id, partitions):
                self.targets[member_id] = partitions
            case CurrentSet():
                self._replay_owner(self.currents.get(record.member_id), record)
                self.currents[record.member_id] = record
            case PatternResolved():
                self.patterns[record.pattern] = record
            case _:
                self._replay_tombstone(record)

    def _replay_tombstone(self, record: ConsumerRecord) -> None:
        match record:
            case MemberDropped(_, member_id):
                self._replay_departure(member_id)
            case TargetDropped(_, member_id):
                self.targets.pop(member_id, None)
            case CurrentDropped(_, member_id):
                self._replay_owner(self.currents.pop(member_id, None), None)
            case PatternDropped(_, pattern):
                self.patterns.pop(pattern, None)
            case _:
                pass  # the group itself is removed as a whole

    def _replay_member(self, member: MemberStored) -> None:
        known = self.members.get(member.member_id)
        if known is not None and known.instance_id is not None:
            self.static.pop(known.instance_id, None)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def _replay_departure(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        instance_id = None if member is None else member.instance_id
        if instance_id is not None and self.static.get(instance_id) == member_id:
            del self.static[instance_id]

    def _replay_owner(self, before: CurrentSet | None, after: CurrentSet | None) -> None:
        had = NOTHING if before is None else before.assigned | before.revoking
        has = NOTHING if after is None else after.assigned | after.revoking
        for partition in had - has:
            if before is not None and self.owners.get(partition) == before.member_id:
                del self.owners[partition]
        if after is not None:
            for partition in has - had:
                self.owners[partition] = after.member_id
