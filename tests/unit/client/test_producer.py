"""An idempotent producer numbers its batches, and repeats a number only with the same batch."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fakes.answering_broker import AnsweringBroker, OneTopic
from ottla.client.client import Client
from ottla.client.errors import Refused
from ottla.client.producer import IdempotentProducer
from ottla.errors import ErrorCode
from ottla.model import TimestampMs, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.records.batch import BatchHeader, Record, read_header

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
Scenario = Callable[[IdempotentProducer, AnsweringBroker], Awaitable[None]]


def given_id(request: InitProducerIdRequest) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=42, producer_epoch=3)


def response(code: ErrorCode = ErrorCode.NONE) -> ProduceResponse:
    result = PartitionProduceResponse(error_code=code, base_offset=7)
    return ProduceResponse(
        responses=[TopicProduceResponse(name="orders", partition_responses=[result])]
    )


def records(count: int) -> list[Record]:
    return [Record(timestamp_ms=TimestampMs(0), value=b"v") for _ in range(count)]


def sent(broker: AnsweringBroker) -> list[BatchHeader]:
    """The header of every batch that reached the broker, in order."""
    requests = [request for key, _, request in broker.asked if key is ApiKey.PRODUCE]
    return [read_header(one.topic_data[0].partition_data[0].records) for one in requests]


def with_producer(
    scenario: Scenario, produce: Callable[[ProduceRequest], ProduceResponse | None]
) -> None:
    async def run() -> None:
        metadata = OneTopic("orders", partition_count=2)
        broker = AnsweringBroker(
            {
                ApiKey.METADATA: metadata,
                ApiKey.INIT_PRODUCER_ID: given_id,
                ApiKey.PRODUCE: produce,
            }
        )
        async with broker, asyncio.timeout(10):
            metadata.endpoint = broker.endpoint
            async with Client([broker.endpoint], timeout_s=2) as client:
                await scenario(await IdempotentProducer.open(client), broker)

    asyncio.run(run())


def test_sequences_count_the_records_of_each_partition() -> None:
    async def scenario(producer: IdempotentProducer, broker: AnsweringBroker) -> None:
        await producer.write(FIRST, records(3))
        await producer.write(SECOND, records(1))
        await producer.write(FIRST, records(2))
        headers = sent(broker)
        assert [header.base_sequence for header in headers] == [0, 0, 3]
        assert {(header.producer_id, header.producer_epoch) for header in headers} == {(42, 3)}

    with_producer(scenario, lambda request: response())


def test_the_largest_sequence_is_followed_by_zero() -> None:
    async def scenario(producer: IdempotentProducer, broker: AnsweringBroker) -> None:
        producer._sequences[FIRST] = 2**31 - 2
        await producer.write(FIRST, records(3))
        await producer.write(FIRST, records(1))
        assert [header.base_sequence for header in sent(broker)] == [2**31 - 2, 1]

    with_producer(scenario, lambda request: response())


def test_a_batch_whose_response_was_lost_is_sent_again_under_its_number() -> None:
    async def scenario(producer: IdempotentProducer, broker: AnsweringBroker) -> None:
        responses: list[ProduceResponse | None] = [None, response()]

        def produce(request: ProduceRequest) -> ProduceResponse | None:
            found = responses.pop(0) if responses else response()
            if found is None:
                broker.hang_up()
            return found

        broker.scripts[ApiKey.PRODUCE] = produce
        await producer.write(FIRST, records(2))
        await producer.write(FIRST, records(1))
        assert [header.base_sequence for header in sent(broker)] == [0, 0, 2]

    with_producer(scenario, lambda request: response())


def test_a_duplicate_counts_as_written() -> None:
    async def scenario(producer: IdempotentProducer, broker: AnsweringBroker) -> None:
        await producer.write(FIRST, records(2))
        broker.scripts[ApiKey.PRODUCE] = lambda request: response()
        await producer.write(FIRST, records(1))
        assert [header.base_sequence for header in sent(broker)] == [0, 2]

    with_producer(scenario, lambda request: response(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))


def test_a_refused_batch_does_not_use_up_its_number() -> None:
    async def scenario(producer: IdempotentProducer, broker: AnsweringBroker) -> None:
        with pytest.raises(Refused, match=r"max\.message\.bytes"):
            await producer.write(FIRST, records(2))
        broker.scripts[ApiKey.PRODUCE] = lambda request: response()
        await producer.write(FIRST, records(1))
        assert [header.base_sequence for header in sent(broker)] == [0, 0]

    with_producer(scenario, lambda request: response(ErrorCode.MESSAGE_TOO_LARGE))
