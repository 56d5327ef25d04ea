"""RabbitMQ's queues over AMQP 0.9.1, frame by frame; no client library stands in between."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, Literal

from bench.load import (
    Command,
    Generators,
    Job,
    Latency,
    LoadFailed,
    Throughput,
    Wire,
    latency,
    run_generator,
    throughput,
)
from bench.queue_load import Crew
from bench.sockets import dial, receive_exactly

Kind = Literal["classic", "quorum"]
Method = tuple[int, int]  # class and method

START: Final[Method] = (10, 10)
START_OK: Final[Method] = (10, 11)
TUNE: Final[Method] = (10, 30)
TUNE_OK: Final[Method] = (10, 31)
OPEN: Final[Method] = (10, 40)
OPEN_OK: Final[Method] = (10, 41)
CHANNEL_OPEN: Final[Method] = (20, 10)
CHANNEL_OPEN_OK: Final[Method] = (20, 11)
DECLARE: Final[Method] = (50, 10)
DECLARE_OK: Final[Method] = (50, 11)
DELETE: Final[Method] = (50, 40)
DELETE_OK: Final[Method] = (50, 41)
QOS: Final[Method] = (60, 10)
QOS_OK: Final[Method] = (60, 11)
CONSUME: Final[Method] = (60, 20)
PUBLISH: Final[Method] = (60, 40)
CONFIRM: Final[Method] = (85, 10)
CONFIRM_OK: Final[Method] = (85, 11)

METHOD_FRAME: Final = 1
HEADER_FRAME: Final = 2
BODY_FRAME: Final = 3
FRAME_END: Final = b"\xce"
PASSIVE, DURABLE, NO_WAIT = 0x01, 0x02, 0x08
HAS_DELIVERY_MODE: Final = 0x1000
PERSISTENT: Final = 2
NO_ARGUMENTS: Final = struct.pack(">I", 0)
CHUNK_MESSAGES: Final = 500
PACE_PREFETCH: Final = 100
SETTLE_S: Final = 60.0


class RabbitQueues:
    """Durable queues of one kind with persistent messages."""

    def __init__(self, port: int, generators: Generators, kind: Kind) -> None:
        self.port = port
        self.generators = generators
        self.kind = kind

    @contextmanager
    def queue(self, name: str) -> Iterator[None]:
        with self._channel() as channel:
            _declare(channel, name, self.kind)
            try:
                yield
            finally:
                _call(channel, DELETE, struct.pack(">H", 0) + _short(name) + b"\0", DELETE_OK)

    def fill(self, name: str, portion: int, job: Job) -> int:
        """TCP holds the sender up; that all are there is seen in the length of the queue."""
        chunk = _publish_frames(name, bytes(job.size_bytes)) * CHUNK_MESSAGES
        sent, stop_s = 0, time.monotonic() + job.seconds
        with self._channel() as channel:
            channel.settimeout(SETTLE_S)
            while sent < job.count and time.monotonic() < stop_s:
                channel.sendall(chunk)
                sent += CHUNK_MESSAGES
            deadline_s = time.monotonic() + SETTLE_S
            while _declare(channel, name, self.kind, passive=True) < sent:
                if time.monotonic() > deadline_s:
                    raise LoadFailed("not every message arrived in the queue")
                time.sleep(0.05)
        return sent

    def drain(self, name: str, crew: Crew, job: Job) -> Throughput:
        command: Command = (
            *self.generators.queue,
            *("drain", "amqp", job.seconds, job.count, crew.portion),
        )
        with self._workers(name, crew) as wires:
            return throughput(run_generator(command, seconds=job.seconds, wires=wires))

    def pace(self, name: str, rate: int, job: Job) -> Latency:
        unit = _publish_frames(name, bytes(job.size_bytes))
        stamp_at = len(unit) - job.size_bytes - len(FRAME_END)
        command: Command = (
            *self.generators.queue,
            *("pace", "amqp", job.seconds, rate, stamp_at),
        )
        with (
            self._channel() as publisher,
            self._workers(name, Crew(consumers=1, portion=PACE_PREFETCH)) as (worker,),
        ):
            _call(publisher, CONFIRM, b"\0", CONFIRM_OK)
            wires = [Wire(publisher, unit), worker]
            return latency(run_generator(command, seconds=job.seconds, wires=wires))

    @contextmanager
    def _workers(self, name: str, crew: Crew) -> Iterator[list[Wire]]:
        """Connections whose first frame subscribes; the prefetch is what a worker takes at once."""
        wanted = struct.pack(">H", 0) + _short(name) + _short("") + bytes([NO_WAIT]) + NO_ARGUMENTS
        with ExitStack() as opened:
            wires = []
            for _ in range(crew.consumers):
                channel = opened.enter_context(self._channel())
                _call(channel, QOS, struct.pack(">IHB", 0, crew.portion, 0), QOS_OK)
                wires.append(Wire(channel, _method_frame(1, CONSUME, wanted)))
            yield wires

    def _channel(self) -> socket.socket:
        """A connection whose channel 1 is open."""
        connection = dial(self.port)
        try:
            _log_in(connection)
        except (OSError, LoadFailed):
            connection.close()
            raise
        return connection


def _log_in(connection: socket.socket) -> None:
    connection.sendall(b"AMQP\0\0\x09\x01")
    _receive_method(connection, START)
    answer = NO_ARGUMENTS + _short("PLAIN") + _long(b"\0guest\0guest") + _short("en_US")
    connection.sendall(_method_frame(0, START_OK, answer))
    channels, frame_bytes, _ = struct.unpack(">HIH", _receive_method(connection, TUNE))
    connection.sendall(_method_frame(0, TUNE_OK, struct.pack(">HIH", channels, frame_bytes, 0)))
    connection.sendall(_method_frame(0, OPEN, _short("/") + _short("") + b"\0"))
    _receive_method(connection, OPEN_OK)
    _call(connection, CHANNEL_OPEN, _short(""), CHANNEL_OPEN_OK)


def _declare(channel: socket.socket, name: str, kind: Kind, *, passive: bool = False) -> int:
    """Make a queue, or look at it (`passive`); returns how many messages are ready in it."""
    kind_argument = _short("x-queue-type") + b"S" + _long(kind.encode())
    bits = DURABLE | (PASSIVE if passive else 0)
    wanted = struct.pack(">H", 0) + _short(name) + bytes([bits]) + _long(kind_argument)
    answer = _call(channel, DECLARE, wanted, DECLARE_OK)
    ready: int = struct.unpack_from(">I", answer, 1 + answer[0])[0]
    return ready


def _publish_frames(queue: str, body: bytes) -> bytes:
    """A persistent message to the default exchange: method, header and body."""
    head = struct.pack(">HHQHB", 60, 0, len(body), HAS_DELIVERY_MODE, PERSISTENT)
    publish = struct.pack(">H", 0) + _short("") + _short(queue) + b"\0"
    return (
        _method_frame(1, PUBLISH, publish)
        + _frame(HEADER_FRAME, 1, head)
        + _frame(BODY_FRAME, 1, body)
    )


def _call(channel: socket.socket, method: Method, arguments: bytes, answer: Method) -> bytes:
    """Send a method on channel 1 and return the arguments of its answer."""
    channel.sendall(_method_frame(1, method, arguments))
    return _receive_method(channel, answer)


def _receive_method(connection: socket.socket, wanted: Method) -> bytes:
    while True:
        kind, _, size_bytes = struct.unpack(">BHI", receive_exactly(connection, 7))
        payload = receive_exactly(connection, size_bytes + 1)[:-1]
        if kind != METHOD_FRAME:
            continue  # a heartbeat
        method = struct.unpack_from(">HH", payload)
        if method == wanted:
            return payload[4:]
        raise LoadFailed(f"RabbitMQ sent {method} instead of {wanted}: {payload[4:]!r}")


def _method_frame(channel: int, method: Method, arguments: bytes) -> bytes:
    return _frame(METHOD_FRAME, channel, struct.pack(">HH", *method) + arguments)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def _short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def _long(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value
