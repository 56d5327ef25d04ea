"""Logs of services in one place: shipped, parsed, counted, archived, and searched.

    python -m examples.logs ship DIR           lines of DIR/*.log into the broker
    python -m examples.logs index              parse, archive and count them, with Spark
    python -m examples.logs counts             lines by minute, service and level
    python -m examples.logs search timed out --level error
    python -m examples.logs search --sql "SELECT service, count(*) FROM logs GROUP BY service"

To be run from the top of the repository; `--help` has the options.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from examples.logs.search import Row, Search, SearchRefused, run_sql, table_of
from examples.logs.ship import Shipper, create_topics, read_counts
from examples.news.show import table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# ruff: noqa: PLC0415  # Spark is imported where it is needed: a search does not wait for it

EVERY_S: Final = 1.0
INDEX_TIMEOUT_S: Final = 600


def main(arguments: Sequence[str]) -> int:
    """Run a command; the exit status."""
    given = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], None] = given.run
    try:
        run(given)
    except SearchRefused as problem:
        print(f"search: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.logs",
        description="Logs of services: shipped, parsed, counted, archived, and searched.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], None], text: str) -> Any:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        if name != "search":
            address = os.environ.get("OTTLA_BROKER", "127.0.0.1:9092")
            command.add_argument("--broker", default=address, metavar="HOST:PORT")
        if name in ("index", "search"):
            where = "where table and checkpoints are (default: data/logs)"
            command.add_argument("--data", type=Path, default=Path("data/logs"), help=where)
        if name in ("ship", "index"):
            goes_on = "go on until Ctrl-C; without it, end when everything is done"
            command.add_argument("--follow", action="store_true", help=goes_on)
        if name in ("counts", "search"):
            command.add_argument("--json", action="store_true", help="one object on each line")
        return command

    ship = add("ship", run_ship, "write the lines of log files into the broker, each once")
    ship.add_argument("directory", type=Path, help="of files named *.log, also rotated ones")
    add("index", run_index, "parse the lines into a table, and count them")
    add("counts", run_counts, "lines by minute, service and level")
    search = add("search", run_search, "the newest lines that have all that is given")
    search.add_argument("words", nargs="*", help="parts of the message, in any case")
    search.add_argument("--service")
    search.add_argument("--level")
    search.add_argument("--since", metavar="TIME", help="such as 2026-03-04T06:00:00Z")
    search.add_argument("--limit", type=int, default=100)
    search.add_argument("--sql", help="a query of the table `logs`, in place of all others")
    return parser


def run_ship(given: argparse.Namespace) -> None:
    if not given.directory.is_dir():
        raise SystemExit(f"ship: {given.directory} is no directory")
    create_topics(given.broker)
    shipper = Shipper(given.broker, given.directory)
    while True:
        lines = shipper.ship()
        if lines or not given.follow:
            print(f"{lines} lines shipped", flush=True)
        if not given.follow:
            return
        time.sleep(EVERY_S)


def run_index(given: argparse.Namespace) -> None:
    from examples.logs.index import IndexContext, start_count, start_index

    create_topics(given.broker)
    with _session() as spark:
        home = given.data.resolve()  # workers of Spark may be in another directory
        context = IndexContext(spark, given.broker, home, is_once=not given.follow)
        for start in (start_index, start_count):  # one after the other: each starts processes
            query = start(context)
            if not given.follow:
                if not query.awaitTermination(INDEX_TIMEOUT_S):
                    raise SystemExit(f"index: no end within {INDEX_TIMEOUT_S} s")
                rows = sum(one["numInputRows"] for one in query.recentProgress)
                print(f"{query.name}: {rows} lines", flush=True)
        if given.follow:
            spark.streams.awaitAnyTermination()


@contextlib.contextmanager
def _session() -> Iterator["SparkSession"]:
    """A session of Spark that ends with the command, unless there was one before."""
    from pyspark.sql import SparkSession

    from ottla.spark.session import session

    before = SparkSession.getActiveSession()
    spark = session("logs", conf={"spark.sql.shuffle.partitions": "1"})
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark has put in its own
    try:
        yield spark
    finally:
        if before is None:
            for query in spark.streams.active:
                query.stop()
            spark.stop()


def run_counts(given: argparse.Namespace) -> None:
    _show([asdict(count) for count in read_counts(given.broker)], is_json=given.json)


def run_search(given: argparse.Namespace) -> None:
    search = Search(
        words=given.words,
        service=given.service,
        level=given.level,
        since=given.since,
        limit=given.limit,
    )
    rows = run_sql(table_of(given.data), given.sql or search.sql())
    if given.sql or given.json:
        _show(rows, is_json=given.json)
        return
    for row in rows:
        print(row["time"], row["service"], row["level"], row["message"])


def _show(rows: Sequence[Row], *, is_json: bool) -> None:
    if is_json:
        for row in rows:
            print(json.dumps(row, default=str))
    elif rows:
        heads = tuple(rows[0])
        print(table("", heads, [tuple(map(str, row.values())) for row in rows]).lstrip("\n"))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no error
    sys.exit(main(sys.argv[1:]))
