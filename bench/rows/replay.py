"""Old records, of which nothing is in memory any more: how fast, and what others feel of it."""

import os
from pathlib import Path

from bench.kafka_load import KafkaLoad
from bench.load import Job, NotSupported
from bench.measures import Effort, FreshRow, Metric, Samples, new_kafka_topic
from bench.servers import Server, running

SIZE_BYTES = 1000
RATE = 1_000
FILLS = 3

SPEED = Metric(
    name="replay.rate",
    title="consume 1 KB from disk, client default",
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
    with running(server, data) as instance:
        load = instance.load
        if not isinstance(load, KafkaLoad):
            raise NotSupported("its files are not known here")
        fill = Job(size_bytes=SIZE_BYTES, count=effort.large_messages, seconds=effort.gigabyte_s)
        with new_kafka_topic(load) as old, new_kafka_topic(load) as other:
            for _ in range(FILLS):
                load.produce(old, fill)
            log = data / "data" / f"{old}-0"
            replay = Job(size_bytes=SIZE_BYTES, count=FILLS * fill.count, seconds=effort.gigabyte_s)
            chill(log)
            yield SPEED.name, load.consume(old, replay).per_s
            chill(log)
            job = Job(size_bytes=100, seconds=effort.latency_s)
            endless = Job(size_bytes=SIZE_BYTES, seconds=effort.gigabyte_s)
            with load.consuming(old, endless):
                yield BESIDE.name, load.latency(other, RATE, job).p99_ms


def chill(log: Path) -> None:
    """Have the system forget what it remembers of these files."""
    os.sync()
    for path in log.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


ROW = FreshRow("replay", (SPEED, BESIDE), measure)
