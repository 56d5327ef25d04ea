"""Replicas do not move and no election is needed: the codes are those that Kafka gives for it.

Seen with a broker of Apache Kafka 4.3.1, single as this one.
"""

from pathlib import Path
from typing import Final

import pytest

from fakes.handled import Handled, handle
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.codec import decode, encode
from ottla.protocol.messages.placement import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopic,
    ReassignablePartition,
    ReassignableTopic,
)

PREFERRED, UNCLEAN, NO_ELECTION = 0, 1, 7
UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
BAD_REPLICAS: Final = ErrorCode.INVALID_REPLICA_ASSIGNMENT


async def moved(
    handled: Handled, topic: str, index: int, replicas: list[int] | None
) -> tuple[int, str]:
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=[partition])]
    )
    response = await handled.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, 1)
    assert (response.error_code, response.error_message) == (0, None)
    (found,) = response.responses
    assert (found.name, found.partitions[0].partition_index) == (topic, index)
    return found.partitions[0].error_code, found.partitions[0].error_message or ""


def test_a_partition_may_stay_and_nothing_else(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        assert await moved(handled, "t", 0, [0]) == (0, "")
        code, text = await moved(handled, "t", 0, None)
        assert code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert text == "no move of the partition is under way"
        assert (await moved(handled, "no", 0, [0]))[0] is UNKNOWN
        assert (await moved(handled, "no", 0, None))[0] is UNKNOWN
        assert await moved(handled, "t", 1, [0]) == (UNKNOWN, "there is no partition t-1")
        assert await moved(handled, "t", 0, [7]) == (BAD_REPLICAS, "there is no broker 7")
        assert (await moved(handled, "t", 0, [0, 0]))[0] is BAD_REPLICAS
        assert (await moved(handled, "t", 0, []))[0] is BAD_REPLICAS
        assert (await moved(handled, "t", 0, [-1]))[0] is BAD_REPLICAS

    handle(tmp_path, scenario)


async def elected(
    handled: Handled, kind: int, topics: list[ElectLeadersTopic] | None
) -> tuple[int, dict[tuple[str, int], int]]:
    request = ElectLeadersRequest(election_type=kind, topic_partitions=topics)
    response = await handled.call(ApiKey.ELECT_LEADERS, request, 2)
    codes = {
        (topic.topic, one.partition_id): one.error_code
        for topic in response.replica_election_results
        for one in topic.partition_result
    }
    assert all(
        one.error_message
        for topic in response.replica_election_results
        for one in topic.partition_result
    )
    return response.error_code, codes


def test_an_election_is_not_needed_where_there_is_a_leader(tmp_path: Path) -> None:
    topics = [
        ElectLeadersTopic(topic="t", partitions=[0, 1, 2]),
        ElectLeadersTopic(topic="no", partitions=[0]),
    ]

    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t", partitions=2)
        needless = ErrorCode.ELECTION_NOT_NEEDED
        expected = {("t", 0): needless, ("t", 1): needless, ("t", 2): UNKNOWN, ("no", 0): UNKNOWN}
        for kind in (PREFERRED, UNCLEAN):
            assert await elected(handled, kind, topics) == (0, expected)
            assert await elected(handled, kind, None) == (0, {})
            assert await elected(handled, kind, []) == (0, {})
        code, codes = await elected(handled, NO_ELECTION, topics[:1])
        assert code is ErrorCode.INVALID_REQUEST
        assert codes["t", 0] is ErrorCode.INVALID_REQUEST

    handle(tmp_path, scenario)


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
