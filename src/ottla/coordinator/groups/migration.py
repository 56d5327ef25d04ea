"""Groups that change their protocol while their members are running: the records of that.

Members of a classic group go into a consumer group as they are, with the assignment they have,
and are asked to join again. The other way round they keep the partitions they hold, not their
targets, until they have made an assignment of their own: should the group change back before they
give up a partition, another member would be assigned what they still read.
"""

from ottla.coordinator.groups.classic_group import ClassicGroup
from ottla.coordinator.groups.classic_membership import Member
from ottla.coordinator.groups.consumer_group import ConsumerGroup, ConsumerLimits
from ottla.coordinator.groups.consumer_records import (
    ClassicPart,
    ConsumerRecord,
    CurrentSet,
    EpochSet,
    MemberStored,
    TargetEpochSet,
    TargetSet,
)
from ottla.coordinator.groups.records import GroupStored, StoredMember
from ottla.coordinator.groups.topics import IdPartition, Partitions, Topics, of_names, to_names
from ottla.model import TimestampMs
from ottla.protocol.consumer_protocol import (
    CONSUMER,
    assignment_bytes,
    parse_assignment,
    parse_subscription,
)


def may_upgrade(group: ClassicGroup, limits: ConsumerLimits) -> bool:
    """True if the settings let a classic group become a consumer group; an empty one always may."""
    return not group.members or (limits.allows_upgrade and len(group.members) <= limits.members_max)


def may_downgrade(group: ConsumerGroup, limits: ConsumerLimits) -> bool:
    """True if only classic members are left, and the settings let them be a classic group."""
    return (
        limits.allows_downgrade
        and group.replayed.is_classic_only
        and len(group.members) <= limits.classic.members_max
    )


def to_consumer_records(group: ClassicGroup, topics: Topics) -> list[ConsumerRecord] | None:
    """A consumer group with the members of a classic one; None if their bytes are not consumers'.

    Its first epoch is the last generation: for its members no epoch goes back.
    """
    if group.members and group.protocol_type != CONSUMER:
        return None
    group_id, epoch = group.group_id, group.generation
    members: list[ConsumerRecord] = []
    targets: list[ConsumerRecord] = []
    currents: list[ConsumerRecord] = []
    taken: set[IdPartition] = set()
    for member in group.members.values():
        stored = _stored(group_id, member)
        named = parse_assignment(member.assignment)
        if stored is None or named is None:
            return None
        # If clients assigned a partition to two members, the first one keeps it.
        assigned = of_names(named, topics) - taken
        taken |= assigned
        members.append(stored)
        targets.append(TargetSet(group_id, member.member_id, assigned))
        currents.append(_current(group_id, member.member_id, epoch, assigned))
    first = EpochSet(group_id=group_id, epoch=epoch)
    return [*members, first, *targets, TargetEpochSet(group_id, epoch), *currents]


def _stored(group_id: str, member: Member) -> MemberStored | None:
    subscription = parse_subscription(member.protocols[0].metadata)
    if subscription is None:
        return None
    return MemberStored(
        group_id=group_id,
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(subscription.topics)),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicPart(member.session_timeout_ms, member.protocols),
    )


def _current(group_id: str, member_id: str, epoch: int, assigned: Partitions) -> CurrentSet:
    return CurrentSet(
        group_id=group_id,
        member_id=member_id,
        epoch=epoch,
        previous_epoch=epoch,
        assigned=assigned,
    )


def to_classic_record(group: ConsumerGroup, topics: Topics, now_ms: int) -> GroupStored:
    """A classic group with the members of a consumer group that all use the classic protocol."""
    assert group.replayed.is_classic_only, "only classic members are left"
    members = list(group.members.values())
    protocol = _common_protocol(members)
    return GroupStored(
        group_id=group.group_id,
        protocol_type=CONSUMER,
        generation=group.replayed.epoch,
        protocol=protocol,
        leader=members[0].member_id,
        changed_ms=TimestampMs(now_ms),
        members=tuple(
            _classic(member, protocol, to_names(group.replayed.held(member.member_id), topics))
            for member in members
        ),
    )


def _common_protocol(members: list[MemberStored]) -> str:
    """The first protocol of the first member that all members support."""
    names = [name for name, _ in _protocols(members[0])]
    common = [name for name in names if all(name in dict(_protocols(one)) for one in members)]
    assert common, "every join was checked for a protocol that all members support"
    return common[0]


def _classic(member: MemberStored, protocol: str, held: dict[str, list[int]]) -> StoredMember:
    assert member.classic is not None, "only classic members become members of a classic group"
    metadata = dict(_protocols(member))[protocol]
    subscription = parse_subscription(metadata)
    version = 0 if subscription is None else subscription.version
    return StoredMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        subscription=metadata,
        assignment=assignment_bytes(held, version),
    )


def _protocols(member: MemberStored) -> tuple[tuple[str, bytes], ...]:
    assert member.classic is not None, "only classic members become members of a classic group"
    return member.classic.protocols
