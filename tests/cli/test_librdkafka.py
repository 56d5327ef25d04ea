"""The command line and librdkafka understand each other."""

import json

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from cli.processes import Ottla, RunningBroker

KEYS = [f"customer-{n}" for n in range(50)]


def read_with_librdkafka(address: str, topic: str, partitions: int, count: int) -> list[Message]:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[Message] = consumer.consume(count, timeout=20)
    consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_here_is_read_there(
    codec: str, ottla: Ottla, broker: RunningBroker
) -> None:
    topic = f"there-{codec}"
    lines = "".join(f"{key}:{key * 30}\n" for key in KEYS)
    ottla(
        *("produce", topic, "--key-separator", ":", "--compression", codec),
        *("--header", "trace=7"),
        stdin=lines,
    )
    found = read_with_librdkafka(broker.address, topic, 1, len(KEYS))
    assert [message.error() for message in found] == [None] * len(KEYS)
    assert [message.key() for message in found] == [key.encode() for key in KEYS]
    assert found[0].value() == KEYS[0].encode() * 30
    assert found[0].headers() == [("trace", b"7")]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_there_is_read_here(
    codec: str, ottla: Ottla, broker: RunningBroker
) -> None:
    topic = f"here-{codec}"
    ottla("topic", "create", topic)
    producer = Producer(
        {"bootstrap.servers": broker.address, "compression.type": codec, "linger.ms": 50}
    )
    for key in KEYS:
        producer.produce(topic, key * 30, key, headers=[("trace", b"7")])
    assert producer.flush(20) == 0
    read = [json.loads(line) for line in ottla("consume", topic, "--json").stdout.splitlines()]
    assert [record["key"] for record in read] == KEYS
    assert read[0]["value"] == KEYS[0] * 30
    assert read[0]["headers"] == [{"key": "trace", "value": "7"}]


def test_a_key_lands_on_the_same_partition_from_both(ottla: Ottla, broker: RunningBroker) -> None:
    ottla("topic", "create", "same-place", "--partitions", "7")
    producer = Producer({"bootstrap.servers": broker.address, "partitioner": "murmur2_random"})
    for key in KEYS:
        producer.produce("same-place", "there", key)
    assert producer.flush(20) == 0
    lines = "".join(f"{key}:here\n" for key in KEYS)
    ottla("produce", "same-place", "--key-separator", ":", stdin=lines)
    places: dict[str, set[str]] = {}
    for line in ottla("consume", "same-place", "--format", "%k %p\\n").stdout.splitlines():
        key, partition = line.split()
        places.setdefault(key, set()).add(partition)
    assert places.keys() == set(KEYS)
    assert all(len(found) == 1 for found in places.values())
    assert len({found.pop() for found in places.values()}) > 1
