"""kafka-python: all Python, one of the two clients that are older than librdkafka."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

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
    received,
)
from ottla.errors import ErrorCode

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its files the old way
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka.admin import ConfigResource, ConfigResourceType
    from kafka.errors import KafkaError
    from kafka.structs import TopicPartition

    from compat.lent_codecs import lend_codecs

lend_codecs()

_BYTES_MAX: Final = 64 << 20


def partition_of(topic: str, index: int) -> TopicPartition:
    """A partition as kafka-python's admin client names it."""
    return TopicPartition(topic, index)


class KafkaPythonClient(Library):
    name = "kafka-python"

    def can_send(self, record: Sent) -> bool:
        return record.key is not None or record.value is not None

    @contextmanager
    def producer(
        self, *, acks: int = -1, codec: str = "none", idempotent: bool = False
    ) -> Iterator["_Producer"]:
        producer = KafkaProducer(
            bootstrap_servers=self.address,
            acks=acks,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            linger_ms=1,
            max_request_size=_BYTES_MAX,
            delivery_timeout_ms=PATIENCE_S * 1000,
            request_timeout_ms=10_000,
            reconnect_backoff_max_ms=200,
            metrics_enabled=False,
        )
        try:
            yield _Producer(producer)
        finally:
            producer.close(timeout=1)

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
            auto_offset_reset="none" if reset == "error" else reset,
            isolation_level="read_committed" if read_committed else "read_uncommitted",
            fetch_max_wait_ms=wait_ms,
            request_timeout_ms=max(wait_ms + 1000, 30_000),
            reconnect_backoff_max_ms=200,
        )
        try:
            consumer.assign([TopicPartition(topic, partition) for partition in starts])
            for partition, start in starts.items():
                _seek(consumer, TopicPartition(topic, partition), start)
            yield _Consumer(consumer)
        finally:
            consumer.close(timeout_ms=1000)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        place = TopicPartition(topic, partition)
        consumer = self._consumer()
        try:
            found = consumer.offsets_for_times({place: timestamp_ms})[place]
        finally:
            consumer.close(timeout_ms=1000)
        return None if found is None else int(found.offset)

    def _consumer(self, **more: Any) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self.address,
            group_id=None,
            enable_auto_commit=False,
            metrics_enabled=False,
            **more,
        )

    @contextmanager
    def raw_admin(self) -> Iterator[KafkaAdminClient]:
        admin = KafkaAdminClient(bootstrap_servers=self.address)
        try:
            yield admin
        finally:
            admin.close()

    def admin(self) -> "_Admin":
        return _Admin(self)


def _seek(consumer: KafkaConsumer, place: TopicPartition, start: Start) -> None:
    if start == BEGINNING:
        consumer.seek_to_beginning(place)
    elif start == END:
        consumer.seek_to_end(place)
    else:
        consumer.seek(place, start)


class _Producer:
    def __init__(self, producer: KafkaProducer) -> None:
        self._producer = producer

    def send(self, topic: str, records: Sequence[Sent]) -> list[int]:
        try:
            futures = [
                self._producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            self._producer.flush(PATIENCE_S)
            return [future.get(PATIENCE_S).offset for future in futures]
        except KafkaError as problem:
            raise Refused(problem.errno, str(problem)) from None


class _Consumer:
    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer

    def take(self, count: int) -> list[Received]:
        return collect(count, self._poll)

    def _poll(self, count: int) -> list[Received]:
        try:
            found = self._consumer.poll(timeout_ms=500, max_records=count)
        except KafkaError as problem:
            raise Refused(problem.errno, str(problem)) from None
        return [received(message) for messages in found.values() for message in messages]


class _Admin:
    def __init__(self, client: KafkaPythonClient) -> None:
        self._client = client

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        self._ask(
            "create_topics", {name: {"num_partitions": partitions, "configs": dict(config or {})}}
        )

    def validate_topic(self, name: str, partitions: int) -> None:
        self._ask("create_topics", {name: {"num_partitions": partitions}}, validate_only=True)

    def delete_topic(self, name: str) -> None:
        self._ask("delete_topics", [name])

    def add_partitions(self, name: str, total: int) -> None:
        self._ask("create_partitions", {name: total})

    def topics(self) -> set[str]:
        return set(self._ask("list_topics"))

    def partition_count(self, name: str) -> int:
        (found,) = self._ask("describe_topics", [name])
        if found["error_code"]:
            raise Refused(found["error_code"])
        return len(found["partitions"])

    def config(self, name: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        found = self._ask("describe_configs", [resource], config_filter="all")
        if not found["topic"][name]:
            # kafka-python keeps the error to itself and shows a topic without settings
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return {key: entry["value"] for key, entry in found["topic"][name].items()}

    def change_config(self, name: str, changes: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, configs=dict(changes))
        found = self._ask("alter_configs", [resource], raise_on_unknown=False)
        if found["topic"][name] != "OK":
            code = found["topic"][name].removeprefix("[Error ").split("]")[0]
            raise Refused(int(code), found["topic"][name])

    def delete_records(self, name: str, partition: int, offset: int) -> int:
        place = TopicPartition(name, partition)
        return int(self._ask("delete_records", {place: offset})[place]["low_watermark"])

    def cluster(self) -> tuple[str, dict[int, str]]:
        found = self._ask("describe_cluster")
        nodes = {node["broker_id"]: f"{node['host']}:{node['port']}" for node in found["brokers"]}
        return found["cluster_id"], nodes

    def _ask(self, method: str, *arguments: Any, **more: Any) -> Any:
        with self._client.raw_admin() as admin:
            try:
                return getattr(admin, method)(*arguments, **more)
            except KafkaError as problem:
                raise Refused(problem.errno, str(problem)) from None
