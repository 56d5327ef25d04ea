"""More partitions than the process may open files: all of them work, and so does everybody else.

`make test` has one limit and fewer partitions; `make nightly` the limits that systems have.
"""

import time
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from crash.topics import admin_of, create_topics
from fakes.consumed import position_of, value_of
from hostile.attacked_broker import PATIENCE_S, AttackedBroker, attacked_broker
from ottla.broker.writer import SENDFILE_BYTES_MIN

CLIENTS = 50
PER_TOPIC = 100
REST_S = 2.0
REST_SHARE_MAX = 0.05  # of a core
QUIET = {"log_level": 0}


def limited_broker(path: Path, descriptors: int) -> AbstractContextManager[AttackedBroker]:
    return attacked_broker(path, "max.partitions=10000", descriptors_max=descriptors)


def partitions_of(count: int) -> list[tuple[str, int]]:
    return [(f"t{number // PER_TOPIC}", number % PER_TOPIC) for number in range(count)]


def value_for(topic: str, index: int) -> bytes:
    """So large that it is sent from its file, if a file may be open for it."""
    return b"%s %d" % (topic.encode(), index) + bytes(2 * SENDFILE_BYTES_MIN)


def write_with_many_clients(broker: AttackedBroker, partitions: list[tuple[str, int]]) -> None:
    """Every client writes a record to each of its partitions; all of them are connected at once."""
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, message: object) -> None:
        if error is not None:
            failures.append(error)

    settings = {"bootstrap.servers": broker.address, "acks": "all", **QUIET}
    clients = [Producer(settings) for _ in range(CLIENTS)]
    for number, (topic, index) in enumerate(partitions):
        clients[number % CLIENTS].produce(
            topic, value_for(topic, index), partition=index, on_delivery=note
        )
    assert [client.flush(PATIENCE_S) for client in clients] == [0] * CLIENTS
    assert failures == []
    assert is_ready(broker), "while all of them are connected"


def is_ready(broker: AttackedBroker) -> bool:
    url = f"http://127.0.0.1:{broker.metrics_port}/readyz"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
        return bool(page.status == 200)


def read_everything(broker: AttackedBroker, partitions: list[tuple[str, int]], count: int) -> None:
    """Each record is where it was written, once for each time that it was."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader", **QUIET})
    consumer.assign([TopicPartition(topic, index, 0) for topic, index in partitions])
    found: dict[tuple[str, int], list[bytes]] = {place: [] for place in partitions}
    left = count * len(partitions)
    deadline_s = time.monotonic() + PATIENCE_S
    while left and time.monotonic() < deadline_s:
        for message in consumer.consume(1000, 1.0):
            assert message.error() is None, message.error()
            topic, index, _ = position_of(message)
            found[topic, index].append(value_of(message))
            left -= 1
    consumer.close()
    for (topic, index), values in found.items():
        assert values == [value_for(topic, index)] * count


def check_limit(
    tmp_path: Path, descriptors: int, partition_count: int, report: Callable[[str], None]
) -> None:
    partitions = partitions_of(partition_count)
    topics: dict[str, dict[str, str]] = {topic: {} for topic, _ in partitions}
    with limited_broker(tmp_path, descriptors) as broker:
        create_topics(admin_of(broker.address), topics, partitions=PER_TOPIC)
        write_with_many_clients(broker, partitions)
        read_everything(broker, partitions, 1)
        busy = broker.descriptor_count()
        assert busy <= descriptors
    with limited_broker(tmp_path, descriptors) as broker:
        write_with_many_clients(broker, partitions)
        read_everything(broker, partitions, 2)
        worked_s, began_s = broker.cpu_s(), time.monotonic()
        time.sleep(REST_S)  # nobody asks for anything: what does the broker do all the same?
        share = (broker.cpu_s() - worked_s) / (time.monotonic() - began_s)
        assert share < REST_SHARE_MAX
    report(
        f"{partition_count} partitions, {descriptors} descriptors: {busy} in use,"
        f" {share:.1%} of a core at rest"
    )


@pytest.mark.slow
def test_partitions_may_outnumber_descriptors(
    tmp_path: Path, report: Callable[[str], None]
) -> None:
    check_limit(tmp_path, 256, 400, report)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("descriptors", [256, 1024, 4096])
def test_three_thousand_partitions_under_every_limit(
    tmp_path: Path, descriptors: int, report: Callable[[str], None]
) -> None:
    check_limit(tmp_path, descriptors, 3000, report)
