"""How fast a log is compacted, and what a producer feels of it meanwhile."""

import time
from pathlib import Path

from confluent_kafka import Producer

from bench.kafka_load import KafkaLoad
from bench.load import Job, LoadFailed, NotSupported
from bench.measures import Effort, FreshRow, Metric, Samples, new_kafka_topic
from bench.servers import Server, running

SIZE_BYTES = 1000
KEYS = 1_000
SEGMENT_BYTES = 4 << 20
RATE = 1_000
PATIENCE_S = 180.0
LOOK_S = 0.005

SPEED = Metric(
    name="compaction.rate",
    title=f"compaction of 1 KB records, {KEYS:,} keys",
    unit="MB/s",
    higher_is_better=True,
)
BESIDE = Metric(
    name="compaction.p99",
    title=f"end to end p99, {RATE:,} msg/s beside compaction",
    unit="ms",
    higher_is_better=False,
)
# Not compacted before it is all there; then at once, whatever little there is to gain.
FILLING = {"cleanup.policy": "delete", "segment.bytes": str(SEGMENT_BYTES)}
COMPACTING = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


def measure(server: Server, effort: Effort, workspace: Path) -> Samples:
    """Both write `.cleaned` files beside the segments that they replace: they are watched."""
    data = workspace / server.name
    with running(server, data) as instance:
        load = instance.load
        if not isinstance(load, KafkaLoad):
            raise NotSupported("it compacts no logs")
        with new_kafka_topic(load, settings=FILLING) as topic:
            size_bytes = _fill(load.address, topic, effort.compaction_bytes)
            log = data / "data" / f"{topic}-0"
            load.configure(topic, COMPACTING)
            yield SPEED.name, size_bytes / 1e6 / _compacted_s(log, size_bytes)
        with new_kafka_topic(load, settings=FILLING) as topic, new_kafka_topic(load) as other:
            size_bytes = _fill(load.address, topic, effort.compaction_bytes)
            log = data / "data" / f"{topic}-0"
            load.configure(topic, COMPACTING)
            _wait_begun(log)
            job = Job(size_bytes=100, seconds=effort.latency_s)
            yield BESIDE.name, load.latency(other, RATE, job).p99_ms


def _fill(address: str, topic: str, size_bytes: int) -> int:
    """The bytes of all sealed segments, roughly: what a compaction reads."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "log_level": 0})
    value = bytes(SIZE_BYTES)
    for number in range(size_bytes // SIZE_BYTES):
        while True:
            try:
                producer.produce(topic, value, key=str(number % KEYS))
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(60):
        raise LoadFailed("not everything was acknowledged in time")
    return size_bytes


def _wait_begun(log: Path) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not any(log.glob("*.cleaned")):
        if time.monotonic() > deadline_s:
            raise LoadFailed("no compaction began in time")
        time.sleep(LOOK_S)


def _compacted_s(log: Path, size_bytes: int) -> float:
    """From its first file until the newest record of each key and the active segment are left."""
    _wait_begun(log)
    begun_s = time.monotonic()
    enough_bytes = KEYS * SIZE_BYTES * 2 + SEGMENT_BYTES + size_bytes // 50
    while _log_bytes(log) > enough_bytes:
        if time.monotonic() - begun_s > PATIENCE_S:
            raise LoadFailed("the compaction did not end in time")
        time.sleep(LOOK_S)
    return time.monotonic() - begun_s


def _log_bytes(log: Path) -> int:
    total = 0
    for path in log.glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # replaced while we looked
    return total


ROW = FreshRow("compaction", (SPEED, BESIDE), measure)
