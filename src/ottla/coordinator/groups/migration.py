"""Groups that change their protocol while their members live: what to write down for it.

Members of a classic group go into a consumer group as they are, with the assignment they have,
and are asked to join again. The other way round they keep what they have until they have made an
assignment of their own: not what they were to have, for should the group change back before they
let go, somebody else would be given what they still read.
"""

from ottla.coordinator.groups.classic_group import ClassicGroup, Member
from ottla.coordinator.groups.consumer_group import ConsumerGroup
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


def to_consumer_records(group: ClassicGroup, topics: Topics) -> list[ConsumerRecord] | None:
    """A consumer group of the members of a classic one; None if they do not speak its language.

    Its first epoch is the last generation: for its members nothing goes back.
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
        # Clients that gave a partition to two members did wrong; it is the first one's from now on.
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
    """A classic group of the members of a consumer group that all use the older protocol."""
    members = [member for member in group.members.values() if member.classic is not None]
    assert len(members) == len(group.members)
    protocol = _common_protocol(members)
    return GroupStored(
        group_id=group.group_id,
        protocol_type=CONSUMER,
        generation=group.written.epoch,
        protocol=protocol,
        leader=members[0].member_id if members else None,
        changed_ms=TimestampMs(now_ms),
        members=tuple(
            _classic(member, protocol, to_names(group.written.held(member.member_id), topics))
            for member in members
        ),
    )


def _common_protocol(members: list[MemberStored]) -> str | None:
    """The first wish of the first that all know; whoever joins has been checked for this."""
    for member in members[:1]:
        for name, _ in _protocols(member):
            if all(name in dict(_protocols(other)) for other in members):
                return name
    return None


def _classic(
    member: MemberStored, protocol: str | None, held: dict[str, list[int]]
) -> StoredMember:
    assert member.classic is not None
    metadata = dict(_protocols(member)).get(protocol or "", b"")
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
    assert member.classic is not None
    return member.classic.protocols
