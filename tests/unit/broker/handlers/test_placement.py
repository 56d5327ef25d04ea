"""Moves, elections, drained and removed brokers, as a broker alone answers requests for them.

Its codes are those of a broker of Apache Kafka 4.3.1, single as this one. Decisions for several
brokers are in `cluster/controller/test_reassignment.py`.
"""

from pathlib import Path
from typing import Final

import pytest

from fakes.cluster_images import broker
from fakes.handled import Handled, handle
from ottla.cluster.controller.brokers import note_dead, note_ready, register_broker
from ottla.cluster.state import ClusterState
from ottla.errors import ErrorCode
from ottla.model import BrokerId
from ottla.protocol.api import ApiKey
from ottla.protocol.codec import decode, encode
from ottla.protocol.messages.cluster import UnregisterBrokerRequest
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
        assert await moved(handled, "t", 0, [7]) == (
            BAD_REPLICAS,
            "there is no broker 7: choose from [0]",
        )
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


def test_a_move_that_is_under_way_is_listed_and_can_be_cancelled(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t", partitions=2)
        state = handled.services.state
        await add_broker(state, 5)
        assert await moved(handled, "t", 1, [5, 0]) == (0, "")
        assert await listed(handled, None) == {("t", 1): ([5, 0], [5], [])}
        assert await moved(handled, "t", 1, [5]) == (0, "")
        assert await listed(handled, [("t", [0, 1, 9]), ("no", [0])]) == {
            ("t", 1): ([5, 0], [5], [0])
        }
        assert await listed(handled, [("t", [0])]) == {}
        assert await moved(handled, "t", 1, None) == (0, "")
        assert await listed(handled, None) == {}

    handle(tmp_path, scenario)


async def add_broker(state: ClusterState, number: int) -> None:
    """Another broker registers, and is alive as far as the store knows."""
    other = broker(number)
    await state.commit(lambda image: register_broker(image, other))
    epoch = state.image.registered[other.id].epoch
    await state.commit(lambda image: note_ready(image, other.id, epoch))


async def listed(
    handled: Handled, topics: list[tuple[str, list[int]]] | None
) -> dict[tuple[str, int], tuple[list[int], list[int], list[int]]]:
    wanted = None
    if topics is not None:
        wanted = [
            ListPartitionReassignmentsTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics
        ]
    request = ListPartitionReassignmentsRequest(topics=wanted)
    response = await handled.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, request, 0)
    return {
        (topic.name, one.partition_index): (
            one.replicas,
            one.adding_replicas,
            one.removing_replicas,
        )
        for topic in response.topics
        for one in topic.partitions
    }


def test_brokers_are_drained_with_a_field_of_our_own_and_removed_when_they_are_gone(
    tmp_path: Path,
) -> None:
    async def drained(handled: Handled, number: int, *, is_draining: bool) -> int:
        request = AlterPartitionReassignmentsRequest(broker_id=number, is_draining=is_draining)
        response = await handled.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, 1)
        assert bool(response.broker_error_code) == bool(response.broker_error_message)
        return int(response.broker_error_code)

    async def removed(handled: Handled, number: int) -> int:
        request = UnregisterBrokerRequest(broker_id=number)
        response = await handled.call(ApiKey.UNREGISTER_BROKER, request, 0)
        assert bool(response.error_code) == bool(response.error_message)
        return int(response.error_code)

    async def scenario(handled: Handled) -> None:
        state = handled.services.state
        await add_broker(state, 5)
        assert await drained(handled, 5, is_draining=True) == 0
        assert state.image.draining == {5}
        assert await drained(handled, 5, is_draining=True) == 0, (
            "once more, as after a lost response"
        )
        assert await drained(handled, 9, is_draining=True) == ErrorCode.BROKER_ID_NOT_REGISTERED
        assert await removed(handled, 5) == ErrorCode.POLICY_VIOLATION
        epoch = state.image.registered[BrokerId(5)].epoch
        await state.commit(lambda image: note_dead(image, BrokerId(5), epoch))
        assert await drained(handled, 5, is_draining=False) == 0
        assert await removed(handled, 5) == 0
        assert await removed(handled, 5) == ErrorCode.BROKER_ID_NOT_REGISTERED

    handle(tmp_path, scenario)
