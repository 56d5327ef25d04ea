"""Consumers that read from the replica in their rack, or elsewhere when it dies (KIP-392)."""

from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer

from cli.processes import wait_until
from crash.load import read_all
from crash.processes import BrokerProcess
from crash.test_cluster import begin, cluster, finish, metric

_TOPIC: Final = "orders"
_SENT: Final = f'ottla_topic_fetch_bytes_total{{topic="{_TOPIC}"}}'


class Reader:
    """A consumer in the rack of a broker, and the offsets that it got of each partition."""

    def __init__(self, bootstrap: str, rack: str) -> None:
        settings = {
            "auto.offset.reset": "earliest",
            "bootstrap.servers": bootstrap,
            "client.rack": rack,
            "group.id": "near",
        }
        self.offsets: dict[int, list[int]] = defaultdict(list)
        self._consumer = Consumer(settings)
        self._consumer.subscribe([_TOPIC])

    def read(self) -> int:
        """Read what there is; how many records it got until now."""
        for message in self._consumer.consume(500, 0.2):
            assert message.error() is None, message.error()
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.offsets[partition].append(offset)
        return sum(map(len, self.offsets.values()))

    def close(self) -> None:
        self._consumer.close()


def sent(broker: BrokerProcess) -> float:
    """The bytes of the topic that a broker has sent to consumers."""
    (page,) = (a.removeprefix("--metrics=") for a in broker.arguments if a.startswith("--metrics="))
    return metric(page, _SENT, 0.0)


def reads_only(reader: Reader, near: BrokerProcess, others: list[BrokerProcess]) -> bool:
    """True if some hundred records of all partitions came from one broker."""
    before, far_before = sent(near), [sent(broker) for broker in others]
    got = {index: len(offsets) for index, offsets in reader.offsets.items()}
    goal = reader.read() + 300
    wait_until(lambda: reader.read() >= goal, "records are read")
    is_grown = all(len(reader.offsets[index]) > got.get(index, 0) for index in range(3))
    return is_grown and sent(near) > before and [sent(broker) for broker in others] == far_before


@pytest.mark.slow
def test_a_consumer_reads_in_its_rack_and_elsewhere_when_that_replica_dies(tmp_path: Path) -> None:
    with cluster(tmp_path, "--set=replica.selector=rack") as running:
        admin, loads = begin(running)
        near, others = running.brokers[2], running.brokers[:2]
        reader = Reader(running.bootstrap, "rack-2")
        try:
            wait_until(lambda: reads_only(reader, near, others), "it reads in its rack")
            assert set(running.leaders(admin)) != {2}
            near.kill()
            got = reader.read()
            wait_until(lambda: reader.read() > got + 500, "the consumer goes on")
            near.start()
            wait_until(lambda: reads_only(reader, near, others), "it reads in its rack again")
        finally:
            finish(running, loads)
        everything = read_all(running.bootstrap, [(_TOPIC, index) for index in range(3)])
        total = sum(map(len, everything.values()))
        wait_until(lambda: reader.read() >= total, "everything is read")
        reader.close()
        for (_, index), records in everything.items():
            assert reader.offsets[index] == list(range(len(records)))
