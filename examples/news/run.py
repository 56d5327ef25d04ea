"""A broker, the crawler, the readers and Spark together, from the start to the end."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NoReturn

from examples.news import show, topics
from examples.news.crawl import Crawler
from examples.news.readers import Readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from examples.news.stages import Place

# ruff: noqa: PLC0415  # Spark is imported where it is needed: the first line does not wait for it

READY: Final = "ottla ready on "
VISIT_EVERY_S: Final = 5.0
ARTICLES_PER_VISIT: Final = 4  # so that there is something to watch for a while
TABLES_EVERY_S: Final = 10.0
TICK_S: Final = 0.3
PATIENCE_S: Final = 60
QUERY_PATIENCE_S: Final = 600
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
    """What to run."""

    data: Path
    listen: str
    sources: Sequence[str]
    is_once: bool

    @property
    def home(self) -> Path:
        """The example's own part of the broker's directory."""
        return self.data / "news"


class BrokerEnded(Exception):
    """The broker is not there, or no more; it has said why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the broker has ended with {status}")
        self.status = status


class SparkAway(Exception):
    """Spark cannot be started; the text says why."""


class StageFailed(Exception):
    """A stream has ended that should go on; the text says why."""


def run(asked: Run) -> int:
    """All of it, until it is done or told to stop; the exit status."""
    # Also where a shell made it ignore Ctrl-C, and for whoever asks politely.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)
    say(f"news       {len(asked.sources)} feeds, a broker on {asked.listen}, and Spark")
    try:
        with running_broker(asked) as (broker, address):
            return run_on_broker(asked, broker, address)
    except BrokerEnded as ended:
        return ended.status or 1
    except StageFailed as problem:
        say(f"news       {problem}; Spark's own words are in {spark_log(asked)}")
        return 1
    except KeyboardInterrupt:
        return 0


def run_on_broker(asked: Run, broker: subprocess.Popen[str], address: str) -> int:
    topics.create_topics(address)
    with contextlib.closing(Crawler(address, asked.sources)) as crawler:
        crawl(crawler, None if asked.is_once else ARTICLES_PER_VISIT)
        try:
            with running_spark(asked) as spark:
                run_on_spark(broker, crawler, place_of(asked, spark, address))
        except SparkAway as problem:
            say(f"Spark      cannot start: {problem}")
            if asked.is_once:
                return 1
            say(f"news       the broker stays up on {address}; Ctrl-C ends it")
            raise BrokerEnded(broker.wait()) from None
    return 0


def place_of(asked: Run, spark: "SparkSession", address: str) -> "Place":
    from examples.news.stages import Place

    return Place(spark, address, asked.home, asked.is_once)


def run_on_spark(broker: subprocess.Popen[str], crawler: Crawler, place: "Place") -> None:
    if not place.is_once:
        with contextlib.closing(Readers(place.address)) as readers:
            stay(broker, crawler, readers, place)
    run_once(place)
    say_tables(place.address)
    say(show.summary(count_all(place), place.lake))


# Once: stage after stage, each on everything that the one before has written


def run_once(place: "Place") -> None:
    from examples.news import stages

    topics.wait_settled(place.address)
    finish(stages.start_clean(place))
    topics.wait_settled(place.address)
    with contextlib.closing(Readers(place.address)) as readers:
        say(show.clicks_line(readers.click(PATIENCE_S)))
    topics.wait_settled(place.address)
    finish(stages.start_trends(place), stages.start_recommend(place))
    topics.wait_settled(place.address)
    finish(stages.start_archive(place))


def finish(*queries: "StreamingQuery") -> None:
    """Show the batches of streams until all have ended."""
    batches = Batches()
    deadline_s = time.monotonic() + QUERY_PATIENCE_S
    while any(query.isActive for query in queries):
        batches.say_new(queries)
        if time.monotonic() > deadline_s:
            raise StageFailed(f"no end within {QUERY_PATIENCE_S} s")
        time.sleep(TICK_S)
    batches.say_new(queries)
    check(queries)


