"""A compacted topic of a real broker, read by librdkafka, also when the broker is killed."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from crash.processes import BrokerProcess, broker_process, run_ottla

TOPIC = "state"
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
}
KEYS = 40
KILLS = int(os.environ.get("OTTLA_CRASH_ROUNDS", "12")) // 4
PATIENCE_S = 30


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    fast = ("--set", "log.cleaner.backoff.ms=20")
    with broker_process(tmp_path / "data", *fast) as running:
        admin = AdminClient({"bootstrap.servers": running.address})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=SETTINGS)])[TOPIC].result(PATIENCE_S)
        yield running


def produce(address: str, numbers: range, state: dict[bytes, bytes | None]) -> None:
    """Write each number to one of the keys; every ninth time delete the key instead."""
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 1})
    for number in numbers:
        key = b"key-%d" % (number * 7 % KEYS)
        value = None if number % 9 == 0 else b"%d" % number + b"." * 50
        producer.produce(TOPIC, value, key)
        state[key] = value
        if number % 10 == 0:
            producer.flush(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0


def read(address: str) -> list[Message]:
    """Every record from the beginning to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[Message] = []
    while (message := consumer.poll(PATIENCE_S)) is not None:
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            break
        found.append(message)
    else:
        pytest.fail("the end was not reached")
    consumer.close()
    return found


def last_values(messages: list[Message]) -> dict[bytes, bytes]:
    return living({message.key() or b"": message.value() for message in messages})


def living(state: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    return {key: value for key, value in state.items() if value is not None}


def wait_compacted(broker: BrokerProcess, records_max: int) -> list[Message]:
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found := read(broker.address)) > records_max:
        assert time.monotonic() < deadline_s, f"{len(found)} records are left"
    return found


def test_a_consumer_sees_the_last_value_of_every_key(broker: BrokerProcess) -> None:
    state: dict[bytes, bytes | None] = {}
    produce(broker.address, range(3000), state)
    found = wait_compacted(broker, 400)
    assert last_values(found) == living(state)
    offsets = [message.offset() or 0 for message in found]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == 2999
    assert broker.stop() == 0
    verified = run_ottla("log", "verify", str(broker.data))
    assert verified.returncode == 0, verified.stderr
    dumped = run_ottla("log", "dump", "--records", str(broker.data / f"{TOPIC}-0"))
    assert "tombstones until" in dumped.stdout


@pytest.mark.slow
def test_a_broker_killed_while_it_compacts_starts_clean(broker: BrokerProcess, rng: Random) -> None:
    state: dict[bytes, bytes | None] = {}
    for round_ in range(KILLS):
        produce(broker.address, range(round_ * 500, round_ * 500 + 500), state)
        time.sleep(rng.random() * 0.05)  # any moment will do: compaction never rests for long
        broker.kill()
        broker.start()
        assert last_values(read(broker.address)) == living(state)
    wait_compacted(broker, 400)
    assert last_values(read(broker.address)) == living(state)
    directory = broker.data / f"{TOPIC}-0"
    assert broker.stop() == 0
    assert not [file for file in directory.iterdir() if file.suffix in {".cleaned", ".swap"}]
    assert run_ottla("log", "verify", str(broker.data)).returncode == 0
    assert re.search("damaged(?!_ranges=0 )", broker.said()) is None


def test_records_without_key_are_refused(broker: BrokerProcess) -> None:
    refused: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce(TOPIC, b"no key", on_delivery=lambda error, _: refused.append(error))
    producer.flush(PATIENCE_S)
    (error,) = refused
    assert error is not None
    assert error.code() == KafkaError.INVALID_RECORD
