"""Load in Kafka's protocol: one piece of code and one set of settings for Ottla and Kafka."""

import socket
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from bench.load import (
    Command,
    Generators,
    Job,
    Latency,
    LoadFailed,
    Throughput,
    Transacted,
    Wire,
    latency,
    run_generator,
    running_generator,
    throughput,
    transacted,
)
from bench.produce_request import api_versions_request, error_code_at, one_record_request
from bench.sockets import HOST, dial, receive_frame

RETRY_S: Final = 0.002
ADMIN_TIMEOUT_S: Final = 10.0
OFFSETS_TOPIC: Final = "__consumer_offsets"

# librdkafka's own defaults are the other profile; nothing is set there.
TUNED_PRODUCER: Final = (
    "acks=1",
    "linger.ms=5",
    "batch.size=1000000",
    "batch.num.messages=100000",
    "queue.buffering.max.messages=1000000",
)
TUNED_CONSUMER: Final = (
    "fetch.queue.backoff.ms=1",
    "queued.min.messages=1000000",
)
NO_DELAY_PRODUCER: Final = ("acks=1", "linger.ms=0")
TRANSACTIONAL_PRODUCER: Final = ("linger.ms=0", "transactional.id=bench")
TRANSACTIONS_TOPIC: Final = "__transaction_state"


