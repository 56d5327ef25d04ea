"""JetStream streams as work queues: explicit acknowledgements, each of which is answered."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Final

from bench.load import (
    Command,
    Job,
    Latency,
    LoadFailed,
    Throughput,
    Wire,
    latency,
    run_generator,
    throughput,
)
from bench.nats_load import NatsLoad
from bench.queue_load import Crew, unix_s

CONSUMER: Final = "workers"
EXPIRES_NS: Final = 120_000_000_000  # of a pull: longer than any measurement
PACE_PORTION: Final = 100  # as PACE_PULL of queue.c
SETTLE_S: Final = 30.0
CHUNK_MESSAGES: Final = 1_000


class NatsQueues:
    """Work-queue streams, each with one durable pull consumer. The server decides about fsync."""

    def __init__(self, load: NatsLoad) -> None:
        self.load = load

    @contextmanager
    def queue(self, name: str) -> Iterator[None]:
        stream = {"name": name, "subjects": [name], "storage": "file", "retention": "workqueue"}
        self.load.ask(f"STREAM.CREATE.{name}", stream)
        config = {"durable_name": CONSUMER, "ack_policy": "explicit", "deliver_policy": "all"}
        wanted = {"stream_name": name, "config": config}
        try:
            self.load.ask(f"CONSUMER.DURABLE.CREATE.{name}.{CONSUMER}", wanted)
            yield
        finally:
            self.load.delete(name)

    def fill(self, name: str, portion: int, job: Job) -> int:
        return self.load.produce(name, job).messages

    def drain(self, name: str, crew: Crew, job: Job) -> Throughput:
        command: Command = (
            *self.load.generators.queue,
            *("drain", "nats", job.seconds, job.count, crew.portion),
        )
        with self._workers(name, crew) as wires:
            return throughput(run_generator(command, seconds=job.seconds, wires=wires))

    def pace(self, name: str, rate: int, job: Job) -> Latency:
        with (
            self.load.publishers(name, 1, job.size_bytes) as (publisher,),
            self._workers(name, Crew(consumers=1, portion=PACE_PORTION)) as (worker,),
        ):
            stamp_at = len(publisher.unit) - job.size_bytes - 2
            command: Command = (
                *self.load.generators.queue,
                *("pace", "nats", job.seconds, rate, stamp_at),
            )
            return latency(run_generator(command, seconds=job.seconds, wires=[publisher, worker]))

    @contextmanager
    def _workers(self, name: str, crew: Crew) -> Iterator[list[Wire]]:
        """Connections that pull: messages on subscription 1, answers to acknowledgements on 2."""
        with ExitStack() as opened:
            wires = []
            for number in range(crew.consumers):
                messages, answers = f"_INBOX.{name}.m{number}", f"_INBOX.{name}.a{number}"
                connection = opened.enter_context(self.load.connect())
                connection.sendall(f"SUB {messages} 1\r\nSUB {answers} 2\r\n".encode())
                more = json.dumps({"batch": crew.portion, "expires": EXPIRES_NS}).encode()
                next_message = f"$JS.API.CONSUMER.MSG.NEXT.{name}.{CONSUMER}"
                pull = f"PUB {next_message} {messages} {len(more)}\r\n".encode() + more + b"\r\n"
                wires.append(Wire(connection, pull, answers.encode()))
            yield wires


def released_per_s(load: NatsLoad, name: str, due_s: float, job: Job) -> float:
    """How fast a plain consumer gets messages that were all scheduled for `due_s` (Unix time)."""
    stream = {
        "name": name,
        "subjects": [f"{name}.>"],
        "storage": "file",
        "allow_msg_schedules": True,
    }
    load.ask(f"STREAM.CREATE.{name}", stream)
    try:
        _schedule(load, name, due_s, job)
        with load.puller(name, filter_subject=f"{name}.due") as wire:
            command: Command = (*load.generators.wire, "drain", "nats", job.seconds, job.count)
            done = throughput(run_generator(command, seconds=job.seconds, wires=[wire]))
        if done.messages < job.count:
            raise LoadFailed(f"only {done.messages} of {job.count} messages were released in time")
        return done.per_s
    finally:
        load.delete(name)


def _schedule(load: NatsLoad, name: str, due_s: float, job: Job) -> None:
    """One subject for each message: a subject has one schedule."""
    due = datetime.fromtimestamp(due_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    head = f"NATS/1.0\r\nNats-Schedule: @at {due}\r\nNats-Schedule-Target: {name}.due\r\n\r\n"
    sizes = f"{len(head)} {len(head) + job.size_bytes}"
    content = head.encode() + bytes(job.size_bytes)
    with load.connect() as connection:
        for first in range(0, job.count, CHUNK_MESSAGES):
            connection.sendall(
                b"".join(
                    f"HPUB {name}.s.{number} {sizes}\r\n".encode() + content + b"\r\n"
                    for number in range(first, min(first + CHUNK_MESSAGES, job.count))
                )
            )
        deadline_s = time.monotonic() + SETTLE_S
        while _messages(load, name) < job.count:
            if time.monotonic() > deadline_s:
                raise LoadFailed("not every scheduled message arrived")
            time.sleep(0.05)
    if unix_s() >= due_s:
        raise LoadFailed("the messages were due before all of them were there")


def _messages(load: NatsLoad, name: str) -> int:
    answer = load.ask(f"STREAM.INFO.{name}", {})
    return int(answer.partition(b'"messages":')[2].partition(b",")[0])
