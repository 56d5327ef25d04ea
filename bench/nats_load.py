"""Load for NATS JetStream over its text protocol; no client library stands in between."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from bench.load import (
    Command,
    Generators,
    Job,
    Latency,
    LoadFailed,
    NotSupported,
    Throughput,
    Transacted,
    Wire,
    latency,
    run_generator,
    running_generator,
    throughput,
)
from bench.sockets import READ_BYTES, dial, receive_until

RETRY_S: Final = 0.002
HELLO: Final = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nPING\r\n'
WINDOW: Final = 4_000  # messages in flight: what the official clients' asynchronous publish allows
PULL_MESSAGES: Final = 4_000


class NatsLoad:
    """A JetStream server on a loopback port; streams are kept in files."""

    tunable = False

    def __init__(self, port: int, generators: Generators) -> None:
        self.port = port
        self.generators = generators

    def create(self, topic: str, *, fsync: bool = False) -> None:
        if fsync:
            raise NotSupported("NATS decides about fsync per server, not per stream")
        self.ask(f"STREAM.CREATE.{topic}", {"name": topic, "subjects": [topic], "storage": "file"})

    def delete(self, topic: str) -> None:
        self.ask(f"STREAM.DELETE.{topic}", {})

    def produce(self, topic: str, job: Job) -> Throughput:
        with self.publishers(topic, 1, job.size_bytes) as wires:
            command = self._flood_command(job, WINDOW)
            return throughput(run_generator(command, seconds=job.seconds, wires=wires))

    @contextmanager
    def _bulk(self, topic: str, job: Job) -> Iterator[None]:
        with (
            self.publishers(topic, 1, job.size_bytes) as wires,
            running_generator(self._flood_command(job, WINDOW), wires=wires),
        ):
            yield

    def producing(self, topic: str, job: Job) -> AbstractContextManager[None]:
        return self._bulk(topic, job)

    def consume(self, topic: str, job: Job) -> Throughput:
        with self.puller(topic) as wire:
            command: Command = (*self.generators.wire, "drain", "nats", job.seconds, job.count)
            return throughput(run_generator(command, seconds=job.seconds, wires=[wire]))

    def latency(self, topic: str, rate: int, job: Job) -> Latency:
        with (
            self.publishers(topic, 1, job.size_bytes) as (publisher,),
            self.puller(topic) as puller,
        ):
            stamp_at = len(publisher.unit) - job.size_bytes - 2
            command: Command = (*self.generators.wire, "pace", "nats", job.seconds, rate, stamp_at)
            return latency(run_generator(command, seconds=job.seconds, wires=[publisher, puller]))

    def request(self, topic: str, connections: int, job: Job) -> Throughput:
        with self.publishers(topic, connections, job.size_bytes) as wires:
            command = self._flood_command(job, 1)
            return throughput(run_generator(command, seconds=job.seconds, wires=wires))

    def transact(self, topic: str, records: int, job: Job) -> Transacted:
        raise NotSupported("NATS has no transactions over several messages")

    def connect(self) -> socket.socket:
        connection = dial(self.port)
        try:
            connection.sendall(HELLO)
            receive_until(connection, b"PONG\r\n")
        except OSError:
            connection.close()
            raise
        return connection

    def first_ack(self, topic: str, deadline_s: float) -> None:
        while time.monotonic() < deadline_s:
            try:
                if b'"seq"' in self._exchange(topic, b"first"):
                    return
            except OSError:
                pass  # not listening yet, or not ready for streams
            time.sleep(RETRY_S)
        raise LoadFailed("no message was acknowledged in time")

    def _flood_command(self, job: Job, window: int) -> Command:
        return (*self.generators.wire, "flood", "nats", job.seconds, job.count, window, 1, -1)

    @contextmanager
    def publishers(self, topic: str, count: int, size_bytes: int) -> Iterator[list[Wire]]:
        """Connections that publish to `topic` and are answered on an inbox of their own."""
        wires = []
        try:
            for number in range(count):
                inbox = f"_INBOX.{topic}.{number}"
                connection = self.connect()
                connection.sendall(f"SUB {inbox} 1\r\n".encode())
                unit = (
                    f"PUB {topic} {inbox} {size_bytes}\r\n".encode() + bytes(size_bytes) + b"\r\n"
                )
                wires.append(Wire(connection, unit))
            yield wires
        finally:
            for wire in wires:
                wire.connection.close()

    @contextmanager
    def puller(self, topic: str, filter_subject: str = "") -> Iterator[Wire]:
        """A connection that pulls from the stream's beginning, without acknowledgements."""
        config = {"durable_name": "reader", "ack_policy": "none", "deliver_policy": "all"}
        chosen = {"filter_subject": filter_subject} if filter_subject else {}
        wanted = {"stream_name": topic, "config": {**config, **chosen}}
        self.ask(f"CONSUMER.DURABLE.CREATE.{topic}.reader", wanted)
        inbox = f"_INBOX.{topic}.pull"
        more = json.dumps({"batch": PULL_MESSAGES, "expires": 60_000_000_000}).encode()
        pull = f"PUB $JS.API.CONSUMER.MSG.NEXT.{topic}.reader {inbox} {len(more)}\r\n".encode()
        with self.connect() as connection:
            connection.sendall(f"SUB {inbox} 1\r\n".encode())
            yield Wire(connection, pull + more + b"\r\n", pull + more + b"\r\n")

    def ask(self, name: str, wanted: dict[str, Any]) -> bytes:
        """A request to JetStream's interface; returns the response, which is no error."""
        answer = self._exchange(f"$JS.API.{name}", json.dumps(wanted).encode())
        if b'"error"' in answer:
            raise LoadFailed(answer.decode(errors="replace"))
        return answer

    def _exchange(self, subject: str, payload: bytes) -> bytes:
        """One request and its answer over a connection of its own."""
        with self.connect() as connection:
            head = f"SUB _INBOX.ask 1\r\nPUB {subject} _INBOX.ask {len(payload)}\r\n"
            connection.sendall(head.encode() + payload + b"\r\n")
            received = receive_until(connection, b"MSG ")
            while received.count(b"\r\n", received.index(b"MSG ")) < 2:
                received += connection.recv(READ_BYTES)
            return received
