"""Records that wait on three brokers whose leaders are killed: each comes once, and in time."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from cli.processes import wait_until
from crash.test_cluster import cluster
from crash.topics import PATIENCE_S, admin_of

_KILLS: Final = int(os.environ.get("OTTLA_CLUSTER_DELAY_KILLS", "2"))
_RECORDS: Final = 150  # between two kills
_TOPIC: Final = "orders"
_PARTITIONS: Final = 3
_DELAY_MAX_MS: Final = 4000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def read(bootstrap: str, rack: str, count: int) -> list[Message]:
    """So many records, from replicas in a rack."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": rack,
            "client.rack": rack,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(_TOPIC, index, 0) for index in range(_PARTITIONS)])
    found: list[Message] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline_s, f"{len(found)} of {count} records came"
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message)
    consumer.close()
    return found


@pytest.mark.slow
def test_records_wait_through_the_deaths_of_leaders(
    tmp_path: Path, rng: Random, report: Callable[[str], None]
) -> None:
    due: dict[bytes, int] = {}
    with cluster(tmp_path, "--set=replica.selector=rack") as running:
        admin = admin_of(running.bootstrap)
        topic = NewTopic(_TOPIC, _PARTITIONS, 3, config={"delay.enable": "true"})
        admin.create_topics([topic])[_TOPIC].result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": running.bootstrap, "enable.idempotence": True})
        failed: list[object] = []

        def note(error: object, _: Message) -> None:
            if error is not None:
                failed.append(error)

        for kill in range(_KILLS + 1):
            running.wait_in_sync(admin)
            for number in range(_RECORDS):
                value = b"%d-%d" % (kill, number)
                due[value] = now_ms() + rng.randrange(500, _DELAY_MAX_MS)
                producer.produce(
                    _TOPIC,
                    value,
                    partition=number % _PARTITIONS,
                    headers={"ottla.deliver-at": b"%d" % due[value]},
                    on_delivery=note,
                )
            if kill < _KILLS:
                victim = running.brokers[running.leaders(admin)[0]]
                victim.kill()
                wait_until(lambda: producer.flush(1) == 0, "the others go on")
                victim.start()
        assert producer.flush(PATIENCE_S) == 0
        assert not failed
        found: list[Message] = []
        for rack in ("rack-0", "rack-1", "rack-2"):
            found = read(running.bootstrap, rack, len(due))
            assert sorted(one.value() or b"" for one in found) == sorted(due)
    # Those without a ticket were due before they arrived.
    copies = [one for one in found if "ottla.ticket" in dict(one.headers() or ())]
    late_ms = sorted(one.timestamp()[1] - due[one.value() or b""] for one in copies)
    assert late_ms[0] >= 0
    report(f"{len(late_ms)} copies, lateness p50 {late_ms[len(late_ms) // 2]} max {late_ms[-1]} ms")
