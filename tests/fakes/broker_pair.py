"""Two brokers in the test's process that share a store; the first leads every partition."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from fakes.loopback import run
from ottla.broker.app import Broker, ServeOptions
from ottla.broker.stores import environment_of
from ottla.client.connection import Connection
from ottla.config import BrokerConfig
from ottla.model import BrokerId, Endpoint, TopicPartition
from ottla.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

TOPIC = "orders"
_TIMEOUT_S = 60


class BrokerPair(NamedTuple):
    """Broker 1 leads the topic's one partition; broker 2 follows it, and is in sync."""

    leader: Broker
    follower: Broker


def with_broker_pair(
    directory: Path, scenario: Callable[[BrokerPair], Awaitable[None]], **settings: str
) -> None:
    """Run a scenario with a new pair; `_` in a setting's name is a dot."""
    raw = {name.replace("_", "."): value for name, value in settings.items()}

    environment = environment_of(f"sqlite:{directory / 'cluster.sqlite'}")

    async def main() -> None:
        brokers: list[Broker] = []
        for number in (1, 2):
            options = ServeOptions(
                data=directory / f"broker{number}",
                listen=Endpoint("127.0.0.1", 0),
                node_id=BrokerId(number),
                config=BrokerConfig.parse(raw),
                rack=f"rack{number}",
            )
            brokers.append(await Broker.start(options, environment))
        try:
            await _wait(lambda: all(_knows_both(broker) for broker in brokers))
            await _create_topic(brokers[0])
            await _wait(lambda: all(_is_in_sync(broker) for broker in brokers))
            await scenario(BrokerPair(*brokers))
        finally:
            for broker in reversed(brokers):
                await broker.stop()

    run(main(), _TIMEOUT_S)


async def _create_topic(broker: Broker) -> None:
    connection = await Connection.open(broker.advertised, client_id="test")
    try:
        replicas = CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])
        topic = CreatableTopic(
            name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=[replicas]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        response = await connection.send(request, CreateTopicsResponse)
        assert response.topics[0].error_code == 0, response
    finally:
        connection.close()


def _knows_both(broker: Broker) -> bool:
    return len(broker.services.state.image.brokers) == 2


def _is_in_sync(broker: Broker) -> bool:
    partition = broker.services.state.image.partition(TopicPartition(TOPIC, 0))
    return partition is not None and len(partition.isr) == 2 and not partition.is_new


async def _wait(is_true: Callable[[], bool]) -> None:
    while not is_true():  # noqa: ASYNC110  # images change in another task
        await asyncio.sleep(0.01)
