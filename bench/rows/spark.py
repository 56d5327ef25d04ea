"""PySpark on one broker: `format("ottla")` beside Spark's own Kafka connector, in one Spark."""

import importlib.util
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from bench import processes
from bench.kafka_load import KafkaLoad
from bench.load import LoadFailed, NotSupported
from bench.measures import Effort, Metric, Samples, SharedRow, new_kafka_topic
from bench.servers import Running

CONNECTOR_JARS: Final = Path(".cache/bench/spark-connector")
SIZES: Final = {1000: "1 KB", 100: "100 B"}
CODECS: Final = {"none": "", "zstd": ", zstd"}
PARTITIONS: Final = 4
VALUES: Final = 1000  # that differ; a codec finds about half of each superfluous
FLUSH_S: Final = 120.0
OURS: Final = "ottla"
THEIRS: Final = "kafka"


def _metrics(case: str, title: str, unit: str, *, is_rate: bool = True) -> Iterator[Metric]:
    """A line for each format, and one for how much ours is ahead."""
    names = {OURS: 'format("ottla")', THEIRS: "its own connector"}
    for kind, name in names.items():
        yield Metric(
            name=f"spark.{case}.{kind}",
            title=f"Spark {title}, {name}",
            unit=unit,
            higher_is_better=is_rate,
        )
    yield Metric(
        name=f"spark.{case}.ratio",
        title=f"Spark {title}, how much faster ours is",
        unit="x",
        higher_is_better=True,
    )


CASES: Final = {
    f"{size}.{codec}": f"{SIZES[size]}{CODECS[codec]}" for size in SIZES for codec in CODECS
}
TIMES: Final = {
    "batch-cost": "micro-batch of one record",
    "latency.p50": "topic to topic at 100 msg/s, p50",
    "latency.p99": "topic to topic at 100 msg/s, p99",
}
METRICS: Final = (
    *(
        metric
        for verb, words in (("batch", "batch read"), ("stream", "stream, 100,000 rows a batch,"))
        for case, title in CASES.items()
        for metric in _metrics(f"{verb}.{case}", f"{words} {title}", "rows/s")
    ),
    *(
        metric
        for size, title in SIZES.items()
        for metric in _metrics(f"write.{size}.none", f"write {title}", "rows/s")
    ),
    *(
        Metric(
            name=f"spark.exactly.{size}.none.{OURS}",
            title=f'Spark write {title} exactly once, format("ottla")',
            unit="rows/s",
            higher_is_better=True,
        )
        for size, title in SIZES.items()
    ),
    *(
        metric
        for case, title in TIMES.items()
        for metric in _metrics(case, title, "ms", is_rate=False)
    ),
    *(
        Metric(
            name=f"spark.exactly.{case}.{OURS}",
            title=f'Spark {TIMES[case]}, exactly once, format("ottla")',
            unit="ms",
            higher_is_better=False,
        )
        for case in ("latency.p50", "latency.p99")
    ),
)


def measure(running: Running, effort: Effort) -> Samples:
    load = running.load
    if not isinstance(load, KafkaLoad):
        raise NotSupported("Spark cannot read it")
    if importlib.util.find_spec("pyspark") is None:
        raise NotSupported("the extra `spark` is not installed")
    with ExitStack() as up:
        topics = dict[str, str]()
        for size_bytes, codec in itertools.product(SIZES, CODECS):
            topic = up.enter_context(new_kafka_topic(load, partitions=PARTITIONS))
            fill(load.address, topic, effort.spark_rows, size_bytes, codec)
            topics[f"{size_bytes}.{codec}"] = topic
        tiny = up.enter_context(new_kafka_topic(load))
        fill(load.address, tiny, effort.spark_batches, 100, "none")
        sink = up.enter_context(new_kafka_topic(load, partitions=PARTITIONS))
        way = [up.enter_context(new_kafka_topic(load)) for _ in range(2)]
        arguments = [load.address, "--tiny", tiny, "--sink", sink, "--topics", json.dumps(topics)]
        arguments += ["--from-topic", way[0], "--to-topic", way[1]]
        yield from _with_ratios(_run([*arguments, "--rows", str(effort.spark_rows)]))


def fill(address: str, topic: str, rows: int, size_bytes: int, codec: str) -> None:
    """Records of letters and digits, the same for everybody."""
    rng = random.Random(size_bytes)
    values = [rng.randbytes(size_bytes // 2).hex().encode() for _ in range(VALUES)]
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": codec,
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number in range(rows):
        if number % 100_000 == 0:
            producer.flush(FLUSH_S)
        producer.produce(topic, values[number % VALUES], b"%d" % number)
    if producer.flush(FLUSH_S):
        raise LoadFailed(f"{topic} could not be filled in {FLUSH_S:.0f} s")


def _run(arguments: list[str]) -> Iterator[tuple[str, str, float]]:
    """What Spark found, as soon as it says so."""
    jars = ",".join(sorted(str(jar.resolve()) for jar in CONNECTOR_JARS.glob("*.jar")))
    log_file = CONNECTOR_JARS.with_name("spark.log")
    with log_file.open("wb") as log:
        program = subprocess.Popen(
            [
                *(sys.executable, "-m", "bench.spark_program", *arguments),
                *("--jars", jars, "--scratch", str(CONNECTOR_JARS.parent.resolve())),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        assert program.stdout is not None
        for line in program.stdout:
            found = json.loads(line)
            yield found["case"], found["format"], found["value"]
        if program.wait() != 0:
            raise LoadFailed(f"Spark ended with {program.returncode}: see {log_file}")
    finally:
        processes.stop(program)
        assert program.stdout is not None
        program.stdout.close()


def _with_ratios(found: Iterator[tuple[str, str, float]]) -> Samples:
    ours = dict[str, float]()
    for case, kind, value in found:
        yield f"spark.{case}.{kind}", value
        if kind == OURS:
            ours[case] = value
        elif case in ours:
            gain = value / ours[case] if case in TIMES else ours[case] / value
            yield f"spark.{case}.ratio", gain


ROW = SharedRow("spark", METRICS, measure)
