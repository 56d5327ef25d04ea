"""Asking about groups, whatever the broker's age."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fakes.scripted_coordinator import ScriptedCoordinator
from ottla.client.client import Client
from ottla.client.errors import NoSuchGroup, Refused
from ottla.client.group_offsets import committed_offsets, delete_offsets
from ottla.client.groups import delete_group, describe_group, list_groups
from ottla.errors import ErrorCode
from ottla.model import Offset, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.consumer_protocol import partitions_bytes
from ottla.protocol.messages import classic_groups, consumer_groups, share_groups
from ottla.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

TP = TopicPartition("orders", 0)


def with_client(
    scenario: Callable[[Client], Awaitable[None]],
    coordinator: ScriptedCoordinator | None = None,
    **scripts: Any,
) -> None:
    served = coordinator or ScriptedCoordinator()
    for name, script in scripts.items():
        served.script(ApiKey[name.upper()], script)

    async def run() -> None:
        async with served.broker, asyncio.timeout(10):
            served.topic.endpoint = served.broker.endpoint
            async with Client([served.broker.endpoint], timeout_s=1) as client:
                await scenario(client)

    asyncio.run(run())


def described_classic(
    request: classic_groups.DescribeGroupsRequest,
) -> classic_groups.DescribeGroupsResponse:
    member = classic_groups.DescribedGroupMember(
        member_id="m",
        client_id="c",
        client_host="/127.0.0.1",
        member_assignment=partitions_bytes([TP]),
    )
    group = classic_groups.DescribedGroup(
        group_id=request.groups[0],
        group_state="Stable",
        protocol_type="consumer",
        protocol_data="range",
        members=[member],
    )
    return classic_groups.DescribeGroupsResponse(groups=[group])


def described_assigned(
    request: consumer_groups.ConsumerGroupDescribeRequest,
) -> consumer_groups.ConsumerGroupDescribeResponse:
    topic = consumer_groups.DescribedTopicPartitions(topic_name="orders", partitions=[0])
    member = consumer_groups.DescribedMember(
        member_id="m",
        client_id="c",
        client_host="/127.0.0.1",
        member_epoch=4,
        assignment=consumer_groups.DescribedAssignment(topic_partitions=[topic]),
    )
    group = consumer_groups.DescribedGroup(
        group_id=request.group_ids[0],
        group_state="Stable",
        group_epoch=4,
        assignor_name="uniform",
        members=[member],
    )
    return consumer_groups.ConsumerGroupDescribeResponse(groups=[group])


def not_assigned(
    request: consumer_groups.ConsumerGroupDescribeRequest,
) -> consumer_groups.ConsumerGroupDescribeResponse:
    group = consumer_groups.DescribedGroup(
        group_id=request.group_ids[0], error_code=ErrorCode.GROUP_ID_NOT_FOUND
    )
    return consumer_groups.ConsumerGroupDescribeResponse(groups=[group])


def test_a_group_whose_broker_assigns_is_described_as_one() -> None:
    async def scenario(client: Client) -> None:
        group = await describe_group(client, "g")
        assert (group.type, group.assignor, group.epoch) == ("Consumer", "uniform", 4)
        (member,) = group.members
        assert (member.host, member.partitions) == ("127.0.0.1", (TP,))

    with_client(scenario, consumer_group_describe=described_assigned)


def test_a_classic_group_is_described_where_both_types_are_known() -> None:
    async def scenario(client: Client) -> None:
        group = await describe_group(client, "g")
        assert (group.type, group.assignor, group.epoch) == ("Classic", "range", None)
        (member,) = group.members
        assert (member.host, member.partitions) == ("127.0.0.1", (TP,))

    with_client(scenario, consumer_group_describe=not_assigned, describe_groups=described_classic)


def test_a_broker_that_does_not_assign_is_not_asked_about_it() -> None:
    async def scenario(client: Client) -> None:
        assert (await describe_group(client, "g")).type == "Classic"

    coordinator = ScriptedCoordinator()
    del coordinator.broker.versions[ApiKey.CONSUMER_GROUP_DESCRIBE]
    with_client(scenario, coordinator, describe_groups=described_classic)


def test_assignments_of_other_groups_are_nobodys_business() -> None:
    def connect(
        request: classic_groups.DescribeGroupsRequest,
    ) -> classic_groups.DescribeGroupsResponse:
        answer = described_classic(request)
        answer.groups[0].protocol_type = "connect"
        return answer

    async def scenario(client: Client) -> None:
        (member,) = (await describe_group(client, "g")).members
        assert member.partitions is None

    with_client(scenario, consumer_group_describe=not_assigned, describe_groups=connect)


@pytest.mark.parametrize("version_max", [4, 6])
def test_a_group_that_is_not_there_is_told_apart_in_every_version(version_max: int) -> None:
    def absent(
        request: classic_groups.DescribeGroupsRequest,
    ) -> classic_groups.DescribeGroupsResponse:
        code = ErrorCode.GROUP_ID_NOT_FOUND if version_max == 6 else ErrorCode.NONE
        group = classic_groups.DescribedGroup(group_id="g", group_state="Dead", error_code=code)
        return classic_groups.DescribeGroupsResponse(groups=[group])

    async def scenario(client: Client) -> None:
        with pytest.raises(NoSuchGroup, match="group g: it does not exist"):
            await describe_group(client, "g")

    coordinator = ScriptedCoordinator()
    coordinator.broker.versions[ApiKey.DESCRIBE_GROUPS] = range(version_max + 1)
    with_client(
        scenario,
        coordinator,
        consumer_group_describe=not_assigned,
        describe_groups=absent,
        share_group_describe=not_shared,
    )


def test_a_share_group_is_described_where_it_is_no_classic_one() -> None:
    def absent(
        request: classic_groups.DescribeGroupsRequest,
    ) -> classic_groups.DescribeGroupsResponse:
        group = classic_groups.DescribedGroup(group_id="g", group_state="Dead")
        return classic_groups.DescribeGroupsResponse(groups=[group])

    def shared(request: object) -> share_groups.ShareGroupDescribeResponse:
        topic = share_groups.DescribedTopicPartitions(topic_name="t", partitions=[1, 0])
        member = share_groups.DescribedMember(
            member_id="m",
            client_host="/h",
            assignment=share_groups.DescribedAssignment(topic_partitions=[topic]),
        )
        group = share_groups.DescribedGroup(
            group_id="g", group_state="Stable", group_epoch=3, members=[member]
        )
        return share_groups.ShareGroupDescribeResponse(groups=[group])

    async def scenario(client: Client) -> None:
        found = await describe_group(client, "g")
        assert (found.type, found.state, found.epoch) == ("Share", "Stable", 3)
        (member,) = found.members
        assert member.host == "h"
        assert member.partitions == (TopicPartition("t", 0), TopicPartition("t", 1))

    with_client(
        scenario,
        consumer_group_describe=not_assigned,
        describe_groups=absent,
        share_group_describe=shared,
    )


def not_shared(request: object) -> share_groups.ShareGroupDescribeResponse:
    group = share_groups.DescribedGroup(group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    return share_groups.ShareGroupDescribeResponse(groups=[group])


@pytest.mark.parametrize("version_max", [7, 9])
@pytest.mark.parametrize("tps", [None, [TP]])
def test_offsets_are_read_from_old_brokers_and_new(
    version_max: int, tps: list[TopicPartition] | None
) -> None:
    def fetch(request: OffsetFetchRequest) -> OffsetFetchResponse:
        if version_max < 8:
            assert (request.topics is None) == (tps is None)
            old = [
                OffsetFetchResponsePartition(partition_index=0, committed_offset=7, metadata=""),
                OffsetFetchResponsePartition(partition_index=1, committed_offset=-1, metadata=""),
            ]
            return OffsetFetchResponse(
                topics=[OffsetFetchResponseTopic(name="orders", partitions=old)]
            )
        assert (request.groups[0].topics is None) == (tps is None)
        new = [
            OffsetFetchResponsePartitions(partition_index=0, committed_offset=7, metadata=""),
            OffsetFetchResponsePartitions(partition_index=1, committed_offset=-1, metadata=""),
        ]
        topic = OffsetFetchResponseTopics(name="orders", partitions=new)
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=[topic])])

    async def scenario(client: Client) -> None:
        assert await committed_offsets(client, "g", tps) == {TP: Offset(7)}

    coordinator = ScriptedCoordinator()
    coordinator.broker.versions[ApiKey.OFFSET_FETCH] = range(1, version_max + 1)
    coordinator.broker.versions[ApiKey.FIND_COORDINATOR] = range(4 if version_max < 8 else 7)
    with_client(scenario, coordinator, offset_fetch=fetch)


def test_groups_are_listed_by_name_with_their_coordinator() -> None:
    listed = [
        classic_groups.ListedGroup(
            group_id=name, protocol_type="consumer", group_state="Empty", group_type="Classic"
        )
        for name in ("b", "a")
    ]

    async def scenario(client: Client) -> None:
        found = await list_groups(client)
        assert [(group.group_id, group.coordinator) for group in found] == [("a", 0), ("b", 0)]
        assert (found[0].state, found[0].type) == ("Empty", "Classic")

    with_client(
        scenario, list_groups=lambda request: classic_groups.ListGroupsResponse(groups=listed)
    )


def test_a_list_that_is_still_being_read_is_asked_for_again() -> None:
    answers = [
        classic_groups.ListGroupsResponse(),
        classic_groups.ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ]

    async def scenario(client: Client) -> None:
        assert await list_groups(client) == []
        assert answers == []

    with_client(scenario, list_groups=lambda request: answers.pop())


def test_a_group_in_use_is_not_deleted() -> None:
    def refuse(request: classic_groups.DeleteGroupsRequest) -> classic_groups.DeleteGroupsResponse:
        result = classic_groups.DeletableGroupResult(
            group_id="g", error_code=ErrorCode.NON_EMPTY_GROUP
        )
        return classic_groups.DeleteGroupsResponse(results=[result])

    async def scenario(client: Client) -> None:
        with pytest.raises(Refused, match="group g: it has members: stop them first"):
            await delete_group(client, "g")

    with_client(scenario, delete_groups=refuse)


def test_each_offset_is_forgotten_or_refused_by_itself() -> None:
    def forget(request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        codes = [ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
        partitions = [
            OffsetDeleteResponsePartition(partition_index=index, error_code=code)
            for index, code in enumerate(codes)
        ]
        return OffsetDeleteResponse(
            topics=[OffsetDeleteResponseTopic(name="orders", partitions=partitions)]
        )

    async def scenario(client: Client) -> None:
        other = TopicPartition("orders", 1)
        refused = await delete_offsets(client, "g", [TP, other])
        assert {tp: problem.code for tp, problem in refused.items()} == {
            other: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        }

    with_client(scenario, offset_delete=forget)
