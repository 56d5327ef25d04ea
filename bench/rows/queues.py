"""Work queues: acknowledged messages a second, put to acknowledged, delays, and other topics."""

import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import Final, Literal

from confluent_kafka import Producer

from bench.kafka_load import KafkaLoad
from bench.load import Job, LoadFailed, NotSupported, Throughput
from bench.measures import (
    SCRATCH,
    Effort,
    Metric,
    Samples,
    SharedRow,
    new_kafka_topic,
    new_topic,
    touch_pages,
)
from bench.nats_load import NatsLoad
from bench.nats_queues import NatsQueues, released_per_s
from bench.queue_load import Crew, QueueLoad, unix_s
from bench.rabbit_load import RabbitLoad
from bench.rabbit_queues import RabbitQueues
from bench.servers import Running, nats, running
from bench.share_load import ShareQueues, busy_with_queues

Mode = Literal["default", "durable"]
Drain = Callable[[str, Crew, Job], Throughput]
MODES: Final[tuple[Mode, ...]] = ("default", "durable")
SIZE_BYTES: Final = 100
RATE: Final = 1_000
CREWS: Final = {
    "polls": Crew(consumers=1, portion=100),
    "singles": Crew(consumers=1, portion=1),
    "eight_polls": Crew(consumers=8, portion=100),
    "eight_singles": Crew(consumers=8, portion=1),
}
LIBRARY_CASES: Final = ("polls", "singles")
OTTLAS: Final = {"ottla", "before"}
BUSY_RATE: Final = 200
BUSY_DELAY_MS: Final = 1_000
BUSY_JOIN_S: Final = 2.0
DELAYED_PER_S: Final = 30_000  # every client here puts delayed messages faster than that
RELEASE_S: Final = 60.0


def _rate(case: str, mode: Mode) -> Metric:
    crew = CREWS[case]
    who = "1 consumer" if crew.consumers == 1 else f"{crew.consumers} consumers"
    how = "one by one" if crew.portion == 1 else f"polls of {crew.portion}"
    return Metric(
        name=f"queues.{mode}.{case}",
        title=f"work queue, acknowledged by {who}, {how}, {mode} mode",
        unit="rec/s",
        higher_is_better=True,
    )


def _by_library(case: str) -> Metric:
    how = "one by one" if CREWS[case].portion == 1 else f"polls of {CREWS[case].portion}"
    return Metric(
        name=f"queues.library.{case}",
        title=f"work queue, acknowledged by librdkafka's share consumer, {how}, default mode",
        unit="rec/s",
        higher_is_better=True,
    )


def _cost(name: str, title: str, unit: str, mode: Mode) -> Metric:
    return Metric(
        name=f"queues.{mode}.{name}",
        title=f"work queue, {title}, {mode} mode",
        unit=unit,
        higher_is_better=False,
    )


def _costs(mode: Mode) -> tuple[Metric, ...]:
    return (
        _cost("cpu", "server CPU per acknowledged record, polls of 100", "us", mode),
        *(_cost(p, f"put to acknowledged {p}, {RATE:,} rec/s", "ms", mode) for p in ("p50", "p99")),
    )


def _beside(verb: str) -> Metric:
    return Metric(
        name=f"queues.beside.{verb}",
        title=f"{verb} 100 B beside a share group and delays of {BUSY_RATE} rec/s, against alone",
        unit="x",
        higher_is_better=True,
    )


RELEASED = Metric(
    name="queues.released",
    title="delayed records, all due at once, released",
    unit="rec/s",
    higher_is_better=True,
)
METRICS = (
    *(
        metric
        for mode in MODES
        for metric in (*(_rate(case, mode) for case in CREWS), *_costs(mode))
    ),
    *map(_by_library, LIBRARY_CASES),
    RELEASED,
    *map(_beside, ("produce", "consume")),
)

_names = itertools.count(1)
_warm: set[tuple[int, Mode]] = set()  # process and mode of servers that have been loaded before


def measure(instance: Running, effort: Effort) -> Samples:
    """Default and durable mode are named in docs/benchmarks.md, for each server."""
    for mode in MODES:
        with _queues(instance, mode, effort) as (server, queues):
            yield from _measure_mode(server, queues, mode, effort)
    if released := _released(instance, effort):
        yield RELEASED.name, released
    if instance.server.name in OTTLAS:
        yield from _measure_beside(instance, effort)


@contextmanager
def _queues(instance: Running, mode: Mode, effort: Effort) -> Iterator[tuple[Running, QueueLoad]]:
    """The queues of a server that is up and warm; NATS syncs per server, so it gets another."""
    load = instance.load
    if isinstance(load, KafkaLoad):
        with _share_queues(instance, load, mode, effort) as queues:
            yield instance, queues
    elif isinstance(load, NatsLoad) and mode == "durable":
        server = nats(load.generators, sync_always=True)
        with (
            tempfile.TemporaryDirectory(dir=SCRATCH, ignore_cleanup_errors=True) as scratch,
            running(server, Path(scratch).resolve()) as synced,
        ):
            assert isinstance(synced.load, NatsLoad)
            yield synced, _warmed(synced, NatsQueues(synced.load), mode, effort)
    elif isinstance(load, NatsLoad):
        yield instance, _warmed(instance, NatsQueues(load), mode, effort)
    elif isinstance(load, RabbitLoad):
        kind: Literal["classic", "quorum"] = "quorum" if mode == "durable" else "classic"
        rabbit = RabbitQueues(load.amqp_port, load.generators, kind)
        yield instance, _warmed(instance, rabbit, mode, effort)
    else:
        raise NotSupported("it has no queues that are known here")


