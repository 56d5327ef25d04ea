"""What is written down about a group whose assignment the broker makes, put together again."""

from dataclasses import dataclass, field
from enum import StrEnum

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


class ConsumerGroupState(StrEnum):
    """The words that clients and tools see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(slots=True)
class WrittenGroup:
    """Owned by its group. `replay` is the only writer, so the log says all that is known here."""

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
        """Members there are, and none of them uses the newer protocol."""
        return bool(self.members) and all(m.classic is not None for m in self.members.values())

    def current(self, member_id: str) -> CurrentSet:
        """What a member has; nothing, and epoch 0, until it was given something."""
        return self.currents.get(member_id) or CurrentSet(
            group_id=self.group_id, member_id=member_id
        )

    def target(self, member_id: str) -> Partitions:
        """What a member is to have."""
        return self.targets.get(member_id, NOTHING)

    def held(self, member_id: str) -> Partitions:
        """What a member has, and what it was told to let go of and may have still."""
        current = self.current(member_id)
        return current.assigned | current.revoking

    def is_settled(self, member_id: str) -> bool:
        """It has what it is to have."""
        current = self.current(member_id)
        return current.state is MemberState.STABLE and current.epoch == self.target_epoch

    def is_free(self, partition: IdPartition, member_id: str) -> bool:
        """Nobody else has it, or has to let go of it still."""
        return self.owners.get(partition, member_id) == member_id

    def wanted(self, member: MemberStored) -> frozenset[str]:
        """The names that a member subscribes to, whether or not there are such topics."""
        resolved = self.patterns.get(member.pattern or "")
        return frozenset(member.topics).union(() if resolved is None else resolved.topics)

    def subscribed_topics(self) -> frozenset[str]:
        """What its members read, by name or by pattern."""
        return frozenset().union(*(self.wanted(member) for member in self.members.values()))

    def tombstones(self) -> tuple[ConsumerRecord, ...]:
        """What to write down to forget all of it."""
        group_id = self.group_id
        return (
            *(CurrentDropped(group_id, member_id) for member_id in self.currents),
            *(TargetDropped(group_id, member_id) for member_id in self.targets),
            TargetEpochDropped(group_id),
            *(MemberDropped(group_id, member_id) for member_id in self.members),
            *(PatternDropped(group_id, pattern) for pattern in self.patterns),
            EpochDropped(group_id),
        )

    def replay(self, record: ConsumerRecord) -> None:
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
                self._own(self.currents.get(record.member_id), record)
                self.currents[record.member_id] = record
            case PatternResolved():
                self.patterns[record.pattern] = record
            case _:
                self._replay_loss(record)

    def _replay_loss(self, record: ConsumerRecord) -> None:
        match record:
            case MemberDropped(_, member_id):
                self._replay_departure(member_id)
            case TargetDropped(_, member_id):
                self.targets.pop(member_id, None)
            case CurrentDropped(_, member_id):
                self._own(self.currents.pop(member_id, None), None)
            case PatternDropped(_, pattern):
                self.patterns.pop(pattern, None)
            case _:
                pass  # the group itself goes as a whole

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

    def _own(self, before: CurrentSet | None, after: CurrentSet | None) -> None:
        had = NOTHING if before is None else before.assigned | before.revoking
        has = NOTHING if after is None else after.assigned | after.revoking
        for partition in had - has:
            if before is not None and self.owners.get(partition) == before.member_id:
                del self.owners[partition]
        if after is not None:
            for partition in has - had:
                self.owners[partition] = after.member_id
