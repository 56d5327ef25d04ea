"""What members of classic groups are told when nobody can look at their group yet."""

import asyncio
from typing import cast

from ottla.broker.group_coordinator import Decide, GroupCoordinator
from ottla.broker.handlers.classic_groups import Heartbeat, SyncGroup
from ottla.broker.routes import RequestContext
from ottla.errors import CoordinatorLoadInProgress, ErrorCode
from ottla.protocol.messages.classic_groups import HeartbeatRequest, SyncGroupRequest

CONTEXT = cast("RequestContext", None)  # neither handler looks at it


class LoadingCoordinator:
    """Is still reading its log, whoever asks."""

    async def run(self, group_id: str, decide: Decide) -> object:
        raise CoordinatorLoadInProgress("the group is being read from the log")


COORDINATOR = cast("GroupCoordinator", LoadingCoordinator())


def test_a_heartbeat_is_believed_while_groups_are_being_read() -> None:
    """A client that hears anything else gives up; its session begins anew after the load."""
    answer = asyncio.run(Heartbeat(COORDINATOR)(HeartbeatRequest(group_id="g"), CONTEXT))
    assert answer.error_code == ErrorCode.NONE


def test_a_sync_is_told_to_join_again_while_groups_are_being_read() -> None:
    answer = asyncio.run(SyncGroup(COORDINATOR)(SyncGroupRequest(group_id="g"), CONTEXT))
    assert answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
