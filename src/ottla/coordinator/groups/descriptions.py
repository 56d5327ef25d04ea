"""Groups as ListGroups, the requests that describe groups, and metrics show them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ottla.coordinator.groups.classic_group import ClassicGroup, State
from ottla.coordinator.groups.consumer_group import ConsumerGroup
from ottla.coordinator.groups.consumer_group_state import ConsumerGroupState
from ottla.coordinator.groups.share_assignor import NAME as SHARE_ASSIGNOR
from ottla.coordinator.groups.share_group import ShareGroup, ShareGroupState
from ottla.coordinator.groups.topics import Partitions


class GroupType(StrEnum):
    """Types by the names that clients and tools show."""

    CLASSIC = "Classic"
    CONSUMER = "Consumer"
    SHARE = "Share"


class ListedGroup(NamedTuple):
    """A group in a list of groups."""

    group_id: str
    protocol_type: str
    state: State | ConsumerGroupState | ShareGroupState
    type: GroupType


class GroupSummary(NamedTuple):
    """A group as metrics count it."""

    group_id: str
    state: State | ConsumerGroupState | ShareGroupState
    members_count: int


class DescribedMember(NamedTuple):
    """A member in the description of its classic group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A classic group; metadata and assignments are empty while the group rebalances."""

    group_id: str
    state: State
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


class DescribedConsumer(NamedTuple):
    """A member in the description of its consumer group."""

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
    """A consumer group."""

    group_id: str
    state: ConsumerGroupState
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]


class DescribedSharer(NamedTuple):
    """A member in the description of its share group."""

    member_id: str
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assigned: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupDescription:
    """A share group."""

    group_id: str
    state: ShareGroupState
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedSharer, ...]


def list_group(group: ClassicGroup | ConsumerGroup) -> ListedGroup:
    is_consumer = isinstance(group, ConsumerGroup)
    group_type = GroupType.CONSUMER if is_consumer else GroupType.CLASSIC
    return ListedGroup(group.group_id, group.protocol_type or "", group.state, group_type)


def describe_group(group: ClassicGroup) -> GroupDescription:
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


def describe_consumer_group(group: ConsumerGroup) -> ConsumerGroupDescription:
    return ConsumerGroupDescription(
        group_id=group.group_id,
        state=group.state,
        epoch=group.replayed.epoch,
        target_epoch=group.replayed.target_epoch,
        assignor=group.assignor,
        members=tuple(
            DescribedConsumer(
                member.member_id,
                member.instance_id,
                member.rack_id,
                group.replayed.current(member.member_id).epoch,
                member.client_id,
                member.client_host,
                member.topics,
                member.pattern,
                group.replayed.current(member.member_id).assigned,
                group.replayed.target(member.member_id),
                member.classic is not None,
            )
            for member in group.members.values()
        ),
    )


def describe_share_group(group: ShareGroup) -> ShareGroupDescription:
    return ShareGroupDescription(
        group_id=group.group_id,
        state=group.state,
        epoch=group.epoch,
        target_epoch=group.target_epoch,
        assignor=SHARE_ASSIGNOR,
        members=tuple(
            DescribedSharer(
                member.member_id,
                member.rack_id,
                group.current(member.member_id).epoch,
                member.client_id,
                member.client_host,
                member.topics,
                group.current(member.member_id).assigned,
            )
            for member in group.members.values()
        ),
    )
