"""Asking the right broker, again while that may help."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fakes.answering_broker import AnsweringBroker, OneTopic
from ottla.client.client import Client
from ottla.client.errors import NoSuchTopic, Refused, Unreachable
from ottla.client.partitions import produce
from ottla.errors import ErrorCode
from ottla.model import Endpoint, TimestampMs, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.records.batch import Record, build_batch

TP = TopicPartition("orders", 0)
BATCH = build_batch([Record(timestamp_ms=TimestampMs(0), value=b"v")])


def written(code: ErrorCode = ErrorCode.NONE, base_offset: int = 7) -> ProduceResponse:
    result = PartitionProduceResponse(index=0, error_code=code, base_offset=base_offset)
    return ProduceResponse(
        responses=[TopicProduceResponse(name="orders", partition_responses=[result])]
    )


class Answers:
    """Gives its answers one after the other; the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.left = list(answers)

    def __call__(self, request: object) -> Any:
        answer = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return answer() if callable(answer) else answer


def with_client(
    scenario: Callable[[Client, AnsweringBroker], Awaitable[None]],
    *,
    topic: OneTopic | None = None,
    **scripts: Any,
) -> None:
    async def run() -> None:
        metadata = topic or OneTopic("orders")
        broker = AnsweringBroker({ApiKey[name.upper()]: script for name, script in scripts.items()})
        broker.scripts.setdefault(ApiKey.METADATA, metadata)
        async with broker, asyncio.timeout(10):
            metadata.endpoint = broker.endpoint
            async with Client([broker.endpoint], timeout_s=1) as client:
                await scenario(client, broker)

    asyncio.run(run())


def test_a_broker_that_is_no_longer_leader_is_asked_after_fresh_metadata() -> None:
    async def scenario(client: Client, broker: AnsweringBroker) -> None:
        assert await produce(client, TP, BATCH) == 7
        assert broker.names_asked() == ["METADATA", "PRODUCE", "METADATA", "PRODUCE"]

    moved = Answers(written(ErrorCode.NOT_LEADER_OR_FOLLOWER), written())
    with_client(scenario, produce=moved)


def test_trying_again_ends_at_the_deadline() -> None:
    async def scenario(client: Client, broker: AnsweringBroker) -> None:
        with pytest.raises(Refused) as caught:
            await produce(client, TP, BATCH)
        assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert broker.names_asked().count("PRODUCE") > 1

    with_client(scenario, produce=lambda request: written(ErrorCode.NOT_ENOUGH_REPLICAS))


def test_what_trying_again_cannot_cure_is_not_tried_again() -> None:
    async def scenario(client: Client, broker: AnsweringBroker) -> None:
        with pytest.raises(Refused, match=r"orders-0: .*max\.message\.bytes"):
            await produce(client, TP, BATCH)
        assert broker.names_asked().count("PRODUCE") == 1

    with_client(scenario, produce=lambda request: written(ErrorCode.MESSAGE_TOO_LARGE))


def test_an_unknown_topic_is_known_to_be_unknown_at_once() -> None:
    async def scenario(client: Client, broker: AnsweringBroker) -> None:
        with pytest.raises(NoSuchTopic, match="topic payments: it does not exist"):
            await produce(client, TopicPartition("payments", 0), BATCH)
        with pytest.raises(NoSuchTopic, match="partition 5 of topic orders"):
            await produce(client, TopicPartition("orders", 5), BATCH)
        assert "PRODUCE" not in broker.names_asked()

    with_client(scenario)


def test_a_topic_in_the_making_is_waited_for() -> None:
    topic = OneTopic("orders")
    calls = []

    def slowly_made(request: MetadataRequest) -> MetadataResponse:
        calls.append(request.allow_auto_topic_creation)
        answer = topic(request)
        if len(calls) == 1:
            answer.topics[0].error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif len(calls) == 2:
            answer.topics[0].partitions[0].leader_id = -1
        return answer

    async def scenario(client: Client, broker: AnsweringBroker) -> None:
        view = await client.describe_or_create("orders")
        assert view.topics["orders"].partitions[0].leader == 0
        assert calls == [True, True, True]

    with_client(scenario, topic=topic, metadata=slowly_made)


def test_the_second_bootstrap_address_is_tried(unused_endpoint: Endpoint) -> None:
    async def scenario(client: Client, broker: AnsweringBroker) -> None:
        async with Client([unused_endpoint, broker.endpoint]) as other:
            assert (await other.describe(None)).topics.keys() == {"orders"}

    with_client(scenario)


def test_when_no_broker_responds_all_addresses_are_named(unused_endpoint: Endpoint) -> None:
    async def scenario() -> None:
        async with Client([unused_endpoint]) as client:
            await client.describe(None)

    with pytest.raises(Unreachable, match=f"no broker can be reached .{unused_endpoint}: "):
        asyncio.run(scenario())


def test_an_advertised_address_that_leads_nowhere_is_explained(unused_endpoint: Endpoint) -> None:
    topic = OneTopic("orders")

    async def scenario(client: Client, broker: AnsweringBroker) -> None:
        topic.endpoint = unused_endpoint
        with pytest.raises(Unreachable, match="the address that broker 0 advertises"):
            await produce(client, TP, BATCH)

    with_client(scenario, topic=topic)


def test_requests_at_the_same_time_share_one_connection() -> None:
    async def scenario(client: Client, broker: AnsweringBroker) -> None:
        await asyncio.gather(*(client.describe(["orders"]) for _ in range(5)))
        assert broker.connection_count == 1

    with_client(scenario)


def test_a_connection_that_fails_after_its_caller_was_cancelled_is_no_exception_of_the_loop(
    unused_endpoint: Endpoint,
) -> None:
    async def scenario() -> None:
        reported: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: reported.append(context)
        )
        async with Client([unused_endpoint]) as client:
            calls = [asyncio.ensure_future(client.describe(None)) for _ in range(2)]
            await asyncio.sleep(0)  # both wait for one connection that is being opened
            calls[0].cancel()
            await asyncio.wait(calls)
            assert calls[0].cancelled()
            assert isinstance(calls[1].exception(), Unreachable)
        gc.collect()
        assert reported == []

    asyncio.run(scenario())
