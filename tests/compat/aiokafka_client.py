"""aiokafka: asyncio, and the oldest versions of the protocol among the clients here."""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

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

_BYTES_MAX: Final = 64 << 20

T = TypeVar("T")


class AiokafkaClient(Library):
    name = "aiokafka"

    def can_send(self, record: Sent) -> bool:
        return record.key is not None or record.value is not None

    @contextmanager
    def producer(
        self, *, acks: int = -1, codec: str = "none", idempotent: bool = False
    ) -> Iterator["_Producer"]:
        with _loop() as loop:
            producer = loop.run_until_complete(self._start_producer(acks, codec, idempotent))
            try:
                yield _Producer(loop, producer)
            finally:
                loop.run_until_complete(producer.stop())

    async def _start_producer(self, acks: int, codec: str, idempotent: bool) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.address,
            acks=acks,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            max_request_size=_BYTES_MAX,
            request_timeout_ms=PATIENCE_S * 1000,
            linger_ms=1,
        )
        await producer.start()
        return producer

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
        with _loop() as loop:
            consumer = loop.run_until_complete(
                self._start_consumer(
                    auto_offset_reset="none" if reset == "error" else reset,
                    isolation_level="read_committed" if read_committed else "read_uncommitted",
                    fetch_max_wait_ms=wait_ms,
                    request_timeout_ms=max(wait_ms + 1000, 40_000),
                )
            )
            try:
                loop.run_until_complete(_assign(consumer, topic, starts))
                yield _Consumer(loop, consumer)
            finally:
                loop.run_until_complete(consumer.stop())

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        async def ask() -> int | None:
            consumer = await self._start_consumer()
            place = TopicPartition(topic, partition)
            try:
                found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
            finally:
                await consumer.stop()
            return None if found is None else int(found.offset)

        return asyncio.run(ask())

    async def _start_consumer(self, **more: Any) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.address, group_id=None, enable_auto_commit=False, **more
        )
        await consumer.start()
        return consumer

    def admin(self) -> "_Admin":
        return _Admin(self.address)


@contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _assign(consumer: AIOKafkaConsumer, topic: str, starts: Mapping[int, Start]) -> None:
    consumer.assign([TopicPartition(topic, partition) for partition in starts])
    for partition, start in starts.items():
        place = TopicPartition(topic, partition)
        if start == BEGINNING:
            await consumer.seek_to_beginning(place)
        elif start == END:
            await consumer.seek_to_end(place)
        else:
            consumer.seek(place, start)


class _Producer:
    def __init__(self, loop: asyncio.AbstractEventLoop, producer: AIOKafkaProducer) -> None:
        self._loop = loop
        self._producer = producer

    def send(self, topic: str, records: Sequence[Sent]) -> list[int]:
        return self._loop.run_until_complete(self._send(topic, records))

    async def _send(self, topic: str, records: Sequence[Sent]) -> list[int]:
        try:
            futures = [
                await self._producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            placed = await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
        except KafkaError as problem:
            raise Refused(problem.errno, str(problem)) from None
        return [-1 if one is None else one.offset for one in placed]


class _Consumer:
    def __init__(self, loop: asyncio.AbstractEventLoop, consumer: AIOKafkaConsumer) -> None:
        self._loop = loop
        self._consumer = consumer

    def take(self, count: int) -> list[Received]:
        return collect(count, self._poll)

    def _poll(self, count: int) -> list[Received]:
        try:
            found = self._loop.run_until_complete(
                self._consumer.getmany(timeout_ms=500, max_records=count)
            )
        except KafkaError as problem:
            raise Refused(problem.errno, str(problem)) from None
        return [received(message) for messages in found.values() for message in messages]


class _Admin:
    def __init__(self, address: str) -> None:
        self._address = address

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        topic = NewTopic(name, partitions, 1, topic_configs=dict(config or {}))
        _check(self._ask("create_topics", [topic]).topic_errors)

    def validate_topic(self, name: str, partitions: int) -> None:
        topic = NewTopic(name, partitions, 1)
        _check(self._ask("create_topics", [topic], validate_only=True).topic_errors)

    def delete_topic(self, name: str) -> None:
        _check(self._ask("delete_topics", [name]).topic_error_codes)

    def add_partitions(self, name: str, total: int) -> None:
        _check(self._ask("create_partitions", {name: NewPartitions(total)}).topic_errors)

    def topics(self) -> set[str]:
        return set(self._ask("list_topics"))

    def partition_count(self, name: str) -> int:
        (found,) = self._ask("describe_topics", [name])
        if found["error_code"]:
            raise Refused(found["error_code"])
        return len(found["partitions"])

    def config(self, name: str) -> dict[str, str]:
        (answer,) = self._ask("describe_configs", [ConfigResource(ConfigResourceType.TOPIC, name)])
        ((code, text, _, _, entries),) = answer.resources
        if code:
            raise Refused(code, text)
        return {entry[0]: entry[1] for entry in entries}

    def change_config(self, name: str, changes: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, configs=dict(changes))
        (answer,) = self._ask("alter_configs", [resource])
        ((code, text, *_),) = answer.resources
        if code:
            raise Refused(code, text)

    def delete_records(self, name: str, partition: int, offset: int) -> int:
        place = TopicPartition(name, partition)
        return int(self._ask("delete_records", {place: RecordsToDelete(offset)})[place])

    def cluster(self) -> tuple[str, dict[int, str]]:
        found = self._ask("describe_cluster")
        nodes = {node["node_id"]: f"{node['host']}:{node['port']}" for node in found["brokers"]}
        return found["cluster_id"], nodes

    def _ask(self, method: str, *arguments: Any, **more: Any) -> Any:
        async def ask() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self._address)
            await admin.start()
            try:
                return await getattr(admin, method)(*arguments, **more)
            except KafkaError as problem:
                raise Refused(problem.errno, str(problem)) from None
            finally:
                await admin.close()

        return _run(ask())


def _run(question: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(question)


def _check(outcomes: Sequence[Any]) -> None:
    for _, code, *text in outcomes:
        if code:
            raise Refused(code, *text[:1])
