"""Many partitions on one server: made, written, read by a group, stopped, started again."""

import os
import signal
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.kafka_load import KafkaLoad
from bench.load import LoadFailed, NotSupported
from bench.measures import Effort, FreshRow, Metric, Samples
from bench.servers import Running, Server, running, spawned, wait_answer

TOPICS: Final = 20
RECORD: Final = bytes(1000)
PATIENCE_S: Final = 300.0
LOOK_S: Final = 0.02


def _metric(name: str, title: str, unit: str = "s") -> Metric:
    return Metric(name=f"partitions.{name}", title=title, unit=unit, higher_is_better=False)


CREATE = _metric("create", "2,000 partitions: create")
SPREAD = _metric("spread", "100,000 records of 1 KB over them all")
READ = _metric("read", "a group reads them all")
MEMORY = _metric("memory", "memory then", "MB")
DESCRIPTORS = _metric("descriptors", "descriptors then", "")
STOP = _metric("stop", "stop")
START = _metric("start", "start after a stop, until every partition is led")
RECOVERY = _metric("recovery", "start after a kill, until every partition is led")


def measure(server: Server, effort: Effort, workspace: Path) -> Samples:
    workspace.mkdir(parents=True, exist_ok=True)
    # A new one for each round, and none is removed: ext4 makes files slowly after many were.
    data = Path(mkdtemp(prefix=f"{server.name}-", dir=workspace))
    with running(server, data) as instance:
        address = _address(instance)
        yield CREATE.name, _create(address, effort.partitions)
        yield SPREAD.name, _write(address, effort.partitions, effort.partition_records)
        yield READ.name, _read(address, effort.partition_records)
        yield MEMORY.name, instance.rss_bytes() / 1e6
        yield DESCRIPTORS.name, len(os.listdir(f"/proc/{instance.process.pid}/fd"))
        yield STOP.name, _end(instance, signal.SIGTERM)
    with spawned(server, data) as instance:
        yield START.name, _started_s(instance, data, effort.partitions)
        _write(_address(instance), effort.partitions, effort.partitions)
        _end(instance, signal.SIGKILL)
    with spawned(server, data) as instance:
        yield RECOVERY.name, _started_s(instance, data, effort.partitions)


def _address(instance: Running) -> str:
    if not isinstance(instance.load, KafkaLoad):
        raise NotSupported("it has no partitions")
    return instance.load.address


def _partitions(count: int) -> Iterator[tuple[str, int]]:
    """Topic and number of every partition, over and over."""
    while True:
        for number in range(count):
            yield f"wide-{number % TOPICS}", number // TOPICS


def _create(address: str, count: int) -> float:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    topics = [NewTopic(f"wide-{number}", count // TOPICS, 1) for number in range(TOPICS)]
    began_s = time.monotonic()
    wanted = admin.create_topics(topics, operation_timeout=PATIENCE_S, request_timeout=PATIENCE_S)
    for created in wanted.values():
        created.result(PATIENCE_S)
    _wait_led(admin, count)
    return time.monotonic() - began_s


def _write(address: str, count: int, records: int) -> float:
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 50,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    began_s = time.monotonic()
    for topic, partition in islice(_partitions(count), records):
        producer.produce(
            topic,
            RECORD,
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    if producer.flush(PATIENCE_S) or failed:
        raise LoadFailed(f"records were not taken: {failed[:1]}")
    return time.monotonic() - began_s


def _read(address: str, records: int) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench-partitions",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    began_s = time.monotonic()
    consumer.subscribe([f"wide-{number}" for number in range(TOPICS)])
    count = 0
    while count < records:
        count += len(consumer.consume(10_000, 1.0))
        if time.monotonic() - began_s > PATIENCE_S:
            raise LoadFailed(f"{count} of {records} records were read in {PATIENCE_S:.0f} s")
    took_s = time.monotonic() - began_s
    consumer.close()
    return took_s


def _end(instance: Running, signum: signal.Signals) -> float:
    began_s = time.monotonic()
    instance.process.send_signal(signum)
    instance.process.wait(PATIENCE_S)
    return time.monotonic() - began_s


def _started_s(instance: Running, data: Path, count: int) -> float:
    wait_answer(instance, data)
    _wait_led(AdminClient({"bootstrap.servers": _address(instance), "log_level": 0}), count)
    return time.monotonic() - instance.spawned_s


def _wait_led(admin: AdminClient, count: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while _led_count(admin) < count:
        if time.monotonic() > deadline_s:
            raise LoadFailed(f"{count} partitions are not led after {PATIENCE_S:.0f} s")
        time.sleep(LOOK_S)


def _led_count(admin: AdminClient) -> int:
    topics = admin.list_topics(timeout=PATIENCE_S).topics
    return sum(
        partition.leader >= 0
        for name, topic in topics.items()
        if name.startswith("wide-")
        for partition in topic.partitions.values()
    )


ROW = FreshRow(
    "partitions",
    (CREATE, SPREAD, READ, MEMORY, DESCRIPTORS, STOP, START, RECOVERY),
    measure,
)
