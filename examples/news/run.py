"""A broker, the crawler, the readers and Spark together, from the start to the end."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NoReturn

from examples.news import show, topics
from examples.news.crawl import Crawler
from examples.news.readers import Readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from examples.news.stages import StageContext

# ruff: noqa: PLC0415  # Spark is imported where it is needed: the first line does not wait for it

Broker = subprocess.Popen[str]

READY: Final = "ottla ready on "
VISIT_EVERY_S: Final = 5.0
ARTICLES_PER_VISIT: Final = 4  # so that there is something to watch for a while
TABLES_EVERY_S: Final = 10.0
TICK_S: Final = 0.3
PATIENCE_S: Final = 60
INTERRUPTED: Final = 130
QUERY_PATIENCE_S: Final = 600
FAILURES_MAX: Final = 10
PAUSE_S: Final = 2.0
SPARK_SETTINGS: Final = {
    # A few records at a time: more partitions would only be more state to open and to sync. One
    # also keeps records in order through a shuffle, so the first of two copies is the one to stay.
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "1g",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.stopTimeout": "30s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The options of a run."""

    data: Path
    listen: str
    sources: Sequence[str]
    is_once: bool
    broker: str | None = None  # one that runs already
    is_checked: bool = False
    is_killed: bool = False

    @property
    def home(self) -> Path:
        """The example's own part of the broker's directory."""
        return self.data / "news"

    @property
    def client_log(self) -> Path:
        """What clients of the broker say while it is killed."""
        return self.home / "clients.log"


