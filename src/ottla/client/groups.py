"""Requests on groups: list, describe, delete, committed offsets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.client.client import Client
from ottla.client.errors import (
    TRANSPORT_ERRORS,
    NoSuchGroup,
    NotSupported,
    Refused,
    check,
)
from ottla.client.partitions import by_topic
from ottla.errors import ErrorCode
from ottla.model import BrokerId, Offset, TopicPartition
from ottla.protocol.consumer_protocol import CONSUMER, assigned_partitions
from ottla.protocol.messages import classic_groups, consumer_groups, share_groups
from ottla.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

# The last versions with topic names: they need no topic ids.
_COMMIT_BY_NAME: Final = 9
_FETCH_BY_NAME: Final = 9
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


@dataclass(frozen=True, slots=True)
class Membership:
    """A membership in a group: the member id and its generation."""

    member_id: str
    generation: int


NO_MEMBER: Final = Membership("", -1)  # commits to a group from outside


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
            _check_group(result.error_code, group_id)

    await client.retry(attempt)


# Offsets


async def committed_offsets(
    client: Client, group_id: str, tps: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Offset]:
    """Committed offsets of these partitions, or of all for None; others are left out."""
    topics = None if tps is None else by_topic(tps)
    return await _committed(client, group_id, _offset_fetch_request(group_id, topics))


async def stable_offsets(client: Client, group_id: str) -> dict[TopicPartition, Offset]:
    """`committed_offsets` of all partitions, once no open transaction may still change them.

    Apache Kafka leaves out partitions whose first commit is in an open transaction: a caller that
    needs those has to make sure that none is open.
    """
    request = _offset_fetch_request(group_id, None, require_stable=True)
    return await _committed(client, group_id, request)


async def _committed(
    client: Client, group_id: str, request: OffsetFetchRequest
) -> dict[TopicPartition, Offset]:
    async def attempt() -> dict[TopicPartition, Offset]:
        response = await client.send_to_coordinator(
            group_id,
            request,
            OffsetFetchResponse,
            version_max=_FETCH_BY_NAME,
        )
        # Since version 8 the response has one result per group; before, it is the result.
        found = response.groups[0] if response.groups else response
        _check_group(found.error_code, group_id)
        committed = dict[TopicPartition, Offset]()
        for topic in found.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                check(partition.error_code, f"group {group_id}, {tp}")
                if partition.committed_offset >= 0:
                    committed[tp] = Offset(partition.committed_offset)
        return committed

    return await client.retry(attempt, on=TRANSPORT_ERRORS)


async def commit_offsets(
    client: Client,
    group_id: str,
    offsets: Mapping[TopicPartition, Offset],
    committer: Membership = NO_MEMBER,
) -> None:
    """Commit offsets of a group; from outside only while it has no members."""
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=committer.generation,
        member_id=committer.member_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=tp.partition,
                        committed_offset=offsets[tp],
                        committed_metadata="",
                    )
                    for tp in tps
                ],
            )
            for topic, tps in by_topic(offsets).items()
        ],
    )

    async def attempt() -> None:
        response = await client.send_to_coordinator(
            group_id, request, OffsetCommitResponse, version_max=_COMMIT_BY_NAME
        )
        for topic in response.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                check(partition.error_code, f"group {group_id}, {tp}")

    await client.retry(attempt, on=TRANSPORT_ERRORS)


async def delete_offsets(
    client: Client, group_id: str, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, Refused]:
    """Delete committed offsets of these partitions; returns the errors by partition."""
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=[
                    OffsetDeleteRequestPartition(partition_index=tp.partition) for tp in wanted
                ],
            )
            for topic, wanted in by_topic(tps).items()
        ],
    )

    async def attempt() -> dict[TopicPartition, Refused]:
        response = await client.send_to_coordinator(group_id, request, OffsetDeleteResponse)
        _check_group(response.error_code, group_id)
        refused = dict[TopicPartition, Refused]()
        for topic in response.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                try:
                    check(partition.error_code, f"group {group_id}, {tp}")
                except Refused as problem:
                    refused[tp] = problem
        return refused

    return await client.retry(attempt, on=TRANSPORT_ERRORS)


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
    _check_group(group.error_code, group_id, group.error_message)
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
    _check_group(group.error_code, group_id, group.error_message)
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
    _check_group(group.error_code, group_id, group.error_message)
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


def _offset_fetch_request(
    group_id: str,
    topics: Mapping[str, list[TopicPartition]] | None,
    *,
    require_stable: bool = False,
) -> OffsetFetchRequest:
    """A request for all versions: those before 8 have one group only."""
    if topics is None:
        group = OffsetFetchRequestGroup(group_id=group_id, topics=None)
        return OffsetFetchRequest(
            group_id=group_id, topics=None, groups=[group], require_stable=require_stable
        )
    wanted = {topic: [tp.partition for tp in tps] for topic, tps in topics.items()}
    return OffsetFetchRequest(
        require_stable=require_stable,
        group_id=group_id,
        topics=[
            OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
            for topic, indexes in wanted.items()
        ],
        groups=[
            OffsetFetchRequestGroup(
                group_id=group_id,
                topics=[
                    OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)
                    for topic, indexes in wanted.items()
                ],
            )
        ],
    )


def _check_group(code: int, group_id: str, detail: str | None = None) -> None:
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise NoSuchGroup(group_id)
    check(code, f"group {group_id}", detail)


def _host(address: str) -> str:
    """The address without the slash that Kafka puts before it."""
    return address.removeprefix("/")
