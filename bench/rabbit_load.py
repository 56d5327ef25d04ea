"""Load for RabbitMQ streams over their own binary protocol, which is RabbitMQ at its fastest."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

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
from bench.sockets import dial, receive_frame

RETRY_S: Final = 0.01
FRAME_MESSAGES: Final = 100  # the official clients send up to this many messages in one frame
WINDOW_FRAMES: Final = 100
CREDIT_CHUNKS: Final = 50

DECLARE_PUBLISHER: Final = 0x01
PUBLISH: Final = 0x02
SUBSCRIBE: Final = 0x07
CREDIT: Final = 0x09
CREATE: Final = 0x0D
DELETE: Final = 0x0E
PEER_PROPERTIES: Final = 0x11
SASL_HANDSHAKE: Final = 0x12
SASL_AUTHENTICATE: Final = 0x13
TUNE: Final = 0x14
OPEN: Final = 0x15
RESPONSE: Final = 0x8000
OK: Final = 1
FROM_FIRST: Final = 1
PUBLISH_CONFIRM: Final = 0x03


class RabbitLoad:
    """A RabbitMQ node whose stream and AMQP listeners are on loopback ports."""

    tunable = False

    def __init__(self, port: int, amqp_port: int, generators: Generators) -> None:
        self.port = port
        self.amqp_port = amqp_port
        self.generators = generators

    def create(self, topic: str, *, fsync: bool = False) -> None:
        if fsync:
            raise NotSupported("RabbitMQ streams do not wait for fsync")
        with self.connect() as connection:
            _ask(connection, CREATE, _string(topic) + struct.pack(">i", 0))

    def delete(self, topic: str) -> None:
        with self.connect() as connection:
            _ask(connection, DELETE, _string(topic))

    def produce(self, topic: str, job: Job) -> Throughput:
        with self._publishers(topic, 1, job.size_bytes, FRAME_MESSAGES) as wires:
            command = self._flood_command(job, WINDOW_FRAMES, FRAME_MESSAGES)
            return throughput(run_generator(command, seconds=job.seconds, wires=wires))

    @contextmanager
    def _bulk(self, topic: str, job: Job) -> Iterator[None]:
        command = self._flood_command(job, WINDOW_FRAMES, FRAME_MESSAGES)
        with (
            self._publishers(topic, 1, job.size_bytes, FRAME_MESSAGES) as wires,
            running_generator(command, wires=wires),
        ):
            yield

    def producing(self, topic: str, job: Job) -> AbstractContextManager[None]:
        return self._bulk(topic, job)

    def consume(self, topic: str, job: Job) -> Throughput:
        with self._subscriber(topic) as wire:
            command: Command = (*self.generators.wire, "drain", "rabbit", job.seconds, job.count)
            return throughput(run_generator(command, seconds=job.seconds, wires=[wire]))

    def latency(self, topic: str, rate: int, job: Job) -> Latency:
        with (
            self._publishers(topic, 1, job.size_bytes, 1) as (publisher,),
            self._subscriber(topic) as subscriber,
        ):
            stamp_at = len(publisher.unit) - job.size_bytes
            command: Command = (
                *self.generators.wire,
                "pace",
                "rabbit",
                job.seconds,
                rate,
                stamp_at,
            )
            wires = [publisher, subscriber]
            return latency(run_generator(command, seconds=job.seconds, wires=wires))

    def request(self, topic: str, connections: int, job: Job) -> Throughput:
        with self._publishers(topic, connections, job.size_bytes, 1) as wires:
            command = self._flood_command(job, 1, 1)
            return throughput(run_generator(command, seconds=job.seconds, wires=wires))

    def transact(self, topic: str, records: int, job: Job) -> Transacted:
        raise NotSupported("RabbitMQ's streams have no transactions")

    def connect(self) -> socket.socket:
        connection = dial(self.port)
        try:
            _log_in(connection)
        except (OSError, LoadFailed):
            connection.close()
            raise
        return connection

    def first_ack(self, topic: str, deadline_s: float) -> None:
        while time.monotonic() < deadline_s:
            try:
                with self._publishers(topic, 1, 8, 1) as (publisher,):
                    publisher.connection.sendall(publisher.unit)
                    if _receive_key(publisher.connection) == PUBLISH_CONFIRM:
                        return
            except (OSError, LoadFailed):
                time.sleep(RETRY_S)
        raise LoadFailed("no message was acknowledged in time")

    def _flood_command(self, job: Job, window: int, unit_messages: int) -> Command:
        flood = ("flood", "rabbit", job.seconds, job.count, window, unit_messages, -1)
        return (*self.generators.wire, *flood)

    @contextmanager
    def _publishers(
        self, topic: str, count: int, size_bytes: int, frame_messages: int
    ) -> Iterator[list[Wire]]:
        """Connections that have declared a publisher, with one publish frame each."""
        message = struct.pack(">QI", 0, size_bytes) + bytes(size_bytes)
        body = struct.pack(">Bi", 0, frame_messages) + message * frame_messages
        wires = []
        try:
            for _ in range(count):
                connection = self.connect()
                wires.append(Wire(connection, _frame(PUBLISH, body)))
                _ask(connection, DECLARE_PUBLISHER, b"\0" + _string("") + _string(topic))
            yield wires
        finally:
            for wire in wires:
                wire.connection.close()

    @contextmanager
    def _subscriber(self, topic: str) -> Iterator[Wire]:
        """A connection whose first frame subscribes, and which grants a chunk for each received."""
        wanted = b"\0" + _string(topic) + struct.pack(">HHi", FROM_FIRST, CREDIT_CHUNKS, 0)
        with self.connect() as connection:
            subscribe = _frame(SUBSCRIBE, struct.pack(">I", 1) + wanted)
            yield Wire(connection, subscribe, _frame(CREDIT, struct.pack(">BH", 0, 1)))


def _log_in(connection: socket.socket) -> None:
    _ask(connection, PEER_PROPERTIES, struct.pack(">i", 0))
    _ask(connection, SASL_HANDSHAKE, b"")
    _ask(connection, SASL_AUTHENTICATE, _string("PLAIN") + _bytes(b"\0guest\0guest"))
    tune = receive_frame(connection)
    if _key(tune) != TUNE:
        raise LoadFailed("RabbitMQ did not offer to tune the connection")
    frame_bytes_max, no_heartbeat = struct.unpack_from(">I", tune, 4)[0], 0
    connection.sendall(_frame(TUNE, struct.pack(">II", frame_bytes_max, no_heartbeat)))
    _ask(connection, OPEN, _string("/"))


def _ask(connection: socket.socket, key: int, body: bytes) -> None:
    """Send a command and wait for its own answer."""
    connection.sendall(_frame(key, struct.pack(">I", 1) + body))
    while _key(answer := receive_frame(connection)) != key:
        pass
    code = struct.unpack_from(">H", answer, 8)[0]
    if code != OK:
        raise LoadFailed(f"RabbitMQ answered command {key} with code {code}")


def _frame(key: int, body: bytes) -> bytes:
    return struct.pack(">IHH", 4 + len(body), key, 1) + body


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _bytes(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def _key(frame: bytes) -> int:
    key: int = struct.unpack_from(">H", frame)[0]
    return key & ~RESPONSE


def _receive_key(connection: socket.socket) -> int:
    return _key(receive_frame(connection))
