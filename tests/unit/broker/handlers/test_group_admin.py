"""Groups that are listed, described and deleted: each requested group has a result."""

from pathlib import Path

import pytest

from fakes.handled import Handled, handle
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.classic_groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    ListGroupsRequest,
)


async def join(handled: Handled, group_id: str) -> None:
    """One member that has not synced."""
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    response = await handled.call(ApiKey.JOIN_GROUP, request, 3)
    assert response.error_code == 0


@pytest.mark.parametrize(
    ("version", "code"), [(5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_group_that_does_not_exist_is_dead(tmp_path: Path, version: int, code: int) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        request = DescribeGroupsRequest(groups=["gone"])
        (group,) = (await handled.call(ApiKey.DESCRIBE_GROUPS, request, version)).groups
        assert (group.group_id, group.group_state, group.error_code) == ("gone", "Dead", code)

    handle(tmp_path, scenario)


def test_groups_are_listed_by_state_and_type_in_any_case(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        await join(handled, "g")
        for states, types, names in (
            ([], [], ["g"]),
            (["completingrebalance"], ["CLASSIC"], ["g"]),
            (["Stable"], [], []),
            ([], ["consumer"], []),
        ):
            request = ListGroupsRequest(states_filter=states, types_filter=types)
            response = await handled.call(ApiKey.LIST_GROUPS, request, 5)
            assert [group.group_id for group in response.groups] == names

    handle(tmp_path, scenario)


def test_a_group_with_members_cannot_be_deleted(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        await join(handled, "g")
        request = DeleteGroupsRequest(groups_names=["g", "gone", "g"])
        response = await handled.call(ApiKey.DELETE_GROUPS, request, 2)
        results = [(result.group_id, result.error_code) for result in response.results]
        expected = [("g", ErrorCode.NON_EMPTY_GROUP), ("gone", ErrorCode.GROUP_ID_NOT_FOUND)]
        assert results == expected

    handle(tmp_path, scenario)
