"""Share groups as work queues: the same members and the same settings for Ottla and Kafka."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from bench.kafka_load import KafkaLoad
from bench.load import (
    Command,
    Job,
    Latency,
    LoadFailed,
    Throughput,
    Wire,
    latency,
    run_generator,
    running_generator,
    throughput,
)
from bench.produce_request import checksum_at, one_record_request, value_at
from bench.queue_load import Crew
from bench.share_wires import draining, pacing
from bench.sockets import dial, receive_frame
from ottla.protocol.api import APIS, RequestHeader, key_of, parse_response_header, request_frame
from ottla.protocol.codec import decode
from ottla.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

STATE_TOPIC: Final = "__share_group_state"
GROUP_RESOURCE: Final = 32
ALTER_VERSION: Final = 1
PACE_PORTION: Final = 100
JOIN_S: Final = 30.0


class ShareQueues:
    """Topics of one partition, each read by a share group that begins with its first record."""

    def __init__(self, load: KafkaLoad, *, durable: bool) -> None:
        self.load = load
        self.durable = durable

    @contextmanager
    def queue(self, name: str) -> Iterator[None]:
        self.load.create(name, fsync=self.durable)
        try:
            set_group(self.load.port, name, {"share.auto.offset.reset": "earliest"})
            yield
        finally:
            self.load.delete(name)

    def fill(self, name: str, portion: int, job: Job) -> int:
        """In batches of `portion`: members acquire whole batches, whatever their limit is."""
        produce: Command = (
            *self.load.generators.rdkafka,
            *("produce", self.load.address, name, job.size_bytes, job.count, job.seconds),
            *(f"batch.num.messages={portion}", "acks=1"),
        )
        return throughput(run_generator(produce, seconds=job.seconds)).messages

    def drain(self, name: str, crew: Crew, job: Job) -> Throughput:
        with draining(self.load, name, crew.consumers, crew.portion) as (wires, positions):
            command: Command = (
                *self.load.generators.queue,
                *("drain", "share", job.seconds, job.count, crew.portion),
                *positions,
            )
            return throughput(run_generator(command, seconds=job.seconds, wires=wires))

    def drain_by_library(self, name: str, crew: Crew, job: Job) -> Throughput:
        """The same with librdkafka's share consumer, which commits in a request of its own."""
        command: Command = (
            *self.load.generators.share,
            *("drain", self.load.address, name, crew.consumers, job.count, job.seconds),
            *_consumer_settings(name, crew.portion),
        )
        return throughput(run_generator(command, seconds=job.seconds + JOIN_S))

    def pace(self, name: str, rate: int, job: Job) -> Latency:
        unit = one_record_request(name, bytes(job.size_bytes), acks=1)
        with (
            self.load.connect() as publisher,
            pacing(self.load, name, PACE_PORTION) as (wires, positions),
        ):
            command: Command = (
                *self.load.generators.queue,
                *("pace", "share", job.seconds, rate, value_at(unit, job.size_bytes)),
                *(*positions, checksum_at(unit, job.size_bytes)),
            )
            both = [Wire(publisher, unit), *wires]
            return latency(run_generator(command, seconds=job.seconds, wires=both))

    def set_state_durability(self) -> None:
        """Where an acknowledgement is when it is answered: on disk, or in the page cache.

        The topic must exist: the first share group makes it.
        """
        load = self.load
        wanted = load.fsync_settings if self.durable else load.page_cache_settings
        other = load.page_cache_settings if self.durable else load.fsync_settings
        load.configure(STATE_TOPIC, {**dict.fromkeys(other), **wanted})


@contextmanager
def busy_with_queues(load: KafkaLoad, rate: int, delay_ms: int, job: Job) -> Iterator[None]:
    """A producer, records held back for a while, and a share group, all in the background."""
    name = "bench-busy"
    load.create(name, settings={"delay.enable": "true"})
    try:
        set_group(load.port, name, {"share.auto.offset.reset": "earliest"})
        with running_generator(_pace_command(load, name, rate, job, delay_ms)):
            yield
    finally:
        load.delete(name)


def _pace_command(load: KafkaLoad, name: str, rate: int, job: Job, delay_ms: int) -> Command:
    return (
        *load.generators.share,
        *("pace", load.address, name, job.size_bytes, rate, job.seconds, delay_ms),
        *_consumer_settings(name, PACE_PORTION),
    )


def set_group(port: int, group: str, settings: Mapping[str, str]) -> None:
    """Set settings of a group, which confluent-kafka cannot: its resource types end before them."""
    configs = [
        IncrementalAlterableConfig(name=name, config_operation=0, value=value)
        for name, value in settings.items()
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    key = key_of(IncrementalAlterConfigsRequest)
    with dial(port) as connection:
        header = RequestHeader(key, ALTER_VERSION, 1, "bench")
        connection.sendall(request_frame(header, request))
        frame = receive_frame(connection)
    _, position = parse_response_header(key, ALTER_VERSION, frame)
    for result in decode(APIS[key].response_class, ALTER_VERSION, frame, position).responses:
        if result.error_code:
            raise LoadFailed(f"cannot set group {group}: {result.error_message}")


def _consumer_settings(group: str, portion: int) -> tuple[str, ...]:
    return (f"group.id={group}", f"max.poll.records={portion}")
