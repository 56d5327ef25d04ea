"""Old records, of which nothing is in memory any more: how fast, and what others feel of it."""

import os
from pathlib import Path

from bench.kafka_load import KafkaLoad
from bench.load import Job, NotSupported
from bench.measures import Effort, FreshRow, Metric, Samples, new_kafka_topic
from bench.servers import Running, Server, running

SIZE_BYTES = 1000
RATE = 1_000
FILLS = 3
TOPIC = "bench-replay"

SPEED = Metric(
    name="replay.rate",
    title="consume 1 KB from disk, client default",
    unit="msg/s",
    higher_is_better=True,
)
RESTARTED = Metric(
    name="replay.restarted",
    title="consume 1 KB from disk after a restart, client default",
    unit="msg/s",
    higher_is_better=True,
)
BESIDE = Metric(
    name="replay.p99",
    title=f"end to end p99, {RATE:,} msg/s beside a reader from disk",
    unit="ms",
    higher_is_better=False,
)


def measure(server: Server, effort: Effort, workspace: Path) -> Samples:
    data = workspace / server.name
    fill = Job(size_bytes=SIZE_BYTES, count=effort.large_messages, seconds=effort.gigabyte_s)
    replay = Job(size_bytes=SIZE_BYTES, count=FILLS * fill.count, seconds=effort.gigabyte_s)
    log = data / "data" / f"{TOPIC}-0"
    with running(server, data) as instance:
        load = _load(instance)
        load.create(TOPIC)
        for _ in range(FILLS):
            load.produce(TOPIC, fill)
        chill(log)
        yield SPEED.name, load.consume(TOPIC, replay).per_s
        chill(log)
        job = Job(size_bytes=100, seconds=effort.latency_s)
        endless = Job(size_bytes=SIZE_BYTES, seconds=effort.gigabyte_s)
        with new_kafka_topic(load) as other, load.consuming(TOPIC, endless):
            yield BESIDE.name, load.latency(other, RATE, job).p99_ms
    with running(server, data) as instance:
        load = _load(instance)
        chill(log)
        yield RESTARTED.name, load.consume(TOPIC, replay).per_s
        load.delete(TOPIC)


def _load(instance: Running) -> KafkaLoad:
    if not isinstance(instance.load, KafkaLoad):
        raise NotSupported("its files are not known here")
    return instance.load


def chill(log: Path) -> None:
    """Have the system forget what it remembers of these files."""
    os.sync()
    for path in log.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


ROW = FreshRow("replay", (SPEED, RESTARTED, BESIDE), measure)
