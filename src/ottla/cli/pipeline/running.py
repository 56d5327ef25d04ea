"""Runs pipelines: prints progress, checks checkpoints, stops cleanly on signals."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Final, TypeVar

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.cli import terminal
from ottla.cli.exit_codes import FAILED, OK
from ottla.cli.pipeline.metrics import metrics_pages
from ottla.errors import UsageRefused
from ottla.model import Endpoint
from ottla.spark.java_home import NoJava
from ottla.spark.pipelines.declaration import (
    Checkpoint,
    CheckpointRefused,
    Declaration,
    StreamPipeline,
)
from ottla.spark.pipelines.replay import Replay
from ottla.spark.pipelines.sql import TopicQuery
from ottla.spark.progress import BatchDone, BatchListener
from ottla.spark.session import session
from ottla.spark.stream_metrics import StreamMetrics

Built = TypeVar("Built")

_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")  # of PySpark
_POLL_S: Final = 1  # how soon a signal takes effect
_REPORT_TIMEOUT_S: Final = 30
# Spark waits ten seconds for a Python worker to start, which a busy machine may exceed.
_WORKER_LATE: Final = "Python worker failed to connect back"
_STARTS_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Options of every pipeline."""

    bootstrap: str
    master: str
    conf: Mapping[str, str]
    is_dry: bool = False
    is_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """Options of streams; `every_ms` is None for batches without pause."""

    running: Running
    name: str = ""
    checkpoints: Path
    is_once: bool = False
    every_ms: int | None = None
    metrics: Endpoint | None = None

    def trigger(self, writer: DataStreamWriter) -> DataStreamWriter:
        if self.is_once:
            return writer.trigger(availableNow=True)
        if self.every_ms is not None:
            return writer.trigger(processingTime=f"{self.every_ms} milliseconds")
        return writer


def run_stream(pipeline: StreamPipeline, streaming: Streaming) -> int:
    """Run a stream until its end (--once), or until a signal."""
    declaration = pipeline.declaration
    checkpoint = Checkpoint.of(declaration, streaming.checkpoints)
    _refusing(lambda: checkpoint.check(declaration))
    with _spark(declaration.label, streaming.running) as spark:
        writer = _built(lambda: pipeline.build(spark))
        if streaming.running.is_dry:
            _show_plan(declaration, writer._df, streaming.running, checkpoint)
            return OK
        _refusing(lambda: checkpoint.claim(declaration))
        ready = streaming.trigger(writer).queryName(declaration.label)
        return _follow(spark, ready, checkpoint, streaming)


def run_replay(replay: Replay, running: Running) -> int:
    """Write all records of a replay."""
    with _spark(replay.declaration.label, running) as spark:
        if running.is_dry:
            _show_plan(replay.declaration, _built(lambda: replay.rows(spark)), running)
            return OK
        try:
            replay.write(spark)
        except PySparkException as problem:
            return _failed(problem)
    terminal.print_note("replayed")
    return OK


def run_query(query: TopicQuery, running: Running, rows_max: int) -> int:
    """Print the rows of a query."""
    with _spark(query.declaration.label, running) as spark:
        rows = _built(lambda: query.rows(spark))
        if running.is_dry:
            _show_plan(query.declaration, rows, running)
            return OK
        try:
            _retry_late_workers(lambda: _print_rows(rows, running, rows_max))
        except PySparkException as problem:
            return _failed(problem)
    return OK


# Starting and stopping


@contextmanager
def _spark(name: str, running: Running) -> Iterator[SparkSession]:
    """A Spark session that ends with the command, unless it existed before."""
    before = SparkSession.getActiveSession()
    try:
        spark = session(f"ottla {name}", master=running.master, conf=running.conf)
    except NoJava as problem:
        raise UsageRefused(str(problem)) from None
    _silence(spark, running)
    try:
        yield spark
    finally:
        if before is None:
            spark.stop()


