"""ListPartitionReassignments: replicas do not move, so no move is ever under way."""

from pathlib import Path

import pytest

from fakes.handled import Handled, handle
from ottla.protocol.api import ApiKey
from ottla.protocol.codec import decode, encode
from ottla.protocol.messages.placement import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopic,
)


@pytest.mark.parametrize("is_all", [True, False])
def test_no_move_is_under_way_in_all_topics_or_in_one(tmp_path: Path, is_all: bool) -> None:
    topic = ListPartitionReassignmentsTopic(name="t", partition_indexes=[0])
    request = ListPartitionReassignmentsRequest(topics=None if is_all else [topic])

    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        response = await handled.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, request, 0)
        assert (response.error_code, response.topics) == (0, [])
        wire = encode(response, 0)
        assert decode(ListPartitionReassignmentsResponse, 0, wire).error_message is None

    handle(tmp_path, scenario)
