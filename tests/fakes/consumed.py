"""Messages of librdkafka, which has None for what only an error of its own lacks."""

from confluent_kafka import Message


def position_of(message: Message) -> tuple[str, int, int]:
    """Topic, partition and offset."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset


def value_of(message: Message) -> bytes:
    value = message.value()
    assert value is not None
    return value
