"""What members of classic groups are told when nobody can look at their group yet."""

import asyncio
from typing import cast

from ottla.broker.handlers.classic_groups import Heartbeat, SyncGroup
from ottla.broker.services import RequestContext, Services
from ottla.coordinator.groups.coordinator import GroupCoordinator
from ottla.coordinator.runtime.decision import Ticket
from ottla.errors import CoordinatorLoadInProgress, ErrorCode
from ottla.protocol.messages.classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    SyncGroupRequest,
)

CONTEXT = cast("RequestContext", None)  # neither handler looks at it


class LoadingCoordinator:
    """A coordinator that is still reading its log."""

    async def run(self, group_id: str, decide: object) -> object:
        raise CoordinatorLoadInProgress("the group is being read from the log")

    def submit(self, group_id: str, ticket: Ticket[object], decide: object) -> None:
        raise CoordinatorLoadInProgress("the group is being read from the log")


class FakeServices:
    groups = cast("GroupCoordinator", LoadingCoordinator())


SERVICES = cast("Services", FakeServices())


def test_a_heartbeat_is_believed_while_groups_are_being_read() -> None:
    """A client that hears anything else gives up; its session begins anew after the load."""
    answer = Heartbeat(SERVICES)(HeartbeatRequest(group_id="g"), CONTEXT)
    assert isinstance(answer, HeartbeatResponse)
    assert answer.error_code == ErrorCode.NONE


def test_a_sync_is_told_to_join_again_while_groups_are_being_read() -> None:
    answer = asyncio.run(SyncGroup(SERVICES)(SyncGroupRequest(group_id="g"), CONTEXT))
    assert answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