def count_all(place: "Place") -> show.Totals:
    from deltalake import DeltaTable

    def count(topic: str) -> int:
        return sum(1 for _ in topics.read_all(place.address, topic))

    trends = topics.read_last(place.address, topics.TRENDS).values()
    advice = topics.read_last(place.address, topics.RECOMMENDED).values()
    return show.Totals(
        crawled=count(topics.RAW),
        clean=count(topics.CLEAN),
        clicks=count(topics.CLICKS),
        windows=len({trend["start"] for trend in trends}),
        recommendations=sum(bool(one["articles"]) for one in advice),
        lake_rows=DeltaTable(place.lake).count(),
    )


# Until Ctrl-C: all stages side by side


def stay(broker: subprocess.Popen[str], crawler: Crawler, readers: Readers, place: "Place") -> None:
    """Crawl, click and show what streams do, for as long as all of them live."""
    from examples.news import stages

    queries = (
        stages.start_clean(place),
        stages.start_trends(place),
        stages.start_recommend(place),
        stages.start_archive(place),
    )
    batches = Batches()
    visit_at_s = time.monotonic() + VISIT_EVERY_S
    tables_at_s = 0.0
    is_table_old = False
    while broker.poll() is None:
        now_s = time.monotonic()
        if now_s >= visit_at_s:
            crawl(crawler, ARTICLES_PER_VISIT, is_quiet=True)
            visit_at_s = now_s + VISIT_EVERY_S
        if clicks := readers.click(0):
            say(show.clicks_line(clicks))
        is_table_old |= bool({"trends", "recommend"} & batches.say_new(queries))
        if is_table_old and now_s >= tables_at_s:
            say_tables(place.address)
            is_table_old, tables_at_s = False, now_s + TABLES_EVERY_S
        check(queries)
        time.sleep(TICK_S)
    raise BrokerEnded(broker.returncode)


def check(queries: Sequence["StreamingQuery"]) -> None:
    for query in queries:
        if (problem := query.exception()) is not None:
            reason = str(problem).strip().splitlines()[0]
            raise StageFailed(f"the stage {query.name} has failed: {reason}")


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


def say_tables(address: str) -> None:
    trends = topics.read_last(address, topics.TRENDS).values()
    advice = topics.read_last(address, topics.RECOMMENDED).values()
    say(f"\n{show.trends_table(trends)}\n\n{show.recommendations_table(advice)}\n")


class Batches:
    """Owns which batches have been shown."""

    def __init__(self) -> None:
        self._shown: dict[str, int] = {}

    def say_new(self, queries: Sequence["StreamingQuery"]) -> set[str]:
        """A line for each batch that had something in it; the stages that had one."""
        busy = set[str]()
        for query in queries:
            for progress in self._new(query):
                say(show.batch_line(progress))
                busy.add(query.name)
        return busy

    def _new(self, query: "StreamingQuery") -> list[show.Value]:
        last = self._shown.get(query.name, -1)
        new: list[show.Value] = [
            one for one in query.recentProgress if one["batchId"] > last and one["numInputRows"]
        ]
        if new:
            self._shown[query.name] = new[-1]["batchId"]
        return new


# What is started has an end


@contextlib.contextmanager
def running_broker(asked: Run) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`ottla serve` in a process of its own; it is told to stop when everything else has."""
    words = ["serve", "--data", str(asked.data), "--listen", asked.listen]
    with subprocess.Popen(
        [sys.executable, "-m", "ottla.cli.main", *words, "--hints", "--log-level", "warning"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process; the broker has to outlive Spark
    ) as broker:
        try:
            assert broker.stdout is not None
            ready = broker.stdout.readline()
            if not ready.startswith(READY):
                raise BrokerEnded(broker.wait(PATIENCE_S))
            say(ready.rstrip())
            threading.Thread(target=say_lines, args=(broker.stdout,), daemon=True).start()
            yield broker, ready.removeprefix(READY).strip()
        finally:
            ignore_signals()
            broker.terminate()
            broker.wait(PATIENCE_S)


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
        reason = str(problem).strip().splitlines()[0]
        raise SparkAway(f"{reason} ({spark_log(asked)} may say more)") from None


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


def ignore_signals() -> None:
    """It is ending already: once is enough."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
