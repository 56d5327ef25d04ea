"""One connection to one broker, also to one that behaves badly."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fakes.answering_broker import AnsweringBroker, OneTopic, Script
from ottla.client.connection import Connection
from ottla.client.errors import ConnectionLost, DeadlineExceeded, NotSupported, Unreachable
from ottla.model import Endpoint
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.produce import ProduceRequest

METADATA = MetadataRequest(topics=None)


def with_broker(
    metadata: Script,
    scenario: Callable[[AnsweringBroker], Awaitable[None]],
    *,
    change: Callable[[AnsweringBroker], None] = lambda broker: None,
) -> None:
    async def run() -> None:
        broker = AnsweringBroker({ApiKey.METADATA: metadata, ApiKey.PRODUCE: lambda _: None})
        change(broker)
        async with broker, asyncio.timeout(10):
            await scenario(broker)

    asyncio.run(run())


def test_a_request_gets_its_response_in_the_highest_common_version() -> None:
    def older(broker: AnsweringBroker) -> None:
        broker.versions[ApiKey.METADATA] = range(8)

    async def scenario(broker: AnsweringBroker) -> None:
        connection = await Connection.open(broker.endpoint)
        response = await connection.send(METADATA, MetadataResponse)
        assert [topic.name for topic in response.topics] == ["orders"]
        assert [version for _, version, _ in broker.asked] == [7]
        await connection.send(METADATA, MetadataResponse, version_max=4)
        assert [version for _, version, _ in broker.asked] == [7, 4]
        connection.close()

    with_broker(OneTopic("orders"), scenario, change=older)


@pytest.mark.parametrize("versions", [range(1), range(3), range(4)])
def test_a_broker_that_knows_only_old_api_versions_is_understood(versions: range) -> None:
    def older(broker: AnsweringBroker) -> None:
        broker.versions[ApiKey.API_VERSIONS] = versions

    async def scenario(broker: AnsweringBroker) -> None:
        connection = await Connection.open(broker.endpoint)
        assert (await connection.send(METADATA, MetadataResponse)).topics
        connection.close()

    with_broker(OneTopic("orders"), scenario, change=older)


def test_an_api_that_the_broker_lacks_is_not_asked_for() -> None:
    def without_metadata(broker: AnsweringBroker) -> None:
        del broker.versions[ApiKey.METADATA]

    async def scenario(broker: AnsweringBroker) -> None:
        connection = await Connection.open(broker.endpoint)
        with pytest.raises(NotSupported, match="does not support Metadata"):
            await connection.send(METADATA, MetadataResponse)
        assert not broker.asked
        connection.close()

    with_broker(OneTopic("orders"), scenario, change=without_metadata)


def test_several_requests_at_once_get_each_their_own_response() -> None:
    async def scenario(broker: AnsweringBroker) -> None:
        connection = await Connection.open(broker.endpoint)
        asked = ["a", "b", "orders", "c"]
        responses = await asyncio.gather(
            *(connection.send(metadata_of(name), MetadataResponse) for name in asked)
        )
        assert [response.topics[0].name for response in responses] == asked
        connection.close()

    with_broker(OneTopic("orders"), scenario)


def test_silence_ends_at_the_deadline() -> None:
    async def scenario(broker: AnsweringBroker) -> None:
        connection = await Connection.open(broker.endpoint)
        with pytest.raises(DeadlineExceeded, match=r"did not respond within 0\.05 s"):
            await connection.send(METADATA, MetadataResponse, timeout_s=0.05)
        connection.close()

    with_broker(lambda request: None, scenario)


def test_a_response_that_comes_too_late_disturbs_no_request() -> None:
    async def scenario(broker: AnsweringBroker) -> None:
        connection = await Connection.open(broker.endpoint)
        late = asyncio.create_task(connection.send(METADATA, MetadataResponse))
        await asyncio.sleep(0)
        late.cancel()
        response = await connection.send(metadata_of("orders"), MetadataResponse)
        assert response.topics[0].name == "orders"
        connection.close()

    with_broker(OneTopic("orders"), scenario)


def test_everyone_who_waits_is_told_when_the_broker_hangs_up() -> None:
    async def scenario(broker: AnsweringBroker) -> None:
        def hang_up_after_three(request: MetadataRequest) -> None:
            if len(broker.asked) == 3:
                broker.hang_up()

        broker.scripts[ApiKey.METADATA] = hang_up_after_three
        connection = await Connection.open(broker.endpoint)
        requests = [connection.send(METADATA, MetadataResponse) for _ in range(3)]
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 3
        assert not connection.is_open
        with pytest.raises(ConnectionLost):
            await connection.send(METADATA, MetadataResponse)

    with_broker(lambda request: None, scenario)


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        (2**31 - 1).to_bytes(4, "big") + b"x",
        (2).to_bytes(4, "big") + b"xx",
        (4).to_bytes(4, "big") + (99).to_bytes(4, "big"),
        (6).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"\x00\xff",
    ],
    ids=["http", "huge", "short", "unasked", "cut off"],
)
def test_garbage_instead_of_a_response_ends_the_connection(garbage: bytes) -> None:
    async def scenario(broker: AnsweringBroker) -> None:
        connection = await Connection.open(broker.endpoint)
        with pytest.raises(ConnectionLost, match="violates Kafka's protocol"):
            await connection.send(METADATA, MetadataResponse, timeout_s=5)
        assert not connection.is_open

    with_broker(lambda request: garbage, scenario)


def test_a_produce_without_acks_waits_for_nothing() -> None:
    async def scenario(broker: AnsweringBroker) -> None:
        connection = await Connection.open(broker.endpoint)
        connection.send_oneway(ProduceRequest(acks=0))
        await connection.send(METADATA, MetadataResponse)
        assert broker.names_asked() == ["PRODUCE", "METADATA"]
        connection.close()

    with_broker(OneTopic("orders"), scenario)


def test_where_nobody_listens_there_is_no_connection(unused_endpoint: Endpoint) -> None:
    with pytest.raises(Unreachable, match=f"{unused_endpoint}: connection refused"):
        asyncio.run(Connection.open(unused_endpoint))


def test_a_name_that_means_nothing_is_unreachable() -> None:
    with pytest.raises(Unreachable, match=r"nowhere\.invalid:9092: "):
        asyncio.run(Connection.open(Endpoint("nowhere.invalid", 9092)))


def metadata_of(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])
