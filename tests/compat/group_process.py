"""A consumer of a group in a process of its own: `group_process.py CLIENT SETTINGS-AS-JSON`.

Prints a line of JSON whenever it owns other partitions, {"owned": [["t", 0], ...]}, and for each
record, {"record": ["t", 0, OFFSET, VALUE]}; what it printed it has committed before it asks for
more. SIGTERM makes it leave, SIGKILL does what it always does.
"""

import asyncio
import json
import signal
import sys
import warnings
from typing import Any

POLL_MS = 100
# kafka-python 3.0.12 loses its assignment when a poll ends between its SyncGroup and the response:
# it drops the response, and does not join again.
LONG_POLL_MS = 2000

warnings.simplefilter("ignore", DeprecationWarning)


class Report:
    """Says what changed."""

    def __init__(self) -> None:
        self._owned: list[tuple[str, int]] | None = None
        self.is_told_to_leave = False
        signal.signal(signal.SIGTERM, self._note_signal)

    def _note_signal(self, *_: object) -> None:
        self.is_told_to_leave = True

    def note_owned(self, partitions: Any) -> None:
        owned = sorted((p.topic, p.partition) for p in partitions)
        if owned != self._owned:
            self._owned = owned
            self._say({"owned": owned})

    def note_record(self, topic: Any, partition: Any, offset: Any, value: Any) -> None:
        self._say({"record": [topic, partition, offset, value.decode()]})

    def _say(self, what: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


def run_confluent(settings: dict[str, Any], report: Report) -> None:
    import confluent_kafka

    config = {
        "bootstrap.servers": settings["address"],
        "group.id": settings["group"],
        "session.timeout.ms": settings["session_ms"],
        "max.poll.interval.ms": max(settings["session_ms"], 10_000),
        "heartbeat.interval.ms": 200,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "partition.assignment.strategy": settings["strategy"],
        "topic.metadata.refresh.interval.ms": 500,
        "reconnect.backoff.max.ms": 200,
        # librdkafka 2.16 forgets a broker that was the only one and went down, to look for it anew;
        # now and then it goes on waiting for the coordinator that it forgot.
        "metadata.recovery.strategy": "none",
        "log_level": 0,
    }
    if settings["protocol"] == "consumer":
        for name in (
            "session.timeout.ms",
            "heartbeat.interval.ms",
            "partition.assignment.strategy",
        ):
            del config[name]  # the broker decides about these
        config["group.protocol"] = "consumer"
        # librdkafka 2.16 does not come back when it missed this: every poll puts off its heartbeat.
        config["max.poll.interval.ms"] = 60_000
    if settings["instance"]:
        config["group.instance.id"] = settings["instance"]
    consumer = confluent_kafka.Consumer(config)
    topics = settings["topics"] or ["^" + settings["pattern"]]
    consumer.subscribe(topics)
    while not report.is_told_to_leave:
        message = consumer.poll(POLL_MS / 1000)
        report.note_owned(consumer.assignment())
        if message is None or message.error():
            continue
        report.note_record(message.topic(), message.partition(), message.offset(), message.value())
        try:
            consumer.commit(message=message, asynchronous=False)
        except confluent_kafka.KafkaException:
            continue  # a rebalance is under way: the next owner reads it again
    consumer.close()


def run_kafka_python(settings: dict[str, Any], report: Report) -> None:
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError

    consumer = KafkaConsumer(
        bootstrap_servers=settings["address"],
        group_id=settings["group"],
        group_instance_id=settings["instance"] or None,
        session_timeout_ms=settings["session_ms"],
        max_poll_interval_ms=max(settings["session_ms"], 10_000),
        heartbeat_interval_ms=200,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        metadata_max_age_ms=500,
        reconnect_backoff_max_ms=200,
        metrics_enabled=False,
    )
    consumer.subscribe(topics=settings["topics"] or (), pattern=settings["pattern"] or None)
    while not report.is_told_to_leave:
        found = consumer.poll(timeout_ms=LONG_POLL_MS)
        report.note_owned(consumer.assignment())
        for records in found.values():
            for record in records:
                report.note_record(record.topic, record.partition, record.offset, record.value)
        if found:
            try:
                consumer.commit()
            except KafkaError:
                continue
    consumer.close()


async def run_aiokafka(settings: dict[str, Any], report: Report) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import KafkaError

    more = {"group_instance_id": settings["instance"]} if settings["instance"] else {}
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings["address"],
        group_id=settings["group"],
        session_timeout_ms=settings["session_ms"],
        rebalance_timeout_ms=max(settings["session_ms"], 10_000),
        heartbeat_interval_ms=200,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        metadata_max_age_ms=500,
        partition_assignment_strategy=(RangePartitionAssignor,),
        **more,
    )
    consumer.subscribe(topics=settings["topics"] or (), pattern=settings["pattern"] or None)
    await consumer.start()
    while not report.is_told_to_leave:
        found = await consumer.getmany(timeout_ms=POLL_MS)
        report.note_owned(consumer.assignment())
        for records in found.values():
            for record in records:
                report.note_record(record.topic, record.partition, record.offset, record.value)
        if found:
            try:
                await consumer.commit()
            except KafkaError:
                continue
    await consumer.stop()


def main() -> None:
    client, settings = sys.argv[1], json.loads(sys.argv[2])
    if client == "confluent":
        run_confluent(settings, Report())
    elif client == "kafka-python":
        run_kafka_python(settings, Report())
    else:
        asyncio.run(run_aiokafka(settings, Report()))


if __name__ == "__main__":
    main()