def _silence(spark: SparkSession, running: Running) -> None:
    """Turn off Java's log output: errors are printed in one line."""
    if "spark.log.level" in running.conf or os.environ.get("OTTLA_TRACEBACK"):
        return
    spark.sparkContext.setLogLevel("OFF")
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _follow(
    spark: SparkSession, writer: DataStreamWriter, checkpoint: Checkpoint, streaming: Streaming
) -> int:
    metrics = StreamMetrics()
    printer = _print_json if streaming.running.is_json else _print_line

    def on_batch(batch: BatchDone) -> None:
        metrics.note(batch)
        printer(batch)

    listener = BatchListener(on_batch)
    with ExitStack() as stack:
        if streaming.metrics is not None:
            endpoint = stack.enter_context(metrics_pages(streaming.metrics, metrics.collect))
            terminal.print_note(f"metrics on http://{endpoint}/metrics")
        spark.streams.addListener(listener)
        stack.callback(spark.streams.removeListener, listener)

        def run_query() -> None:
            query = writer.option("checkpointLocation", str(checkpoint.directory)).start()
            terminal.print_note(f"reading; the checkpoint is {checkpoint.directory}")
            _wait(query)
            listener.wait_ended(str(query.runId), _REPORT_TIMEOUT_S)

        try:
            _retry_late_workers(run_query)  # goes on from its checkpoint
        except PySparkException as problem:
            return _failed(problem)
    batches, rows = metrics.totals()
    read = terminal.counted(rows, "record")
    terminal.print_note(f"{read} read in {terminal.counted(batches, 'batch', 'batches')}")
    return OK


def _retry_late_workers(run: Callable[[], None]) -> None:
    """Run again what failed because a Python worker did not start in time; nothing else."""
    for _ in range(_STARTS_MAX - 1):
        try:
            run()
        except PySparkException as problem:
            if _WORKER_LATE not in str(problem):
                raise
            terminal.print_note("a Python worker did not start within Spark's 10 s: trying again")
        else:
            return
    run()


def _wait(query: StreamingQuery) -> None:
    """Wait until the query ends, by itself or by a signal."""
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not query.awaitTermination(_POLL_S):
            if stopping.is_set():
                query.stop()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refusing(check: Callable[[], None]) -> None:
    try:
        check()
    except CheckpointRefused as problem:
        raise UsageRefused(str(problem)) from None


def _built(build: Callable[[], Built]) -> Built:
    """Build a query; Spark's analysis errors are refused before anything runs."""
    try:
        return build()
    except AnalysisException as problem:
        raise UsageRefused(explain(str(problem))) from None


def _failed(problem: PySparkException) -> int:
    terminal.print_error(explain(str(problem)))
    return FAILED


def explain(text: str) -> str:
    """The message in Spark's text: that of the last Python traceback, else the first line.

    It follows the lines of code of the last file, as many as these are, and is indented less.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    for at in reversed(range(len(lines))):
        if lines[at].lstrip().startswith("File "):
            inside = _indent(lines[at])
            found = next((line for line in lines[at + 1 :] if _indent(line) < inside), None)
            if found is not None:
                return found.strip()
    return lines[0].strip() if lines else text


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


# Printing


def _print_line(batch: BatchDone) -> None:
    lag = "unknown" if batch.lag is None else str(batch.lag)
    terminal.write_lines(
        [f"batch {batch.batch_id}  rows {batch.rows}  lag {lag}  {batch.duration_ms / 1000:.1f} s"]
    )
    sys.stdout.flush()


def _print_json(batch: BatchDone) -> None:
    terminal.write_json(asdict(batch))
    sys.stdout.flush()


def _show_plan(
    declaration: Declaration,
    rows: DataFrame,
    running: Running,
    checkpoint: Checkpoint | None = None,
) -> None:
    plan = declaration.description() | {"schema": rows.schema.simpleString()}
    if checkpoint is not None:
        is_there = checkpoint.directory.exists()
        plan["checkpoint"] = f"{checkpoint.directory} ({'goes on' if is_there else 'new'})"
    if running.is_json:
        terminal.write_json(plan)
    else:
        terminal.write_lines(terminal.align([[f"{name}:", text] for name, text in plan.items()]))
    terminal.print_note("nothing was read or written")


def _print_rows(rows: DataFrame, running: Running, rows_max: int) -> None:
    some = rows.limit(rows_max + 1)  # one more shows whether there are more
    if running.is_json:
        as_json = sql.to_json(sql.struct("*"), {"ignoreNullFields": "false"})
        found = some.select(as_json).collect()
        terminal.write_lines([row[0] for row in found[:rows_max]])
    else:
        found = some.collect()
        cells = [[_cell(value) for value in row] for row in found[:rows_max]]
        terminal.write_table(rows.columns, cells)
    if len(found) > rows_max:
        terminal.print_note(f"there are more than {rows_max} rows; --limit shows more")


def _cell(value: object) -> str:
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    return "" if value is None else terminal.one_line(str(value))
