"""Responses to members of classic groups while the coordinator reads its log."""

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
    SyncGroupResponse,
)

CONTEXT = cast("RequestContext", None)  # neither handler looks at it


class LoadingCoordinator:
    """A coordinator that is still reading its log."""

    def submit(self, group_id: str, ticket: Ticket[object], decide: object) -> None:
        raise CoordinatorLoadInProgress("the group is being read from the log")


class FakeServices:
    groups = cast("GroupCoordinator", LoadingCoordinator())


SERVICES = cast("Services", FakeServices())


def test_a_heartbeat_is_believed_while_groups_are_being_read() -> None:
    """A client leaves its group on any other response; its session begins anew after the load."""
    response = Heartbeat(SERVICES)(HeartbeatRequest(group_id="g"), CONTEXT)
    assert isinstance(response, HeartbeatResponse)
    assert response.error_code == ErrorCode.NONE


def test_a_sync_is_told_to_join_again_while_groups_are_being_read() -> None:
    response = SyncGroup(SERVICES)(SyncGroupRequest(group_id="g"), CONTEXT)
    assert isinstance(response, SyncGroupResponse)
    assert response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
