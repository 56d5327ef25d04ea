"""News from feeds to recommendations: a broker, a crawler, Spark, and a lake.

    python -m examples.news            until Ctrl-C; `make run` does this
    python -m examples.news --once     work on what is there, then end
    python -m examples.news --kills    the same while broker and Spark are killed, then a check

To be run from the top of the repository; `--help` has the options.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from examples.news.crawl import find_sources
from examples.news.feed import FeedRefused
from examples.news.kills import run_with_kills
from examples.news.run import Run, run

SHIPPED_FEEDS: Final = str(Path(__file__).parent / "feeds")


def parse_run(arguments: Sequence[str]) -> Run:
    """Parse the command line; ends the process with one line if it is invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.news",
        description="Crawl feeds into a broker; clean, count, recommend and archive with Spark.",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("data"),
        metavar="DIR",
        help="the broker's directory; checkpoints and the lake are in DIR/news (default: ./data)",
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:9092",
        metavar="HOST:PORT",
        help="where the broker listens (default: 127.0.0.1:9092)",
    )
    parser.add_argument(
        "--feed",
        action="append",
        metavar="PLACE",
        help="a file, a directory of .xml files or an http address, instead of the feeds that come"
        " with the example; may be given many times",
    )
    parser.add_argument(
        "--once", action="store_true", help="work on what is there, say what came of it, and end"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="with --once: compare every step with what it was made from; status 1 if it differs",
    )
    parser.add_argument(
        "--kills",
        action="store_true",
        help="kill the broker, then Spark and its driver; let both go on, and --once --check",
    )
    parser.add_argument(
        "--broker", metavar="HOST:PORT", help="one that runs already, instead of a new one"
    )
    given = parser.parse_args(arguments)
    if given.check and not given.once:
        parser.error("--check needs --once: streams that go on have no end to look at")
    if given.kills and (given.once or given.broker):
        parser.error("--kills starts a broker of its own and ends by itself: leave out the others")
    try:
        sources = find_sources(given.feed or [SHIPPED_FEEDS])
    except FeedRefused as problem:
        parser.error(f"--feed {problem}")
    return Run(
        data=given.data,
        listen=given.listen,
        sources=sources,
        is_once=given.once,
        broker=given.broker,
        is_checked=given.check,
        is_killed=given.kills,
    )


if __name__ == "__main__":
    asked = parse_run(sys.argv[1:])
    sys.exit(run_with_kills(asked) if asked.is_killed else run(asked))