class BrokerEnded(Exception):
    """The broker is not there, or no more; it has said why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the broker has ended with {status}")
        self.status = status


class SparkAway(Exception):
    """Spark cannot be started; the text says why."""


class CheckFailed(Exception):
    """Records were lost or doubled; the lines before say where."""


class StageFailed(Exception):
    """A stream has ended that should go on; the text says why."""


def run(asked: Run) -> int:
    """All of it, until it is done or told to stop; the exit status."""
    # Also where a shell made it ignore Ctrl-C, and for whoever asks politely.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)
    address = asked.broker or asked.listen
    say(f"news       {len(asked.sources)} feeds, a broker on {address}, and Spark")
    try:
        if asked.broker is not None:
            return run_on_broker(asked, None, asked.broker)
        with own_terminal(), running_broker(asked) as (broker, address):
            return run_on_broker(asked, broker, address)
    except CheckFailed:
        return 1
    except BrokerEnded as ended:
        return ended.status or 1
    except StageFailed as problem:
        say(f"news       {problem}; Spark's own words are in {spark_log(asked)}")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED if asked.is_once else 0  # who asked for an end has not seen it


def run_on_broker(asked: Run, broker: Broker | None, address: str) -> int:
    topics.create_topics(address)
    with contextlib.closing(Crawler(address, asked.sources)) as crawler:
        crawl(crawler, None if asked.is_once else ARTICLES_PER_VISIT)
        try:
            with running_spark(asked) as spark:
                run_on_spark(asked, broker, crawler, context_of(asked, spark, address))
        except SparkAway as problem:
            say(f"Spark      cannot start: {problem}")
            if asked.is_once or broker is None:
                return 1
            say(f"news       the broker stays up on {address}; Ctrl-C ends it")
            raise BrokerEnded(broker.wait()) from None
    return 0


def context_of(asked: Run, spark: "SparkSession", address: str) -> "StageContext":
    from examples.news.stages import StageContext

    return StageContext(spark, address, asked.home, asked.is_once)


def run_on_spark(
    asked: Run, broker: Broker | None, crawler: Crawler, context: "StageContext"
) -> None:
    if context.is_once:
        run_once(context)
        say_tables(context.address)
        say(show.summary(count_all(context), context.lake))
        if asked.is_checked:
            check(context, asked.sources)
    else:
        with contextlib.closing(Readers(context.address)) as readers:
            stay(broker, crawler, readers, context)


# Once: stage after stage, each on everything that the one before has written


def run_once(context: "StageContext") -> None:
    topics.wait_settled(context.address)
    finish(context, "clean")
    topics.wait_settled(context.address)
    with contextlib.closing(Readers(context.address)) as readers:
        say(show.clicks_line(readers.click(PATIENCE_S)))
    topics.wait_settled(context.address)
    for stage in ("trends", "recommend", "archive"):
        finish(context, stage)
        topics.wait_settled(context.address)


def finish(context: "StageContext", stage: str) -> None:
    """Let a stage work on what is there, until it has ended."""
    streams = Streams(context, [stage])
    deadline_s = time.monotonic() + QUERY_PATIENCE_S
    while streams.are_unfinished():
        streams.look()
        if time.monotonic() > deadline_s:
            raise StageFailed(f"{stage}: no end within {QUERY_PATIENCE_S} s")
        time.sleep(TICK_S)
    streams.look()


def count_all(context: "StageContext") -> show.Totals:
    from deltalake import DeltaTable

    def count(topic: str) -> int:
        return sum(1 for _ in topics.read_all(context.address, topic))

    trends = topics.read_last(context.address, topics.TRENDS).values()
    advice = topics.read_last(context.address, topics.RECOMMENDED).values()
    return show.Totals(
        crawled=count(topics.RAW),
        clean=count(topics.CLEAN),
        clicks=count(topics.CLICKS),
        windows=len({trend["start"] for trend in trends}),
        recommendations=sum(bool(one["articles"]) for one in advice),
        lake_rows=DeltaTable(context.lake).count(),
    )


def check(context: "StageContext", sources: Sequence[str]) -> None:
    """Say for each step what went in and came out; `CheckFailed` if something is wrong."""
    from examples.news.audit import audit

    checks = audit(context, sources)
    say("\n".join(map(show.check_line, checks)))
    if not all(one.is_right for one in checks):
        raise CheckFailed


# Until Ctrl-C: all stages side by side


def stay(
    broker: Broker | None, crawler: Crawler, readers: Readers, context: "StageContext"
) -> NoReturn:
    """Crawl, click and show what streams do, until the broker is gone or somebody says so."""
    from examples.news.stages import STAGES

    say(f"news       watch it: .venv/bin/ottla --broker {context.address} consume articles.clean")
    streams = Streams(context, tuple(STAGES))
    visit_at_s = time.monotonic() + VISIT_EVERY_S
    tables: list[str] = []
    tables_at_s = 0.0
    are_tables_old = False
    while broker is None or broker.poll() is None:
        now_s = time.monotonic()
        if now_s >= visit_at_s:
            crawl(crawler, ARTICLES_PER_VISIT, is_quiet=True)
            visit_at_s = now_s + VISIT_EVERY_S
        if clicks := readers.click(0):
            say(show.clicks_line(clicks))
        are_tables_old |= bool({"trends", "recommend"} & streams.look())
        if are_tables_old and now_s >= tables_at_s:
            tables = say_tables(context.address, tables)
            are_tables_old, tables_at_s = False, now_s + TABLES_EVERY_S
        time.sleep(TICK_S)
    raise BrokerEnded(broker.returncode)


class Streams:
    """Owns running streams, and which of their batches have been shown.

    They are started one after another, for each of them starts Python processes, and Spark gives
    up on those that take longer than ten seconds. A stream that fails is started again after a
    pause, and goes on from its checkpoint.
    """

    def __init__(self, context: "StageContext", stages: Sequence[str]) -> None:
        self._context = context
        self._queries: dict[str, StreamingQuery] = {}
        self._start_at_s = dict.fromkeys(stages, 0.0)  # of those that do not run
        self._failures = dict.fromkeys(stages, 0)  # since the last batch
        self._shown = dict.fromkeys(stages, -1)

    def are_unfinished(self) -> bool:
        return bool(self._start_at_s) or any(
            query.isActive or query.exception() is not None for query in self._queries.values()
        )

    def look(self) -> set[str]:
        """A line for each new batch with something in it; the stages that had one."""
        busy = {stage for stage in self._queries if self._say_batches(stage)}
        for stage in tuple(self._queries):
            self._note_failure(stage)
        self._start_next()
        return busy

    def _say_batches(self, stage: str) -> bool:
        new: list[show.Value] = [
            progress
            for progress in self._queries[stage].recentProgress
            if progress["batchId"] > self._shown[stage] and progress["numInputRows"]
        ]
        for progress in new:
            say(show.batch_line(progress))
            self._shown[stage] = progress["batchId"]
            self._failures[stage] = 0
        return bool(new)

    def _note_failure(self, stage: str) -> None:
        problem = self._queries[stage].exception()
        if problem is None:
            return
        self._failures[stage] += 1
        if self._failures[stage] > FAILURES_MAX:
            raise StageFailed(f"the stage {stage} has failed: {first_line(problem)}")
        pause_s = PAUSE_S * self._failures[stage]
        say(f"{stage:<10} failed, and starts again in {pause_s:.0f} s: {first_line(problem)}")
        del self._queries[stage]
        self._start_at_s[stage] = time.monotonic() + pause_s

    def _start_next(self) -> None:
        from examples.news.stages import STAGES

        now_s = time.monotonic()
        due = [stage for stage, at_s in self._start_at_s.items() if at_s <= now_s]
        if due and all(map(is_under_way, self._queries.values())):
            self._queries[due[0]] = STAGES[due[0]](self._context)
            del self._start_at_s[due[0]]


def is_under_way(query: "StreamingQuery") -> bool:
    """True if a stream has done its first batch, or waits for one."""
    return (
        not query.isActive
        or query.lastProgress is not None
        or query.status["message"].startswith("Waiting")
    )


# What is said


def say(text: str) -> None:
    print(text, flush=True)


def say_lines(lines: IO[str]) -> None:
    for line in lines:
        say(line.rstrip())


def crawl(crawler: Crawler, articles_max: int | None, *, is_quiet: bool = False) -> None:
    for visited in crawler.visit_all(articles_max):
        if not is_quiet or visited.articles_new:
            say(show.visit_line(visited))


def say_tables(address: str, said: Collection[str] = ()) -> list[str]:
    """Say the tables that have rows, without those that were said before; all of them."""
    trends = topics.read_last(address, topics.TRENDS).values()
    advice = topics.read_last(address, topics.RECOMMENDED).values()
    tables = [show.trends_table(trends)] if trends else []
    tables += [show.recommendations_table(advice)] if advice else []
    for table in tables:
        if table not in said:
            say(f"\n{table}\n")
    return tables


def first_line(problem: Exception) -> str:
    return str(problem).strip().partition("\n")[0]


# What is started has an end


@contextlib.contextmanager
def running_broker(asked: Run) -> Iterator[tuple[Broker, str]]:
    """`ottla serve` in a process of its own; it is told to stop when everything else has."""
    broker, address = start_broker(asked, "--hints")
    with broker:
        try:
            yield broker, address
        finally:
            ignore_signals()
            broker.terminate()
            broker.wait(PATIENCE_S)


def start_broker(asked: Run, *more: str) -> tuple[Broker, str]:
    """`ottla serve`, when it is ready, and its address; or `BrokerEnded`."""
    words = ["serve", "--data", str(asked.data), "--listen", asked.listen, *more]
    broker = subprocess.Popen(
        [sys.executable, "-m", "ottla", *words, "--log-level", "warning"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process; the broker has to outlive Spark
    )
    assert broker.stdout is not None
    ready = broker.stdout.readline()
    if not ready.startswith(READY):
        broker.stdout.close()
        raise BrokerEnded(broker.wait(PATIENCE_S))
    say(ready.rstrip())
    threading.Thread(target=say_lines, args=(broker.stdout,), daemon=True).start()
    return broker, ready.removeprefix(READY).strip()


@contextlib.contextmanager
def running_spark(asked: Run) -> Iterator["SparkSession"]:
    """A session whose streams end before it does. What Spark logs goes into a file."""
    say("Spark      is starting, which takes about ten seconds")
    began_s = time.monotonic()
    spark = start_spark(asked)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark has put in its own
    say(f"Spark      is up after {time.monotonic() - began_s:.1f} s")
    try:
        yield spark
    finally:
        ignore_signals()
        say("news       is stopping")
        for query in spark.streams.active:
            query.stop()
        stop_spark(spark)


def start_spark(asked: Run) -> "SparkSession":
    asked.home.mkdir(parents=True, exist_ok=True)
    try:
        import ottla.spark

        with errors_into(spark_log(asked)):
            return ottla.spark.session("news", conf=SPARK_SETTINGS)
    except ImportError as problem:
        raise SparkAway(f"{problem}; pip install '.[spark,java]'") from None
    except Exception as problem:  # noqa: BLE001
        # Java is missing, or does not run, or the session does not like it: whichever it is, the
        # broker goes on.
        raise SparkAway(f"{first_line(problem)} ({spark_log(asked)} may say more)") from None


def stop_spark(spark: "SparkSession") -> None:
    """End the session and wait for its Java, which would otherwise outlive this process."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(PATIENCE_S)


def spark_log(asked: Run) -> Path:
    return asked.home / "spark.log"


@contextlib.contextmanager
def errors_into(file: Path) -> Iterator[None]:
    """Let whatever is started meanwhile write its errors into a file."""
    kept = os.dup(2)
    with file.open("a") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def own_terminal() -> Iterator[None]:
    """Have Ctrl-C reach this process alone.

    A terminal tells everybody in its foreground group, and `make`, which only waits in it, would
    call that an error. So this process makes a group of its own, as every job of a shell is one.
    Nobody could continue it after Ctrl-Z then, so that does nothing.
    """
    group = os.getpgrp()
    if group == os.getpid() or not sys.stdin.isatty() or os.tcgetpgrp(0) != group:
        yield  # it is alone already, or in the background, or there is no terminal
        return
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # what stops who takes a terminal from behind
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    try:
        yield
    finally:
        os.tcsetpgrp(0, group)


def ignore_signals() -> None:
    """Ignore further signals: the run is ending already."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