@contextmanager
def _share_queues(
    instance: Running, load: KafkaLoad, mode: Mode, effort: Effort
) -> Iterator[ShareQueues]:
    if not load.generators.native:
        raise NotSupported("share groups need the C load generator")
    queues = ShareQueues(load, durable=mode == "durable")
    _warmed(instance, queues, mode, effort)  # makes the topic of their states
    queues.set_state_durability()
    try:
        yield queues
    finally:
        ShareQueues(load, durable=False).set_state_durability()


def _warmed(instance: Running, queues: QueueLoad, mode: Mode, effort: Effort) -> QueueLoad:
    """The same queues, after their paths have been taken for a while, once for each server."""
    if (instance.process.pid, mode) not in _warm:
        for case in ("polls", "singles"):
            _drain(instance, queues, CREWS[case], effort, queues.drain)
        _warm.add((instance.process.pid, mode))
    return queues


def _measure_mode(instance: Running, queues: QueueLoad, mode: Mode, effort: Effort) -> Samples:
    for case, crew in CREWS.items():
        drained, used_s = _drain(instance, queues, crew, effort, queues.drain)
        yield f"queues.{mode}.{case}", drained.per_s
        if case == "polls":
            yield f"queues.{mode}.cpu", used_s * 1e6 / drained.messages
    name = _new_name()
    with queues.queue(name):
        paced = queues.pace(name, RATE, Job(size_bytes=SIZE_BYTES, seconds=effort.latency_s))
    yield f"queues.{mode}.p50", paced.p50_ms
    yield f"queues.{mode}.p99", paced.p99_ms
    if isinstance(queues, ShareQueues) and mode == "default":
        for case in LIBRARY_CASES:
            drained, _ = _drain(instance, queues, CREWS[case], effort, queues.drain_by_library)
            yield _by_library(case).name, drained.per_s


def _drain(
    instance: Running, queues: QueueLoad, crew: Crew, effort: Effort, drain: Drain
) -> tuple[Throughput, float]:
    """What the consumers acknowledged of a queue that was filled before, and the server's CPU."""
    stock = effort.queue_singles if crew.portion == 1 else effort.queue_messages
    fill = Job(size_bytes=SIZE_BYTES, count=stock, seconds=effort.queue_fill_s)
    name = _new_name()
    with queues.queue(name):
        count = crew.count_of(queues.fill(name, crew.portion, fill))
        job = Job(size_bytes=SIZE_BYTES, count=count, seconds=effort.queue_s)
        before_s = instance.cpu_s()
        drained = drain(name, crew, job)
        return drained, instance.cpu_s() - before_s


def _released(instance: Running, effort: Effort) -> float | None:
    """Nothing for servers that cannot hold a message back."""
    count = effort.queue_delayed
    due_s = float(math.ceil(unix_s() + 2 + count / DELAYED_PER_S))
    job = Job(size_bytes=SIZE_BYTES, count=count, seconds=due_s - unix_s() + RELEASE_S)
    if isinstance(instance.load, NatsLoad):
        return released_per_s(instance.load, _new_name(), due_s, job)
    if instance.server.name not in OTTLAS:
        return None
    load = instance.load
    assert isinstance(load, KafkaLoad)
    with new_kafka_topic(load, settings={"delay.enable": "true"}) as topic:
        _put_delayed(load.address, topic, due_s, job)
        consumed = load.consume(topic, job)
    if consumed.messages < count:
        raise LoadFailed(f"only {consumed.messages} of {count} records were released in time")
    return consumed.per_s


def _put_delayed(address: str, topic: str, due_s: float, job: Job) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "log_level": 0})
    headers: dict[str, str | bytes | None] = {"ottla.deliver-at": str(int(due_s * 1000))}
    value = bytes(job.size_bytes)
    for _ in range(job.count):
        while True:
            try:
                producer.produce(topic, value, partition=0, headers=headers)
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(60):
        raise LoadFailed("not everything was acknowledged in time")
    if unix_s() >= due_s:
        raise LoadFailed("the records were due before all of them were there")


def _measure_beside(instance: Running, effort: Effort) -> Samples:
    """Alone, beside, beside, alone: what the machine does slowly is in both."""
    load = instance.load
    assert isinstance(load, KafkaLoad)
    endless = Job(size_bytes=SIZE_BYTES, seconds=effort.gigabyte_s + 60)
    rates: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for is_busy in (False, True, True, False):
        busy = busy_with_queues(load, BUSY_RATE, BUSY_DELAY_MS, endless)
        with busy if is_busy else nullcontext():
            time.sleep(BUSY_JOIN_S)
            rates[is_busy].append(_produce_and_consume(load, effort))
    for at, verb in enumerate(("produce", "consume")):
        alone, beside = (fmean(rate[at] for rate in rates[is_busy]) for is_busy in (False, True))
        yield _beside(verb).name, beside / alone


def _produce_and_consume(load: KafkaLoad, effort: Effort) -> tuple[float, float]:
    """Messages a second of an ordinary topic, as in the row of throughput."""
    job = Job(size_bytes=SIZE_BYTES, count=effort.small_messages, seconds=effort.produce_s)
    touch_pages(job.count * SIZE_BYTES)
    with new_topic(load) as topic:
        produced = load.produce(topic, job)
        read = Job(size_bytes=SIZE_BYTES, count=produced.messages, seconds=effort.consume_s)
        return produced.per_s, load.consume(topic, read).per_s


def _new_name() -> str:
    return f"bench-queue-{next(_names)}"


ROW = SharedRow("queues", METRICS, measure)
