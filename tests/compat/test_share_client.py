"""Ottla's own share consumer, against a broker in a process of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from compat.raw import connected
from compat.served import ServedBroker
from compat.share_wire import set_group
from compat.test_share_requests import offsets_of
from compat.wire import create_topic
from ottla.client.client import Client
from ottla.client.errors import ConnectionLost, Refused
from ottla.client.producer import IdempotentProducer
from ottla.client.share_consumer import AcknowledgeKind, ShareConsumer, ShareRecord
from ottla.errors import ErrorCode
from ottla.model import Endpoint, TimestampMs, TopicPartition
from ottla.records.batch import Record

WAIT_MS = 10_000  # a poll that is to find something; it returns as soon as it has


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(
        tmp_path_factory.mktemp("share-client") / "data",
        {
            "offsets.topic.num.partitions": "3",
            "share.coordinator.state.topic.num.partitions": "3",
        },
    )
    served.start()
    yield served
    served.stop()


@pytest.fixture
def topic(broker: ServedBroker, new_name: Callable[[], str]) -> str:
    """A topic of two partitions, and a group of the same name that reads all of it."""
    name = new_name()
    with connected(broker.address) as raw:
        create_topic(raw, name, 2)
        set_group(raw, name, share_auto_offset_reset="earliest")
    return name


def with_client(broker: ServedBroker, work: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Client([Endpoint.parse(broker.address)]) as client, asyncio.timeout(60):
            await work(client)

    asyncio.run(run())


async def produce(client: Client, topic: str, count: int = 10) -> None:
    producer = await IdempotentProducer.open(client)
    for number in range(count):
        record = Record(value=str(number).encode(), timestamp_ms=TimestampMs(1))
        await producer.write(TopicPartition(topic, number % 2), [record])


async def read(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    found: list[ShareRecord] = []
    while len(found) < count:
        polled = await consumer.poll(count - len(found), WAIT_MS)
        assert polled, f"{len(found)} of {count} records, and no more"
        found += polled
    assert len(found) == count
    return found


def values(records: list[ShareRecord]) -> list[int]:
    return sorted(int(record.record.value or b"") for record in records)


def test_accepted_records_are_not_delivered_again(broker: ServedBroker, topic: str) -> None:
    async def work(client: Client) -> None:
        await produce(client, topic)
        async with ShareConsumer(client, topic, [topic]) as consumer:
            records = await read(consumer, 10)
            assert values(records) == list(range(10))
            assert {record.delivery_count for record in records} == {1}
            for record in records:
                consumer.acknowledge(record)
            assert await consumer.commit() == []
        async with ShareConsumer(client, topic, [topic]) as other:
            assert await other.poll(wait_ms=200) == []

    with_client(broker, work)
    with connected(broker.address) as raw:
        assert offsets_of(raw, topic) == [(5, 0), (5, 0)]


def test_a_poll_that_waits_returns_what_is_produced(broker: ServedBroker, topic: str) -> None:
    async def work(client: Client) -> None:
        async with ShareConsumer(client, topic, [topic]) as consumer:
            assert await consumer.poll(wait_ms=100) == []
            waiting = asyncio.create_task(consumer.poll(wait_ms=WAIT_MS))
            await produce(client, topic, 1)
            assert values(await waiting) == [0]

    with_client(broker, work)


def test_released_records_come_again_and_rejected_ones_do_not(
    broker: ServedBroker, topic: str
) -> None:
    async def work(client: Client) -> None:
        await produce(client, topic)
        async with ShareConsumer(client, topic, [topic]) as consumer:
            for record in await read(consumer, 10):
                number = int(record.record.value or b"")
                if number < 4:
                    consumer.acknowledge(record, AcknowledgeKind.RELEASE, count=number < 2)
                else:
                    consumer.acknowledge(record, AcknowledgeKind.REJECT)
            assert await consumer.commit() == []
            again = await read(consumer, 4)
            counts = {int(r.record.value or b""): r.delivery_count for r in again}
            assert counts == {0: 2, 1: 2, 2: 1, 3: 1}
            consumer.acknowledge(again[0], AcknowledgeKind.RELEASE, delay_ms=60_000)
            assert await consumer.commit() == []
            assert await consumer.poll(wait_ms=200) == []

    with_client(broker, work)


def test_one_record_that_is_not_held_does_not_undo_the_others(
    broker: ServedBroker, topic: str
) -> None:
    async def work(client: Client) -> None:
        await produce(client, topic)
        async with ShareConsumer(client, topic, [topic]) as consumer:
            records = await read(consumer, 10)
            released = next(r for r in records if (r.tp.partition, r.offset) == (0, 3))
            consumer.acknowledge(released, AcknowledgeKind.RELEASE, delay_ms=60_000)
            assert await consumer.commit() == []
            for record in records:
                consumer.acknowledge(record)
            (failed,) = await consumer.commit()
            assert failed is released
            assert isinstance(failed.failure, Refused)
            assert failed.failure.code is ErrorCode.INVALID_RECORD_STATE

    with_client(broker, work)
    with connected(broker.address) as raw:
        assert sorted(offsets_of(raw, topic)) == [(3, 1), (5, 0)]


def test_a_renewed_lock_ends_later(broker: ServedBroker, topic: str) -> None:
    async def work(client: Client) -> None:
        await produce(client, topic, 3)
        async with ShareConsumer(client, topic, [topic]) as consumer:
            one, two = [r for r in await read(consumer, 3) if r.tp.partition == 0]
            before_s = one.lock_end_s
            assert await consumer.renew([one, two]) == []
            assert one.lock_end_s > before_s
            consumer.acknowledge(two)
            await consumer.commit()
            assert await consumer.renew([one, two]) == [two]
            assert one.failure is None

    with_client(broker, work)


def test_closing_gives_back_what_is_held_without_counting_it(
    broker: ServedBroker, topic: str
) -> None:
    async def work(client: Client) -> None:
        await produce(client, topic)
        async with ShareConsumer(client, topic, [topic]) as consumer:
            records = await read(consumer, 10)
            consumer.acknowledge(records[0])  # sent by close
        async with ShareConsumer(client, topic, [topic]) as other:
            again = await read(other, 9)
            assert {record.delivery_count for record in again} == {1}
            assert await other.poll(wait_ms=200) == []

    with_client(broker, work)


def test_records_of_a_lost_session_fail_and_come_again(broker: ServedBroker, topic: str) -> None:
    async def work(client: Client) -> None:
        await produce(client, topic, 2)
        async with ShareConsumer(client, topic, [topic]) as consumer:
            records = await read(consumer, 2)
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(broker.start)
            for record in records:
                consumer.acknowledge(record)
            failed = await consumer.commit()
            assert failed == records
            assert isinstance(failed[0].failure, ConnectionLost)
            assert values(await read(consumer, 2)) == [0, 1]

    with_client(broker, work)


def test_a_cancelled_poll_loses_nothing(broker: ServedBroker, topic: str) -> None:
    async def work(client: Client) -> None:
        await produce(client, topic, 2)
        async with ShareConsumer(client, topic, [topic]) as consumer:
            held = await read(consumer, 2)
            waiting = asyncio.create_task(consumer.poll(wait_ms=WAIT_MS))
            await asyncio.sleep(0.1)  # so that it waits at the broker
            waiting.cancel()
            await asyncio.wait([waiting])
            await produce(client, topic, 1)
            assert values(await read(consumer, 1)) == [0]
            for record in held:
                consumer.acknowledge(record)
            assert await consumer.commit() == [], "the session outlived the cancelled call"

    with_client(broker, work)


def test_a_topic_that_does_not_exist_is_refused(broker: ServedBroker, topic: str) -> None:
    async def work(client: Client) -> None:
        async with ShareConsumer(client, topic, [f"{topic}-none"]) as consumer:
            with pytest.raises(Refused, match="does not exist"):
                await consumer.poll()

    with_client(broker, work)
