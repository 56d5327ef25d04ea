"""Requests on groups: list, describe, delete."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.client.client import Client
from ottla.client.errors import (
    TRANSPORT_ERRORS,
    NoSuchGroup,
    NotSupported,
    check,
    check_group,
)
from ottla.errors import ErrorCode
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.consumer_protocol import CONSUMER, assigned_partitions
from ottla.protocol.messages import classic_groups, consumer_groups, share_groups

_DEAD: Final = "Dead"  # the state of an unknown group in DescribeGroups before version 6
_CLASSIC_TYPE: Final = "Classic"
_CONSUMER_TYPE: Final = "Consumer"
SHARE_TYPE: Final = "Share"
_SHARE: Final = "share"  # protocol type


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A listed group; state and type are empty from older brokers."""

    group_id: str
    type: str
    protocol_type: str
    state: str
    coordinator: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member; `partitions` is None if its assignment has another format than consumers'."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group; `epoch` is None for classic groups."""

    group_id: str
    type: str
    protocol_type: str
    state: str
    assignor: str
    epoch: int | None
    coordinator: BrokerId
    members: tuple[MemberDescription, ...]


async def list_groups(client: Client) -> list[ListedGroup]:
    """Every group of every broker, by name."""

    async def attempt() -> list[ListedGroup]:
        listed = list[ListedGroup]()
        for broker in (await client.describe([])).brokers:
            response = await client.send_to_broker(
                broker, classic_groups.ListGroupsRequest(), classic_groups.ListGroupsResponse
            )
            check(response.error_code, f"the groups of broker {broker}")
            listed += [
                ListedGroup(
                    group_id=item.group_id,
                    type=item.group_type,
                    protocol_type=item.protocol_type,
                    state=item.group_state,
                    coordinator=broker,
                )
                for item in response.groups
            ]
        return sorted(listed, key=lambda item: item.group_id)

    return await client.retry(attempt, on=TRANSPORT_ERRORS)


async def describe_group(client: Client, group_id: str) -> GroupDescription:
    """State, assignor and members of a group, of any type; else `NoSuchGroup`."""

    async def attempt() -> GroupDescription:
        coordinator = await client.coordinator_of(group_id)
        found = await _describe_assigned(client, group_id, coordinator)
        if found is not None:
            return found
        try:
            return await _describe_classic(client, group_id, coordinator)
        except NoSuchGroup:
            found = await _describe_share(client, group_id, coordinator)
            if found is None:
                raise
            return found

    return await client.retry(attempt, on=TRANSPORT_ERRORS)


async def delete_group(client: Client, group_id: str) -> None:
    """Delete a group without members, with its committed offsets."""

    async def attempt() -> None:
        request = classic_groups.DeleteGroupsRequest(groups_names=[group_id])
        response = await client.send_to_coordinator(
            group_id, request, classic_groups.DeleteGroupsResponse
        )
        for result in response.results:
            check_group(result.error_code, group_id)

    await client.retry(attempt)


# Internals


async def _describe_assigned(
    client: Client, group_id: str, coordinator: BrokerId
) -> GroupDescription | None:
    """A group of the consumer protocol (KIP-848); None if it is another or unsupported."""
    request = consumer_groups.ConsumerGroupDescribeRequest(group_ids=[group_id])
    try:
        response = await client.send_to_broker(
            coordinator, request, consumer_groups.ConsumerGroupDescribeResponse
        )
    except NotSupported:
        return None
    (group,) = response.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    check_group(group.error_code, group_id, group.error_message)
    return GroupDescription(
        group_id=group_id,
        type=_CONSUMER_TYPE,
        protocol_type=CONSUMER,
        state=group.group_state,
        assignor=group.assignor_name,
        epoch=group.group_epoch,
        coordinator=coordinator,
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=_host(member.client_host),
                partitions=_assigned(member.assignment.topic_partitions),
            )
            for member in group.members
        ),
    )


class _TopicPartitions(Protocol):
    """The partitions of a topic, as descriptions of members have them."""

    topic_name: str
    partitions: list[int]


def _assigned(topics: Iterable[_TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, one) for topic in topics for one in topic.partitions
        )
    )


async def _describe_share(
    client: Client, group_id: str, coordinator: BrokerId
) -> GroupDescription | None:
    """A share group (KIP-932); None if it is another or unsupported."""
    request = share_groups.ShareGroupDescribeRequest(group_ids=[group_id])
    try:
        response = await client.send_to_broker(
            coordinator, request, share_groups.ShareGroupDescribeResponse
        )
    except NotSupported:
        return None
    (group,) = response.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    check_group(group.error_code, group_id, group.error_message)
    return GroupDescription(
        group_id=group_id,
        type=SHARE_TYPE,
        protocol_type=_SHARE,
        state=group.group_state,
        assignor=group.assignor_name,
        epoch=group.group_epoch,
        coordinator=coordinator,
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=None,
                client_id=member.client_id,
                host=_host(member.client_host),
                partitions=_assigned(member.assignment.topic_partitions),
            )
            for member in group.members
        ),
    )


async def _describe_classic(
    client: Client, group_id: str, coordinator: BrokerId
) -> GroupDescription:
    request = classic_groups.DescribeGroupsRequest(groups=[group_id])
    response = await client.send_to_broker(
        coordinator, request, classic_groups.DescribeGroupsResponse
    )
    (group,) = response.groups
    check_group(group.error_code, group_id, group.error_message)
    if group.group_state == _DEAD:
        raise NoSuchGroup(group_id)
    is_of_consumers = group.protocol_type == CONSUMER
    return GroupDescription(
        group_id=group_id,
        type=_CLASSIC_TYPE,
        protocol_type=group.protocol_type,
        state=group.group_state,
        assignor=group.protocol_data,
        epoch=None,
        coordinator=coordinator,
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                host=_host(member.client_host),
                partitions=assigned_partitions(member.member_assignment)
                if is_of_consumers
                else None,
            )
            for member in group.members
        ),
    )


def _host(address: str) -> str:
    """The address without the slash that Kafka puts before it."""
    return address.removeprefix("/")
