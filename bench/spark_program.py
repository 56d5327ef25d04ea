"""One Spark, and what it reads and writes through a format; run by the row `spark`.

Two formats are compared in one Spark, on one broker and the same topics, by turns: ours and
Spark's own Kafka connector. It prints what it found, one JSON object on a line.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer
from pyspark.sql import DataFrame, SparkSession

from ottla.spark import session

OURS: Final = "ottla"
THEIRS: Final = "kafka"
BATCH_ROWS_MAX: Final = 100_000
STREAM_BATCHES: Final = 4  # at least: the first one is warming up
WARM_BATCHES: Final = 5
WRITE_OFFSETS: Final = 125_000  # of each partition: what is written has to fit into memory
WARM_RUNS: Final = 3  # by then Java's compiler has done most of its work
REPEATS: Final = 3
EXACTLY_ONCE: Final = {"delivery": "exactly-once"}
AT_LEAST_ONCE: Final[dict[str, dict[str, str]]] = {
    OURS: {"delivery": "at-least-once"},
    THEIRS: {},  # it has no other
}
RATE: Final = 100  # records in a second, on their way from topic to topic
WAY_S: Final = 12.0
WARM_S: Final = 2.0  # of it, not counted
PATIENCE_S: Final = 120.0

Found = tuple[str, str, float]  # a case, a format, and rows in a second (or milliseconds)


def main() -> None:
    options = _parser().parse_args()
    conf = {"spark.driver.memory": "2g", "spark.sql.streaming.numRecentProgressUpdates": "1000"}
    if options.jars:
        conf["spark.jars"] = options.jars
    spark = session("bench", master="local[2]", conf=conf)
    formats = (OURS, THEIRS) if options.jars else (OURS,)
    with tempfile.TemporaryDirectory(prefix="spark-", dir=options.scratch) as scratch:
        program = Program(spark, options.address, formats, options.rows, Path(scratch))
        way = Way(options.address, options.from_topic, options.to_topic)
        for case, kind, value in program.run(options.topics, options.tiny, options.sink, way):
            print(json.dumps({"case": case, "format": kind, "value": value}), flush=True)
    spark.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_program", description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--rows", type=int, required=True, help="in each topic")
    parser.add_argument("--topics", type=json.loads, required=True, help="cases and their topics")
    parser.add_argument("--tiny", required=True, help="a topic with a few records")
    parser.add_argument("--sink", required=True, help="a topic to write to")
    parser.add_argument("--from-topic", required=True, help="where records begin their way")
    parser.add_argument("--to-topic", required=True, help="where they are expected")
    parser.add_argument("--jars", default="", help="of Spark's connector, with commas between")
    parser.add_argument("--scratch", required=True, help="a directory for checkpoints")
    return parser


class Program:
    """Owns the session; every figure is of a plan that has run before."""

    def __init__(
        self,
        spark: SparkSession,
        address: str,
        formats: tuple[str, ...],
        rows: int,
        scratch: Path,
    ) -> None:
        self.spark = spark
        self.servers = {"kafka.bootstrap.servers": address}
        self.formats = formats
        self.rows = rows
        self.scratch = scratch
        self._checkpoints = 0

    def run(self, topics: dict[str, str], tiny: str, sink: str, way: "Way") -> Iterator[Found]:
        for case, topic in topics.items():
            for kind in self.formats:
                yield f"batch.{case}", kind, self._batch_rate(kind, topic)
            for kind in self.formats:
                yield f"stream.{case}", kind, self._stream_rate(kind, topic)
        for case, topic in topics.items():
            if case.endswith(".none"):
                yield from self._write_rates(case, topic, sink)
        for kind in self.formats:
            yield "batch-cost", kind, self._batch_cost_ms(kind, tiny)
        for kind in self.formats:
            for percentile, taken_ms in self._latencies(kind, way, AT_LEAST_ONCE[kind]):
                yield f"latency.{percentile}", kind, taken_ms
        for percentile, taken_ms in self._latencies(OURS, way, EXACTLY_ONCE):
            yield f"exactly.latency.{percentile}", OURS, taken_ms

    def _batch_rate(self, kind: str, topic: str) -> float:
        frame = self.spark.read.format(kind).options(**self.servers, subscribe=topic).load()
        return self.rows / _warm_s(frame)

    def _stream_rate(self, kind: str, topic: str) -> float:
        batch_rows = min(BATCH_ROWS_MAX, self.rows // STREAM_BATCHES)
        progress = self._stream(kind, topic, batch_rows)[1:]
        rows = sum(int(one["numInputRows"]) for one in progress)
        return rows / sum(map(_trigger_ms, progress)) * 1000

    def _batch_cost_ms(self, kind: str, topic: str) -> float:
        """Of a micro-batch with one record."""
        progress = self._stream(kind, topic, 1)[WARM_BATCHES:]
        return median(map(_trigger_ms, progress))

    def _stream(self, kind: str, topic: str, batch_rows: int) -> list[dict[str, Any]]:
        self._checkpoints += 1
        reading = {"subscribe": topic, "startingOffsets": "earliest"}
        query = (
            self.spark.readStream.format(kind)
            .options(**self.servers, **reading, maxOffsetsPerTrigger=str(batch_rows))
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(self.scratch / str(self._checkpoints)))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [one for one in query.recentProgress if one["numInputRows"]]

    def _latencies(
        self, kind: str, way: "Way", more: dict[str, str]
    ) -> Iterator[tuple[str, float]]:
        """How long records take through a stream that reads and writes as fast as it can."""
        self._checkpoints += 1
        rows = self.spark.readStream.format(kind).options(**self.servers, subscribe=way.from_topic)
        query = (
            rows.load()
            .selectExpr("value")
            .writeStream.format(kind)
            .options(**self.servers, topic=way.to_topic, **more)
            .option("checkpointLocation", str(self.scratch / str(self._checkpoints)))
            .start()
        )
        try:
            taken_ms = sorted(way.travel_ms())
        finally:
            query.stop()
        yield "p50", taken_ms[len(taken_ms) // 2]
        yield "p99", taken_ms[len(taken_ms) * 99 // 100]

    def _write_rates(self, case: str, topic: str, sink: str) -> Iterator[Found]:
        """Rows that lie in Spark's memory: nobody's reading is part of it."""
        rows = self.spark.read.format(OURS).options(**self.servers, subscribe=topic).load()
        rows = rows.where(f"offset < {WRITE_OFFSETS}").select("key", "value").persist()
        count = rows.count()
        for kind in self.formats:
            taken_s = self._write_s(rows, kind, sink, AT_LEAST_ONCE[kind])
            yield f"write.{case}", kind, count / taken_s
        yield f"exactly.{case}", OURS, count / self._write_s(rows, OURS, sink, EXACTLY_ONCE)
        rows.unpersist()

    def _write_s(self, rows: DataFrame, kind: str, sink: str, more: dict[str, str]) -> float:
        taken_s = list[float]()
        for _ in range(WARM_RUNS + REPEATS):
            begun_s = time.perf_counter()
            writer = rows.write.format(kind).options(**self.servers, topic=sink, **more)
            writer.mode("append").save()
            taken_s.append(time.perf_counter() - begun_s)
        return median(taken_s[WARM_RUNS:])


class Way:
    """From one topic to another, through whatever copies records from here to there."""

    def __init__(self, address: str, from_topic: str, to_topic: str) -> None:
        self.from_topic = from_topic
        self.to_topic = to_topic
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "bench-way",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
            }
        )
        self._consumer.subscribe([to_topic])

    def travel_ms(self) -> list[float]:
        """How long records took that were sent at a steady rate, from when each was due."""
        self._wait_open()
        begun_s = time.perf_counter()
        count, end_s = int(RATE * WAY_S), begun_s + WAY_S + PATIENCE_S
        sent, taken = 0, dict[int, float]()
        while len(taken) < count and time.perf_counter() < end_s:
            while sent < count and begun_s + sent / RATE <= time.perf_counter():
                self._producer.produce(self.from_topic, b"%d" % sent)
                sent += 1
            self._producer.poll(0)
            for number in self._arrived(0.001):
                taken.setdefault(number, (time.perf_counter() - begun_s - number / RATE) * 1000)
        if len(taken) < count:
            raise SystemExit(f"{count - len(taken)} of {count} records never arrived")
        return [taken[number] for number in range(int(RATE * WARM_S), count)]

    def _wait_open(self) -> None:
        """Until a record that is sent now arrives at once: then all before it have arrived."""
        end_s = time.perf_counter() + PATIENCE_S
        for turn in range(int(PATIENCE_S)):
            self._producer.produce(self.from_topic, b"-%d" % (turn + 1))
            self._producer.poll(0)
            next_s = time.perf_counter() + 1
            while time.perf_counter() < min(next_s, end_s):
                if -(turn + 1) in self._arrived(0.01):
                    return
        raise SystemExit(f"nothing arrived in {PATIENCE_S:.0f} s")

    def _arrived(self, timeout_s: float) -> list[int]:
        found = []
        for message in self._consumer.consume(1000, timeout_s):
            error = message.error()
            if error is not None and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise SystemExit(f"the records cannot be read: {error}")
            if error is None:
                found.append(int(message.value() or b"0"))
        return found


def _trigger_ms(progress: dict[str, Any]) -> float:
    """How long a micro-batch took."""
    return float(progress["durationMs"]["triggerExecution"])


def _warm_s(frame: DataFrame) -> float:
    """How long it takes to read a frame and throw it away, once that has been done before."""
    taken_s = list[float]()
    for _ in range(WARM_RUNS + REPEATS):
        begun_s = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        taken_s.append(time.perf_counter() - begun_s)
    return median(taken_s[WARM_RUNS:])


if __name__ == "__main__":
    main()
