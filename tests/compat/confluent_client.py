"""confluent-kafka: the newest librdkafka."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TIMESTAMP_LOG_APPEND_TIME, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from compat.adapter import (
    BEGINNING,
    END,
    PATIENCE_S,
    Library,
    Received,
    Refused,
    Sent,
    Start,
    collect,
)

_BYTES_MAX: Final = 64 << 20
_OFFSETS: Final = {BEGINNING: OFFSET_BEGINNING, END: OFFSET_END}


class ConfluentClient(Library):
    name = "confluent"

    @contextmanager
    def producer(
        self, *, acks: int = -1, codec: str = "none", idempotent: bool = False
    ) -> Iterator["_Producer"]:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.address,
                "acks": acks,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "linger.ms": 1,
                "message.max.bytes": _BYTES_MAX,
                "message.timeout.ms": PATIENCE_S * 1000,
                "reconnect.backoff.max.ms": 200,
            }
        )
        yield _Producer(producer)
        producer.purge()
        producer.flush(PATIENCE_S)

    @contextmanager
    def consumer(
        self,
        topic: str,
        starts: Mapping[int, Start],
        *,
        reset: str = "error",
        read_committed: bool = False,
        wait_ms: int = 500,
    ) -> Iterator["_Consumer"]:
        consumer = self._consumer(
            {
                "auto.offset.reset": reset,
                "isolation.level": "read_committed" if read_committed else "read_uncommitted",
                "fetch.wait.max.ms": wait_ms,
                "socket.timeout.ms": max(wait_ms + 1000, 60_000),
                "reconnect.backoff.max.ms": 200,
            }
        )
        try:
            consumer.assign(
                [
                    TopicPartition(topic, partition, _offset(start))
                    for partition, start in starts.items()
                ]
            )
            yield _Consumer(consumer)
        finally:
            consumer.close()

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        consumer = self._consumer({})
        try:
            (found,) = consumer.offsets_for_times(
                [TopicPartition(topic, partition, timestamp_ms)], timeout=PATIENCE_S
            )
        finally:
            consumer.close()
        if found.error is not None:
            raise Refused(found.error.code(), str(found.error))
        return None if found.offset == OFFSET_END else int(found.offset)

    def _consumer(self, more: Mapping[str, Any]) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "not used",
                "enable.auto.commit": False,
                **more,
            }
        )

    def admin(self) -> "_Admin":
        return _Admin(AdminClient({"bootstrap.servers": self.address}))


def _offset(start: Start) -> int:
    return _OFFSETS[start] if isinstance(start, str) else start


class _Producer:
    def __init__(self, producer: confluent_kafka.Producer) -> None:
        self._producer = producer

    def send(self, topic: str, records: Sequence[Sent]) -> list[int]:
        offsets: list[int] = []
        problems: list[confluent_kafka.KafkaError] = []

        def delivered(error: confluent_kafka.KafkaError | None, message: Any) -> None:
            if error is not None:
                problems.append(error)
            else:
                offsets.append(message.offset())

        for record in records:
            self._producer.produce(topic, on_delivery=delivered, **_arguments(record))
        assert self._producer.flush(PATIENCE_S) == 0, "records are still on their way"
        if problems:
            raise Refused(problems[0].code(), problems[0].str())
        return offsets


def _arguments(record: Sent) -> dict[str, Any]:
    arguments: dict[str, Any] = {"key": record.key, "value": record.value}
    if record.headers:
        arguments["headers"] = list(record.headers)
    if record.timestamp_ms is not None:
        arguments["timestamp"] = record.timestamp_ms
    if record.partition is not None:
        arguments["partition"] = record.partition
    return arguments


class _Consumer:
    def __init__(self, consumer: confluent_kafka.Consumer) -> None:
        self._consumer = consumer

    def take(self, count: int) -> list[Received]:
        return collect(count, self._poll)

    def _poll(self, count: int) -> list[Received]:
        messages = self._consumer.consume(count, timeout=0.5)
        for message in messages:
            error = message.error()
            if error is not None and not error.retriable():
                raise Refused(error.code(), error.str())
        return [_received(message) for message in messages if message.error() is None]


def _received(message: Any) -> Received:
    kind, timestamp_ms = message.timestamp()
    return Received(
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=timestamp_ms,
        is_log_append_time=kind == TIMESTAMP_LOG_APPEND_TIME,
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )


class _Admin:
    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
        _result(self._admin.create_topics([topic])[name])

    def validate_topic(self, name: str, partitions: int) -> None:
        topic = NewTopic(name, num_partitions=partitions)
        _result(self._admin.create_topics([topic], validate_only=True)[name])

    def delete_topic(self, name: str) -> None:
        _result(self._admin.delete_topics([name])[name])

    def add_partitions(self, name: str, total: int) -> None:
        _result(self._admin.create_partitions([NewPartitions(name, total)])[name])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=PATIENCE_S).topics)

    def partition_count(self, name: str) -> int:
        wanted = confluent_kafka.TopicCollection([name])
        return len(_result(self._admin.describe_topics(wanted)[name]).partitions)

    def config(self, name: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, name)
        entries = _result(self._admin.describe_configs([resource])[resource])
        return {entry.name: entry.value for entry in entries.values()}

    def change_config(self, name: str, changes: Mapping[str, str]) -> None:
        resource = ConfigResource(
            ResourceType.TOPIC,
            name,
            incremental_configs=[
                ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
                for key, value in changes.items()
            ],
        )
        _result(self._admin.incremental_alter_configs([resource])[resource])

    def delete_records(self, name: str, partition: int, offset: int) -> int:
        place = TopicPartition(name, partition, offset)
        return int(_result(self._admin.delete_records([place])[place]).low_watermark)

    def cluster(self) -> tuple[str, dict[int, str]]:
        found = _result(self._admin.describe_cluster())
        return found.cluster_id, {node.id: f"{node.host}:{node.port}" for node in found.nodes}


def _result(future: Any) -> Any:
    try:
        return future.result(PATIENCE_S)
    except confluent_kafka.KafkaException as problem:
        raise Refused(problem.args[0].code(), problem.args[0].str()) from None
