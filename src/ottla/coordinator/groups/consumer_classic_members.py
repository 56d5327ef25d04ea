"""Members of a consumer group that use the classic protocol: their requests, and their results."""

from ottla.coordinator.groups.classic_protocol import GroupLimits, Join, Sync, Synced
from ottla.coordinator.groups.consumer_group_state import ReplayedGroup
from ottla.coordinator.groups.consumer_records import ClassicPart, MemberStored
from ottla.coordinator.groups.topics import Partitions, Topics, to_names
from ottla.errors import InconsistentGroupProtocol, InvalidSessionTimeout
from ottla.protocol.consumer_protocol import (
    CONSUMER,
    Subscription,
    assignment_bytes,
    parse_subscription,
)


def check_join(join: Join, group: ReplayedGroup, limits: GroupLimits) -> Subscription:
    """The subscription of a classic member; raises an ApiError if the group cannot serve it."""
    shortest_ms, longest_ms = limits.session_timeout_min_ms, limits.session_timeout_max_ms
    if not shortest_ms <= join.session_timeout_ms <= longest_ms:
        raise InvalidSessionTimeout(
            f"{join.session_timeout_ms} ms are not between {shortest_ms} and {longest_ms}"
        )
    if join.protocol_type != CONSUMER or not group.fits(join):
        raise InconsistentGroupProtocol("the member shares no protocol with the others")
    subscription = parse_subscription(join.protocols[0].metadata)
    if subscription is None:
        raise InconsistentGroupProtocol("the member's metadata is not that of a consumer")
    return subscription


def joining_member(
    group_id: str, member_id: str, join: Join, subscription: Subscription
) -> MemberStored:
    return MemberStored(
        group_id=group_id,
        member_id=member_id,
        instance_id=join.instance_id,
        rack_id=subscription.rack_id,
        client_id=join.client_id,
        client_host=join.client_host,
        topics=tuple(sorted(subscription.topics)),
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        classic=ClassicPart(join.session_timeout_ms, join.protocols),
    )


def check_sync(sync: Sync, member: MemberStored) -> None:
    """Raise InconsistentGroupProtocol if a sync names another protocol than the member's first."""
    name, _ = _first_protocol(member)
    if sync.protocol_type not in {None, CONSUMER} or sync.protocol_name not in {None, name}:
        raise InconsistentGroupProtocol(f"the protocol of the member is {name!r}")


def synced(member: MemberStored, assigned: Partitions, topics: Topics) -> Synced:
    """The assignment in the version of the consumer protocol that the member sends."""
    name, metadata = _first_protocol(member)
    subscription = parse_subscription(metadata)
    version = 0 if subscription is None else subscription.version
    assignment = assignment_bytes(to_names(assigned, topics), version)
    return Synced(protocol_type=CONSUMER, protocol=name, assignment=assignment)


def _first_protocol(member: MemberStored) -> tuple[str, bytes]:
    assert member.classic is not None, "only classic members join and sync"
    return member.classic.protocols[0]
