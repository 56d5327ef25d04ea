"""The load programs again, in Python, for machines without a C compiler.

Same commands and same results as `native/rdkafka.c` and the `flood kafka` of `native/wire.c`;
here the client is what limits, and the report says so.
"""

import json
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

FLUSH_S = 30.0
GRACE_S = 10.0
JOIN_S = 30.0
WARM_UP_NS = 1_000_000_000


def main() -> None:
    mode, *arguments = sys.argv[1:]
    commands: dict[str, Callable[..., Any]] = {
        "produce": produce,
        "consume": consume,
        "latency": latency,
        "commit": commit,
        "flood": flood,
    }
    if mode not in commands:
        sys.exit(f"{mode} needs the C load generator")
    print(json.dumps(commands[mode](*arguments)))


def produce(address: str, topic: str, size: str, count: str, limit_s: str, *settings: str) -> Any:
    failures: list[KafkaError] = []
    producer = _producer(address, settings, failures)
    payload = bytes(int(size))
    _send(producer, topic, payload)
    _flush(producer, failures)
    begun_s, sent = time.monotonic(), 0
    while sent < int(count) and (sent % 1024 or time.monotonic() - begun_s < float(limit_s)):
        _send(producer, topic, payload)
        sent += 1
    _flush(producer, failures)
    return {"messages": sent, "seconds": time.monotonic() - begun_s}


def consume(address: str, topic: str, count: str, limit_s: str, *settings: str) -> Any:
    consumer = _consumer(address, topic, settings)
    deadline_s = time.monotonic() + float(limit_s)
    received, first_s, last_s = 0, 0.0, 0.0
    while received < int(count) and time.monotonic() < deadline_s:
        messages = consumer.consume(10_000, timeout=0.1)
        if messages:
            last_s = time.monotonic()
            first_s = first_s or last_s
            received += sum(message.error() is None for message in messages)
    consumer.close()
    return {"messages": received, "seconds": last_s - first_s}


def latency(address: str, topic: str, size: str, rate: str, limit_s: str, *settings: str) -> Any:
    failures: list[KafkaError] = []
    producer = _producer(address, settings, failures)
    _send(producer, topic, bytes(int(size)))
    _flush(producer, failures)
    count = int(float(rate) * float(limit_s))
    start_ns = time.monotonic_ns() + 500_000_000
    deadline_ns = start_ns + int((float(limit_s) + GRACE_S) * 1e9)
    arrivals: list[tuple[int, int]] = []
    receiver = threading.Thread(
        target=_receive, args=(_consumer(address, topic, ()), count, deadline_ns, arrivals)
    )
    receiver.start()
    for number in range(count):
        due_ns = start_ns + int(number * 1e9 / float(rate))
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        _send(producer, topic, struct.pack("=q", due_ns).ljust(int(size), b"\0"))
    _flush(producer, failures)
    receiver.join()
    if len(arrivals) < count:
        sys.exit("messages were lost or late by 10 s")
    took_ns = sorted(at - due for due, at in arrivals if due >= start_ns + WARM_UP_NS)
    p50_ns, p99_ns = took_ns[len(took_ns) // 2], took_ns[len(took_ns) * 99 // 100]
    return {"messages": len(took_ns), "p50_ms": p50_ns / 1e6, "p99_ms": p99_ns / 1e6}


def commit(address: str, topic: str, count: str, limit_s: str, *settings: str) -> Any:
    """A member of a group; timed from the first commit on, so that joining is not part of it."""
    named = dict(setting.split("=", 1) for setting in settings)
    consumer = Consumer({"bootstrap.servers": address, **named})
    consumer.subscribe([topic])
    committed, first_s, last_s = -1, 0.0, 0.0
    deadline_s = time.monotonic() + JOIN_S
    while committed < int(count) and time.monotonic() < deadline_s:
        message = consumer.poll(0.1)
        if message is None or message.error() is not None:
            continue
        consumer.commit(message=message, asynchronous=False)
        last_s = time.monotonic()
        committed += 1
        if committed == 0:
            first_s, deadline_s = last_s, last_s + float(limit_s)
    consumer.close()
    if committed < 1:
        sys.exit("nothing was committed in time")
    return {"messages": committed, "seconds": last_s - first_s}


def flood(protocol: str, limit_s: str, count: str, window: str, unit: str, check_at: str) -> Any:
    """One request in flight per connection; the other protocols need the C program."""
    if (protocol, window, unit) != ("kafka", "1", "1"):
        sys.exit(f"flood {protocol} needs the C load generator")
    wires = dict(_read_wires(sys.stdin.buffer))
    poller = selectors.DefaultSelector()
    begun_s = time.monotonic()
    for wire, request in wires.items():
        poller.register(wire, selectors.EVENT_READ, wire)
        wire.sendall(request)
    answered, in_flight, stop_s = 0, len(wires), begun_s + float(limit_s)
    while in_flight and time.monotonic() < stop_s + GRACE_S:
        for key, _ in poller.select(timeout=0.1):
            connection: socket.socket = key.data
            _check_answer(connection, int(check_at))
            answered += 1
            if time.monotonic() < stop_s and answered < int(count):
                connection.sendall(wires[connection])
            else:
                in_flight -= 1
    if in_flight:
        sys.exit("not every request was answered in time")
    return {"messages": answered, "seconds": time.monotonic() - begun_s}


def _producer(address: str, settings: tuple[str, ...], failures: list[KafkaError]) -> Producer:
    def note(error: KafkaError | None, message: object) -> None:
        if error is not None:
            failures.append(error)

    named = dict(setting.split("=", 1) for setting in settings)
    fixed = {"bootstrap.servers": address, "delivery.report.only.error": True, "on_delivery": note}
    return Producer({**fixed, **named})


def _consumer(address: str, topic: str, settings: tuple[str, ...]) -> Consumer:
    named = dict(setting.split("=", 1) for setting in settings)
    fixed = {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**fixed, **named})
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def _send(producer: Producer, topic: str, payload: bytes) -> None:
    while True:
        try:
            producer.produce(topic, payload, partition=0)
            return
        except BufferError:
            producer.poll(0.01)


def _flush(producer: Producer, failures: list[KafkaError]) -> None:
    if producer.flush(FLUSH_S):
        sys.exit("not everything was acknowledged in time")
    if failures:
        sys.exit(str(failures[0]))


def _receive(
    consumer: Consumer, count: int, deadline_ns: int, arrivals: list[tuple[int, int]]
) -> None:
    while len(arrivals) < count and time.monotonic_ns() < deadline_ns:
        for message in consumer.consume(1, timeout=0.1):
            payload = message.value() or bytes(8)
            due_ns = struct.unpack_from("=q", payload)[0]
            if message.error() is None and due_ns:
                arrivals.append((due_ns, time.monotonic_ns()))
    consumer.close()


def _read_wires(stdin: BinaryIO) -> Iterator[tuple[socket.socket, bytes]]:
    while number := stdin.read(4):
        unit = stdin.read(struct.unpack("=I", stdin.read(4))[0])
        stdin.read(struct.unpack("=I", stdin.read(4))[0])
        connection = socket.socket(fileno=struct.unpack("=i", number)[0])
        connection.settimeout(GRACE_S)
        yield connection, unit


def _check_answer(connection: socket.socket, check_at: int) -> None:
    answer = b""
    while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
        piece = connection.recv(65536)
        if not piece:
            sys.exit("the server closed the connection")
        answer += piece
    if code := int.from_bytes(answer[4 + check_at : 6 + check_at], "big"):
        sys.exit(f"the broker answered with error code {code}")


if __name__ == "__main__":
    main()
