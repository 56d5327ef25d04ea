"""What is measured: metrics, rows that measure them, and how much effort a run makes."""

import itertools
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.kafka_load import KafkaLoad
from bench.load import Load
from bench.servers import Running, Server

GB = 1e9
SCRATCH = Path(".cache/bench")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One line of the table."""

    name: str
    title: str
    unit: str
    higher_is_better: bool
    of_worst: bool = False  # the worst of all samples instead of their median


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much work one measurement is; `quick` looks at correctness, not at figures."""

    rounds: int
    small_messages: int  # of 100 B
    large_messages: int  # of 1 KB
    produce_s: float
    consume_s: float
    latency_s: float
    request_s: float
    warm_up_s: float
    settle_s: float
    gigabyte_s: float
    idle_connections: int
    commit_s: float
    heartbeat_s: float
    takeovers: int
    compaction_bytes: int
    partitions: int
    partition_records: int
    spark_rows: int
    spark_batches: int
    queue_s: float
    queue_fill_s: float
    queue_messages: int  # acknowledged in portions
    queue_singles: int  # acknowledged one by one
    queue_delayed: int


FULL = Effort(
    rounds=5,
    small_messages=4_000_000,
    large_messages=1_000_000,
    produce_s=4.0,
    consume_s=4.0,
    latency_s=4.0,
    request_s=3.0,
    warm_up_s=6.0,
    settle_s=2.0,
    gigabyte_s=60.0,
    idle_connections=2_000,
    commit_s=4.0,
    heartbeat_s=9.0,
    takeovers=3,
    compaction_bytes=400_000_000,
    partitions=2_000,
    partition_records=100_000,
    spark_rows=1_500_000,
    spark_batches=40,
    queue_s=4.0,
    queue_fill_s=8.0,
    queue_messages=200_000,
    queue_singles=40_000,
    queue_delayed=100_000,
)
QUICK = Effort(
    rounds=1,
    small_messages=500_000,
    large_messages=200_000,
    produce_s=1.5,
    consume_s=1.5,
    latency_s=2.0,
    request_s=1.0,
    warm_up_s=1.0,
    settle_s=0.5,
    gigabyte_s=10.0,
    idle_connections=2_000,
    commit_s=1.5,
    heartbeat_s=3.0,
    takeovers=1,
    compaction_bytes=30_000_000,
    partitions=200,
    partition_records=10_000,
    spark_rows=60_000,
    spark_batches=12,
    queue_s=1.0,
    queue_fill_s=2.0,
    queue_messages=30_000,
    queue_singles=5_000,
    queue_delayed=10_000,
)

Samples = Generator[tuple[str, float], None, None]


@dataclass(frozen=True, slots=True)
class SharedRow:
    """Measured on servers that stay up, warm, for the whole run. Yields metric and value."""

    name: str
    metrics: tuple[Metric, ...]
    measure: Callable[[Running, Effort], Samples]


@dataclass(frozen=True, slots=True)
class FreshRow:
    """Measured on servers that it starts itself, in a directory of its own."""

    name: str
    metrics: tuple[Metric, ...]
    measure: Callable[[Server, Effort, Path], Samples]


Row = SharedRow | FreshRow

SCRATCH_CHUNK = bytes(1 << 20)


def touch_pages(size_bytes: int) -> None:
    """Write and remove a file, so that the next writer finds memory that has been used before.

    In a virtual machine the first touch of a page can cost several times the copy into it. Who
    pays for that would otherwise be luck.
    """
    with tempfile.TemporaryFile(dir=SCRATCH, buffering=0) as scratch:
        for _ in range(size_bytes // len(SCRATCH_CHUNK)):
            scratch.write(SCRATCH_CHUNK)


_topic_numbers = itertools.count(1)


@contextmanager
def new_topic(load: Load, *, fsync: bool = False) -> Iterator[str]:
    """A topic for one measurement; deleted afterwards so that the disk does not fill."""
    name = f"bench-{next(_topic_numbers)}"
    load.create(name, fsync=fsync)
    try:
        yield name
    finally:
        load.delete(name)


@contextmanager
def new_kafka_topic(
    load: KafkaLoad, *, partitions: int = 1, settings: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The same where a row needs what only Kafka's topics have."""
    name = f"bench-{next(_topic_numbers)}"
    load.create(name, partitions=partitions, settings=settings)
    try:
        yield name
    finally:
        load.delete(name)
