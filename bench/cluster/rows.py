"""What is measured of a cluster, in one life of it: each step finds what the one before left."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

from confluent_kafka import Message, Producer

from bench.cluster.nodes import NODES, ClusterServer, RunningCluster, cluster
from bench.load import (
    Command,
    Generators,
    Latency,
    LoadFailed,
    Throughput,
    latency,
    run_generator,
    throughput,
)
from bench.measures import GB, Metric, Samples, touch_pages

MIB: Final = 1 << 20
_TOPIC: Final = "bench"
_WARM_UP_TOPIC: Final = "warm-up"
_SLOW_TOPIC: Final = "latency"
_SLOW_WARM_UP_TOPIC: Final = "warm-up-latency"
_KILL_TOPIC: Final = "kills"
_RECORD_BYTES: Final = 1000
_RATE: Final = 1000
_SETTLE_S: Final = 2.0
_GAP_MAX_S: Final = 60.0
_PUMP_S: Final = 0.005


def _metric(
    name: str, title: str, unit: str, *, higher: bool = False, worst: bool = False
) -> Metric:
    return Metric(name=name, title=title, unit=unit, higher_is_better=higher, of_worst=worst)


METRICS: Final = (
    _metric("start", "three brokers started, to the first acknowledged record", "s"),
    _metric("idle", "memory of all processes, idle", "MiB"),
    _metric("produce", "produce 1 KB, acks=all, 6 partitions", "msg/s", higher=True),
    _metric("cpu", "CPU of all processes to produce 1 KB", "s/GB"),
    _metric("p50", "end to end at 1,000 msg/s, acks=all, median", "ms"),
    _metric("p99", "end to end at 1,000 msg/s, acks=all, 99th percentile", "ms"),
    _metric("loaded", "memory of all processes, after the load", "MiB"),
    _metric("gap", "kill the leader: time to the next acknowledged record, median", "s"),
    _metric(
        "gap_worst", "kill the leader: time to the next acknowledged record, worst", "s", worst=True
    ),
    _metric("catch_up", "a broker catches up with what it missed", "MB/s", higher=True),
)


class ClusterEffort(NamedTuple):
    """How much work one round is."""

    rounds: int
    warm_up_s: float
    messages: int
    produce_s: float
    latency_s: float
    kills: int
    missed_bytes: int


FULL: Final = ClusterEffort(5, 10.0, 1_000_000, 15.0, 10.0, 4, 1_000_000_000)
QUICK: Final = ClusterEffort(1, 2.0, 50_000, 5.0, 4.0, 1, 50_000_000)


def measure(
    server: ClusterServer, generators: Generators, effort: ClusterEffort, data: Path
) -> Samples:
    with cluster(server, data) as running:
        begun_s = time.monotonic()
        running.start()
        running.create(_TOPIC)
        with Acknowledged(running, _TOPIC) as producer:
            producer.wait_next(READY_AFTER_S)
        yield "start", time.monotonic() - begun_s
        running.wait_in_sync(_TOPIC)
        time.sleep(_SETTLE_S)
        yield "idle", running.rss_bytes() / MIB

        _warm_up(running, generators, effort)
        touch_pages(NODES * effort.messages * _RECORD_BYTES)
        before_s = running.cpu_s()
        produced = _produce(running, generators, _TOPIC, effort.messages, effort.produce_s)
        yield "produce", produced.per_s
        used_s = running.cpu_s() - before_s
        yield "cpu", used_s / (produced.messages * _RECORD_BYTES / GB)
        running.create(_SLOW_TOPIC, partitions=1)
        os.sync()  # the pages that bulk load left dirty are not what is measured
        found = _latency(running, generators, _SLOW_TOPIC, effort.latency_s)
        yield "p50", found.p50_ms
        yield "p99", found.p99_ms
        yield "loaded", running.rss_bytes() / MIB

        for gap_s in _kill_leaders(running, effort.kills):
            yield "gap", gap_s
            yield "gap_worst", gap_s
        yield "catch_up", _catch_up(running, generators, effort.missed_bytes)


READY_AFTER_S: Final = 60.0


def _warm_up(running: RunningCluster, generators: Generators, effort: ClusterEffort) -> None:
    """The load that is measured next, long enough for a just-in-time compiler to have seen it."""
    running.create(_WARM_UP_TOPIC)
    _produce(running, generators, _WARM_UP_TOPIC, effort.messages, effort.warm_up_s)
    running.create(_SLOW_WARM_UP_TOPIC, partitions=1)
    _latency(running, generators, _SLOW_WARM_UP_TOPIC, effort.warm_up_s)


def _produce(
    running: RunningCluster, generators: Generators, topic: str, count: int, seconds: float
) -> Throughput:
    where: Command = (*generators.rdkafka, "spread", running.bootstrap, topic)
    command = (*where, _RECORD_BYTES, count, seconds)
    return throughput(run_generator(command, seconds=seconds))


def _latency(
    running: RunningCluster, generators: Generators, topic: str, seconds: float
) -> Latency:
    where: Command = (*generators.rdkafka, "latency", running.bootstrap, topic)
    command = (*where, _RECORD_BYTES, _RATE, seconds, "acks=all", "linger.ms=0")
    return latency(run_generator(command, seconds=seconds))


def _kill_leaders(running: RunningCluster, count: int) -> Iterator[float]:
    """Kill the leader of a partition that is written to; again when all are back in sync.

    Seconds from each kill to the next acknowledged record.
    """
    running.create(_KILL_TOPIC, partitions=1)
    with Acknowledged(running, _KILL_TOPIC) as producer:
        for _ in range(count):
            running.wait_in_sync(_KILL_TOPIC)
            producer.write_for(_SETTLE_S)
            (partition,) = running.partitions(_KILL_TOPIC)
            running.kill_node(partition.leader)
            yield producer.wait_next(_GAP_MAX_S)
            running.start_node(partition.leader)
        running.wait_in_sync(_KILL_TOPIC)


def _catch_up(running: RunningCluster, generators: Generators, size_bytes: int) -> float:
    """Bytes per second of a broker that was away while so much was written."""
    away = running.partitions(_TOPIC)[0].replicas[0]
    running.stop_node(away)
    written = 0
    while written < size_bytes:
        left = (size_bytes - written) // _RECORD_BYTES + 1
        written += _RECORD_BYTES * _produce(running, generators, _TOPIC, left, 60.0).messages
    begun_s = time.monotonic()
    running.start_node(away)
    running.wait_in_sync(_TOPIC)
    return written / (time.monotonic() - begun_s) / 1e6


class Acknowledged:
    """A producer with librdkafka's defaults, apart from the linger, that knows its last answer."""

    def __init__(self, running: RunningCluster, topic: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": running.bootstrap,
                "linger.ms": 0,
                "enable.idempotence": True,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._last_s = 0.0
        self._problem = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._producer.purge()
        self._producer.flush(1.0)

    def write_for(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        self._write_until(lambda: time.monotonic() >= until_s)

    def wait_next(self, seconds: float) -> float:
        """Write until a record is acknowledged that was written after now; how long that took.

        Responses that were under way when the call came do not count.
        """
        self._producer.poll(0)
        begun_s = time.monotonic()
        deadline_s, counted_s = begun_s + seconds, begun_s + 2 * _PUMP_S
        self._write_until(lambda: self._last_s > counted_s or time.monotonic() > deadline_s)
        if self._last_s <= counted_s:
            raise LoadFailed(f"nothing was acknowledged for {seconds:.0f} s: {self._problem}")
        return self._last_s - begun_s

    def _write_until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._producer.produce(self._topic, b"x" * 100, on_delivery=self._note)
            self._producer.poll(_PUMP_S)

    def _note(self, error: object, _message: Message) -> None:
        if error is None:
            self._last_s = time.monotonic()
        else:
            self._problem = str(error)
