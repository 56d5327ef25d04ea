"""Tests of an application that uses Kafka, against a real broker in the test process.

    python -m pytest examples/embedded_test.py

The fixture `ottla_broker` comes with the package: there is nothing to import or to configure.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

import ottla.testing


def publish(address: str, topic: str, value: str) -> None:
    """The application under test: publishes an event and waits until it is safe."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def first_value(address: str, topic: str) -> str:
    """The first record of the topic, or an error within half a minute."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "not used", "enable.auto.commit": False}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        message = consumer.poll(30)
        assert message is not None, "nothing came"
        assert message.error() is None, message.error()
        return (message.value() or b"").decode()
    finally:
        consumer.close()


# A broker of its own for one test.
def test_events_are_published(ottla_broker: str) -> None:
    publish(ottla_broker, "events", "signed up")
    assert first_value(ottla_broker, "events") == "signed up"


# Overriding this fixture, here or in a conftest.py, chooses the settings of `ottla_broker`.
class TestWithManyPartitions:
    @pytest.fixture
    def ottla_settings(self) -> dict[str, str]:
        return {"num.partitions": "12"}

    def test_a_topic_has_them(self, ottla_broker: str) -> None:
        publish(ottla_broker, "events", "signed up")
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": ottla_broker, "group.id": "not used"}
        )
        assert len(consumer.list_topics("events", 30).topics["events"].partitions) == 12
        consumer.close()


# One broker for all tests of a file; they keep out of each other's way by their topics' names.
@pytest.fixture(scope="module")
def shared_broker() -> Iterator[str]:
    with ottla.testing.broker() as address:
        yield address


@pytest.mark.parametrize("topic", ["red", "green", "blue"])
def test_many_topics_on_one_broker(shared_broker: str, topic: str) -> None:
    publish(shared_broker, topic, topic.upper())
    assert first_value(shared_broker, topic) == topic.upper()


# With a directory of its own, a broker can be stopped and started again.
def test_events_survive_a_restart(tmp_path: Path) -> None:
    with ottla.testing.broker(data=tmp_path) as address:
        publish(address, "events", "signed up")
    with ottla.testing.broker(data=tmp_path) as address:
        assert first_value(address, "events") == "signed up"


# The broker runs on a thread of its own: an asyncio test can use it as it is.
def test_with_asyncio(ottla_broker: str) -> None:
    async def round_trip() -> bytes:
        async with AIOKafkaProducer(bootstrap_servers=ottla_broker) as producer:
            await producer.send_and_wait("events", b"signed up", partition=0)
        async with AIOKafkaConsumer(bootstrap_servers=ottla_broker) as consumer:
            consumer.assign([TopicPartition("events", 0)])
            await consumer.seek_to_beginning()
            return bytes((await consumer.getone()).value)

    assert asyncio.run(round_trip()) == b"signed up"