class KafkaLoad:
    """A broker on a loopback port; the settings are what its topics get for either durability."""

    tunable = True

    def __init__(
        self,
        port: int,
        generators: Generators,
        page_cache_settings: dict[str, str],
        fsync_settings: dict[str, str],
    ) -> None:
        self.port = port
        self.generators = generators
        self.page_cache_settings = page_cache_settings
        self.fsync_settings = fsync_settings
        self.address = f"{HOST}:{port}"
        self._has_transactions = False

    def create(
        self,
        topic: str,
        *,
        fsync: bool = False,
        partitions: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        durable = self.fsync_settings if fsync else self.page_cache_settings
        wanted = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=1,
            config={**durable, **(settings or {})},
        )
        admin = self._admin()
        deadline_s = time.monotonic() + 3 * ADMIN_TIMEOUT_S
        while True:
            try:
                admin.create_topics([wanted])[topic].result(ADMIN_TIMEOUT_S)
                return
            except KafkaException as problem:
                # A broker that has just started may not know itself as a place for replicas yet.
                if problem.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    return
                if time.monotonic() > deadline_s:
                    raise LoadFailed(f"cannot create {topic}: {problem}") from None
                time.sleep(0.1)

    def delete(self, topic: str) -> None:
        admin = self._admin()
        try:
            admin.delete_topics([topic])[topic].result(ADMIN_TIMEOUT_S)
        except KafkaException as problem:
            raise LoadFailed(f"cannot delete {topic}: {problem}") from None

    def produce(self, topic: str, job: Job) -> Throughput:
        return throughput(run_generator(self._produce_command(topic, job), seconds=job.seconds))

    def producing(self, topic: str, job: Job) -> AbstractContextManager[None]:
        return running_generator(self._produce_command(topic, job))

    def consume(self, topic: str, job: Job) -> Throughput:
        return throughput(run_generator(self._consume_command(topic, job), seconds=job.seconds))

    def consuming(self, topic: str, job: Job) -> AbstractContextManager[None]:
        """The same in the background, ended when the block ends."""
        return running_generator(self._consume_command(topic, job))

    def latency(self, topic: str, rate: int, job: Job) -> Latency:
        command: Command = (
            *self.generators.rdkafka,
            *("latency", self.address, topic, job.size_bytes, rate, job.seconds),
            *NO_DELAY_PRODUCER,
        )
        return latency(run_generator(command, seconds=job.seconds))

    def commit(self, topic: str, group: str, job: Job) -> Throughput:
        """One member of a group that reads, commits and waits for that, record by record."""
        command: Command = (
            *self.generators.rdkafka,
            *("commit", self.address, topic, job.count, job.seconds),
            *(f"group.id={group}", "auto.offset.reset=earliest", "enable.auto.commit=false"),
        )
        return throughput(run_generator(command, seconds=job.seconds))

    def keep_commits(self, *, fsync: bool) -> None:
        """Where a committed offset is when it is acknowledged: on disk, or in the page cache."""
        wanted = self.fsync_settings if fsync else self.page_cache_settings
        other = self.page_cache_settings if fsync else self.fsync_settings
        self.configure(OFFSETS_TOPIC, {**dict.fromkeys(other), **wanted})

    def configure(self, topic: str, settings: Mapping[str, str | None]) -> None:
        """Change settings of a topic; None gives one its default again."""
        entries = [
            ConfigEntry(
                name,
                value or "",
                incremental_operation=(
                    AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
                ),
            )
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin = self._admin()  # it must live as long as its answer is waited for
        (changed,) = admin.incremental_alter_configs([resource]).values()
        try:
            changed.result(ADMIN_TIMEOUT_S)
        except KafkaException as problem:
            raise LoadFailed(f"cannot change settings of {topic}: {problem}") from None

    def request(self, topic: str, connections: int, job: Job) -> Throughput:
        unit = one_record_request(topic, bytes(job.size_bytes), acks=1)
        wires = [Wire(self.connect(), unit) for _ in range(connections)]
        command: Command = (
            *self.generators.wire,
            *("flood", "kafka", job.seconds, job.count, 1, 1, error_code_at(topic)),
        )
        try:
            return throughput(run_generator(command, seconds=job.seconds, wires=wires))
        finally:
            for wire in wires:
                wire.connection.close()

    def transact(self, topic: str, records: int, job: Job) -> Transacted:
        if not self._has_transactions:
            self._make_transactions(topic)
            self._has_transactions = True
        return transacted(run_generator(self._transact_command(topic, records, job), seconds=60))

    def _make_transactions(self, topic: str) -> None:
        """The first transaction makes the topic they are kept in, which is then set like others:
        who answers from the page cache here does so in every other row."""
        once = Job(size_bytes=1, seconds=1.0, count=1)
        run_generator(self._transact_command(topic, 1, once), seconds=once.seconds)
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in self.page_cache_settings.items()
        ]
        if entries:
            resource = ConfigResource(
                ResourceType.TOPIC, TRANSACTIONS_TOPIC, incremental_configs=entries
            )
            admin = self._admin()
            admin.incremental_alter_configs([resource])[resource].result(ADMIN_TIMEOUT_S)

    def connect(self) -> socket.socket:
        connection = dial(self.port)
        try:
            connection.sendall(api_versions_request())
            receive_frame(connection)
        except OSError:
            connection.close()
            raise
        return connection

    def first_ack(self, topic: str, deadline_s: float) -> None:
        """Raw requests: librdkafka's own back-off would be part of the figure."""
        request = one_record_request(topic, b"first", acks=1)
        code_at = error_code_at(topic)
        while time.monotonic() < deadline_s:
            try:
                with dial(self.port) as connection:
                    connection.sendall(request)
                    answer = receive_frame(connection)
            except OSError:
                answer = b""
            if len(answer) > code_at and answer[code_at : code_at + 2] == b"\0\0":
                return
            time.sleep(RETRY_S)
        raise LoadFailed("no message was acknowledged in time")

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 3})

    def _transact_command(self, topic: str, records: int, job: Job) -> Command:
        return (
            *self.generators.rdkafka,
            *("transact", self.address, topic, job.size_bytes, records, job.count, job.seconds),
            *TRANSACTIONAL_PRODUCER,
        )

    def _consume_command(self, topic: str, job: Job) -> Command:
        return (
            *self.generators.rdkafka,
            *("consume", self.address, topic, job.count, job.seconds),
            *(TUNED_CONSUMER if job.tuned else ()),
        )

    def _produce_command(self, topic: str, job: Job) -> Command:
        settings = TUNED_PRODUCER if job.tuned else ()
        return (
            *self.generators.rdkafka,
            *("produce", self.address, topic, job.size_bytes, job.count, job.seconds),
            *settings,
        )
