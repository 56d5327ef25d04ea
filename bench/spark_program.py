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

from pyspark.sql import DataFrame, SparkSession

from ottla.spark import session
from ottla.spark.options import OptionRefused, parse_write_options

OURS: Final = "ottla"
THEIRS: Final = "kafka"
BATCH_ROWS_MAX: Final = 100_000
STREAM_BATCHES: Final = 4  # at least: the first one is warming up
WARM_BATCHES: Final = 5
REPEATS: Final = 3
EXACTLY_ONCE: Final = {"delivery": "exactly-once"}

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
        for case, kind, value in program.run(options.topics, options.tiny, options.sink):
            print(json.dumps({"case": case, "format": kind, "value": value}), flush=True)
    spark.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_program", description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--rows", type=int, required=True, help="in each topic")
    parser.add_argument("--topics", type=json.loads, required=True, help="cases and their topics")
    parser.add_argument("--tiny", required=True, help="a topic with a few records")
    parser.add_argument("--sink", required=True, help="a topic to write to")
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

    def run(self, topics: dict[str, str], tiny: str, sink: str) -> Iterator[Found]:
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

    def _batch_rate(self, kind: str, topic: str) -> float:
        frame = self.spark.read.format(kind).options(**self.servers, subscribe=topic).load()
        return self.rows / _warm_s(frame)

    def _stream_rate(self, kind: str, topic: str) -> float:
        batch_rows = min(BATCH_ROWS_MAX, self.rows // STREAM_BATCHES)
        progress = self._stream(kind, topic, batch_rows)[1:]
        rows = sum(one["numInputRows"] for one in progress)
        return rows / sum(one["durationMs"]["triggerExecution"] / 1000 for one in progress)

    def _batch_cost_ms(self, kind: str, topic: str) -> float:
        """Of a micro-batch with one record."""
        progress = self._stream(kind, topic, 1)[WARM_BATCHES:]
        return median(one["durationMs"]["triggerExecution"] for one in progress)

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

    def _write_rates(self, case: str, topic: str, sink: str) -> Iterator[Found]:
        """Rows that lie in Spark's memory: nobody's reading is part of it."""
        rows = self.spark.read.format(OURS).options(**self.servers, subscribe=topic).load()
        rows = rows.select("key", "value").persist()
        rows.count()
        for kind in self.formats:
            more = {"delivery": "at-least-once"} if kind == OURS else {}  # theirs has no other
            yield f"write.{case}", kind, self.rows / self._write_s(rows, kind, sink, more)
        if self._writes_exactly_once(sink):
            taken_s = self._write_s(rows, OURS, sink, EXACTLY_ONCE)
            yield f"exactly.{case}", OURS, self.rows / taken_s
        rows.unpersist()

    def _writes_exactly_once(self, sink: str) -> bool:
        try:
            parse_write_options({**self.servers, "topic": sink, **EXACTLY_ONCE})
        except OptionRefused:
            return False
        return True

    def _write_s(self, rows: DataFrame, kind: str, sink: str, more: dict[str, str]) -> float:
        taken_s = list[float]()
        for _ in range(1 + REPEATS):
            begun_s = time.perf_counter()
            writer = rows.write.format(kind).options(**self.servers, topic=sink, **more)
            writer.mode("append").save()
            taken_s.append(time.perf_counter() - begun_s)
        return median(taken_s[1:])


def _warm_s(frame: DataFrame) -> float:
    """How long it takes to read a frame and throw it away, once that has been done before."""
    taken_s = list[float]()
    for _ in range(1 + REPEATS):
        begun_s = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        taken_s.append(time.perf_counter() - begun_s)
    return median(taken_s[1:])


if __name__ == "__main__":
    main()
