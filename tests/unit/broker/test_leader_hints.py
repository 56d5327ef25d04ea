"""Leader hints: an error says who leads, and where, to clients that know the field (KIP-951)."""

from pathlib import Path

import pytest

from fakes import build
from fakes.broker_pair import TOPIC, BrokerPair, with_broker_pair
from ottla.broker.app import Broker
from ottla.broker.leader_hints import leader_hint
from ottla.client.connection import Connection
from ottla.errors import ErrorCode
from ottla.model import Uuid
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)


def topic_id(broker: Broker) -> Uuid:
    image = broker.services.state.image
    return image.topics[TOPIC].id


@pytest.mark.parametrize("count", [1, 2], ids=["one batch", "two batches"])
def test_a_produce_to_a_follower_is_told_who_leads(tmp_path: Path, count: int) -> None:
    async def scenario(pair: BrokerPair) -> None:
        connection = await Connection.open(pair.follower.advertised, client_id="test")
        batches = [
            PartitionProduceData(index=0, records=bytes(build.batch())) for _ in range(count)
        ]
        topic = TopicProduceData(topic_id=topic_id(pair.follower), partition_data=batches)
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
        response = await connection.send(request, ProduceResponse)
        connection.close()
        for result in response.responses[0].partition_responses:
            assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert result.current_leader.leader_id == 1
            assert result.current_leader.leader_epoch == 0
        (endpoint,) = response.node_endpoints
        assert (endpoint.node_id, endpoint.host) == (1, "127.0.0.1")
        assert (endpoint.port, endpoint.rack) == (pair.leader.advertised.port, "rack1")

    with_broker_pair(tmp_path, scenario)


def test_a_fetch_from_a_follower_or_of_an_old_epoch_is_told_who_leads(tmp_path: Path) -> None:
    async def fetch(broker: Broker, epoch: int) -> FetchResponse:
        connection = await Connection.open(broker.advertised, client_id="test")
        wanted = FetchPartition(partition=0, current_leader_epoch=epoch, partition_max_bytes=1000)
        topic = FetchTopic(topic_id=topic_id(broker), partitions=[wanted])
        request = FetchRequest(max_wait_ms=0, max_bytes=1000, session_epoch=-1, topics=[topic])
        response = await connection.send(request, FetchResponse)
        connection.close()
        return response

    async def scenario(pair: BrokerPair) -> None:
        response = await fetch(pair.follower, -1)
        (result,) = response.responses[0].partitions
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert result.current_leader.leader_id == 1
        (endpoint,) = response.node_endpoints
        assert (endpoint.node_id, endpoint.port) == (1, pair.leader.advertised.port)

        fine = await fetch(pair.leader, 0)
        assert fine.responses[0].partitions[0].error_code == 0
        assert fine.node_endpoints == []

    with_broker_pair(tmp_path, scenario)


def test_a_partition_that_does_not_exist_has_no_hint(tmp_path: Path) -> None:
    async def scenario(pair: BrokerPair) -> None:
        image = pair.leader.services.state.image
        assert leader_hint(image, TOPIC, 0) is not None
        assert leader_hint(image, TOPIC, 1) is None
        assert leader_hint(image, "other", 0) is None
        assert leader_hint(image, bytes(16), 0) is None

    with_broker_pair(tmp_path, scenario)
