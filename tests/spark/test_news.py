"""The news example on a real broker and Spark: once, and then until Ctrl-C with more news."""

import os
import re
import time
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

import ottla.testing
from examples.news import topics
from examples.news.__main__ import SHIPPED_FEEDS
from examples.news.crawl import find_sources
from examples.news.feed import parse_feed
from examples.news.readers import clicks_on
from examples.news_process import PATIENCE_S, ROOT, NewsProcess, news_process
from spark import news_oracle
from spark.news_oracle import Article

# Whole runs, on machines with far too much to do.
pytestmark = [pytest.mark.jvm, pytest.mark.timeout(1200)]
ITEM = """
<item><title>{}</title><link>https://evening.example/{}</link><category>Sport</category>
<category>sport </category><pubDate>{}</pubDate></item>"""
MORE = (
    # Newest first, as feeds are. Two titles of which nothing is left are two articles still.
    ITEM.format("From the future", 4, "Fri, 02 Jan 2099 03:00:00 GMT")
    + ITEM.format("!?", 3, "Thu, 05 Mar 2026 02:00:00 GMT")
    + ITEM.format("?!", 2, "Thu, 05 Mar 2026 01:00:00 GMT")
    + ITEM.format("Live: Hockey returns, to a frozen lake", 1, "Thu, 05 Mar 2026 00:00:00 GMT")
)


def crawled(*places: str) -> list[Article]:
    """The articles of the feeds, in crawl order."""
    return [
        asdict(article)
        for source in find_sources(places)
        for article in reversed(parse_feed(Path(source).read_bytes()))
    ]


class Found:
    """The content of the broker and the lake."""

    def __init__(self, address: str, data: Path) -> None:
        topics.wait_settled(address)
        self.raw = [value for _, value in topics.read_all(address, topics.RAW)]
        self.clean = [value for _, value in topics.read_all(address, topics.CLEAN)]
        self.clicks = [value for _, value in topics.read_all(address, topics.CLICKS)]
        self.trends = {
            (news_oracle.moment(one["start"]), one["topic"]): one["articles"]
            for one in topics.read_last(address, topics.TRENDS).values()
        }
        advice = topics.read_last(address, topics.RECOMMENDED)
        self.read = {reader: value["read"] for reader, value in advice.items()}
        self.advice = {
            reader: [(one["id"], one["score"]) for one in value["articles"]]
            for reader, value in advice.items()
        }
        self.record_count = sum(
            sum(1 for _ in topics.read_all(address, topic)) for topic in topics.ARCHIVED
        )
        lake = DeltaTable(data / "news" / "lake").to_pyarrow_table()
        self.lake = list(zip(lake["topic"].to_pylist(), lake["offset"].to_pylist(), strict=True))


def wait_gone(group: int) -> None:
    """Return when nothing of a process group is left: neither Java nor its workers."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("something was left behind")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("news") / "data"


@pytest.fixture(scope="module")
def first_run(data: Path) -> NewsProcess:
    """The feeds that are shipped, worked on once."""
    with news_process("--data", str(data), "--listen", "127.0.0.1:0", "--once", "--check") as news:
        status = news.process.wait(PATIENCE_S)
    assert status == 0, news.lines
    return news


@pytest.fixture(scope="module")
def first(first_run: NewsProcess, data: Path) -> Found:
    with ottla.testing.broker(data=data) as address:
        return Found(address, data)


@pytest.fixture(scope="module")
def second(first: Found, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Another feed, beside those of the first run; and Ctrl-C when all of it has arrived."""
    feed = tmp_path_factory.mktemp("feeds") / "evening.xml"
    feed.write_text(f"<rss><channel><title>Evening</title>{MORE}</channel></rss>")
    arguments = ["--data", str(data), "--listen", "127.0.0.1:0"]
    with news_process(*arguments, "--feed", SHIPPED_FEEDS, "--feed", str(feed)) as news:
        address = news.address
        news.wait_until(lambda: is_all_there(address, data, len(first.clean) + 3), "all is there")
        news.wait_said("Recommended")
        assert news.press_ctrl_c() == 0, news.lines
    assert not any("Traceback" in line for line in news.lines), news.lines
    wait_gone(news.process.pid)
    with ottla.testing.broker(data=data) as again:
        return Found(again, data)


def test_raw_is_what_the_feeds_say(first: Found) -> None:
    assert [one["title"] for one in first.raw] == [one["title"] for one in crawled(SHIPPED_FEEDS)]


def test_each_article_is_clean_once_as_it_came_first(first: Found) -> None:
    expected = news_oracle.without_copies(crawled(SHIPPED_FEEDS))
    assert [(one["id"], one["title"], one["feed"]) for one in first.clean] == [
        (one["id"], one["title"], one["feed"]) for one in expected
    ]
    for got, wanted in zip(first.clean, expected, strict=True):
        assert news_oracle.moment(got["published"]) == news_oracle.moment(wanted["published"])
        assert got["topics"] == [topic.lower() for topic in wanted["topics"]]


def test_trends_are_counts_by_window_and_topic(first: Found) -> None:
    assert first.trends == news_oracle.trends(first.clean)


def test_readers_click_once_and_are_recommended_what_they_like(first: Found) -> None:
    assert first.clicks == clicks_on_all(first.clean)
    assert first.advice == {
        reader: news_oracle.recommended(history, first.clean)
        for reader, history in news_oracle.histories(first.clicks).items()
    }


def test_the_lake_has_every_record_once(first: Found) -> None:
    assert len(first.lake) == len(set(first.lake)) == first.record_count


def test_a_run_that_ends_says_what_came_of_it(first_run: NewsProcess, first: Found) -> None:
    summary = first_run.said("done: ")
    assert summary is not None
    windows = len({start for start, _ in first.trends})
    assert list(map(int, re.findall(r"\d+(?= [a-z])", summary)))[:6] == [
        len(first.raw),
        len(first.raw) - len(first.clean),
        len(first.clean),
        windows,
        len(first.clicks),
        sum(map(bool, first.advice.values())),
    ]
    assert f"; {first.record_count} rows in " in summary
    assert first_run.said("Try it from another terminal:") is not None
    assert first_run.said("clean      batch 0 ") is not None


def test_the_readme_shows_such_a_run(first_run: NewsProcess) -> None:
    shown = (ROOT / "README.md").read_text().partition("$ make run ONCE=1\n")[2].partition("```")[0]
    lines = iter(first_run.lines)
    for line in shown.splitlines():
        wanted = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", line).partition(" rows in ")[0]
        if line not in ("", "..."):  # in this order, with others between them
            found = (re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", one) for one in lines)
            assert any(one.partition(" rows in ")[0] == wanted for one in found), line


STEPS = (
    "feeds to raw",
    "raw to clean",
    "clean to trends",
    "clean to clicks",
    "topics to lake",
)


def checks_of(news: NewsProcess) -> dict[str, list[int]]:
    """The numbers of each check: in, out, lost, doubled."""
    return {
        step: list(map(int, re.findall(r"\d+", line)))
        for step in STEPS
        if (line := news.said(f"check      {step} ")) is not None
    }


def test_a_check_compares_every_step(first_run: NewsProcess, first: Found) -> None:
    checks = checks_of(first_run)
    raw, clean, clicks = len(first.raw), len(first.clean), len(first.clicks)
    counted = sum(first.trends.values())
    assert checks == {
        "feeds to raw": [raw, raw, 0, 0],
        "raw to clean": [raw, clean, 0, 0],
        "clean to trends": [counted, counted, 0, 0],
        "clean to clicks": [clicks, clicks, 0, 0],
        "topics to lake": [first.record_count, first.record_count, 0, 0],
    }


@pytest.mark.nightly  # two sessions of Spark, one after the other
def test_kills_of_broker_and_driver_lose_and_double_nothing(tmp_path: Path) -> None:
    arguments = ("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--kills")
    with news_process(*arguments) as news:
        assert news.process.wait(PATIENCE_S) == 0, news.lines
    said = [line.split("  ")[0] for line in news.lines]
    assert said.count("kill") == 2
    assert sum(line.startswith("ottla ready on ") for line in news.lines) == 2
    assert sum(line.startswith("Spark      is up") for line in news.lines) == 2
    checks = checks_of(news)
    assert set(checks) == set(STEPS)
    assert all(check[2:] == [0, 0] for check in checks.values())
    assert checks["feeds to raw"][0] == len(crawled(SHIPPED_FEEDS))
    assert news.lines[-1] == "done: broker killed 1 time, driver killed 1 time; lost 0, doubled 0"


@pytest.mark.nightly
def test_a_second_run_adds_only_what_is_new(first: Found, second: Found) -> None:
    assert second.raw[: len(first.raw)] == first.raw
    assert len(second.raw) == len(first.raw) + 4
    assert second.clean[: len(first.clean)] == first.clean
    assert [one["title"] for one in second.clean[len(first.clean) :]] == [
        "?!",
        "!?",
        "From the future",
    ]
    assert second.clicks[: len(first.clicks)] == first.clicks
    assert second.clicks[len(first.clicks) :] == clicks_on_all(second.clean[len(first.clean) :])


@pytest.mark.nightly
def test_nothing_is_published_after_it_was_found(second: Found) -> None:
    assert news_oracle.moment(second.clean[-1]["published"]) < datetime.now(UTC)
    assert second.clean[-1]["topics"] == ["sport"]


@pytest.mark.nightly
def test_tables_go_on_from_where_they_were(first: Found, second: Found) -> None:
    assert second.trends == news_oracle.trends(second.clean)
    histories = news_oracle.histories(second.clicks)
    clicked_again = {click["reader"] for click in second.clicks[len(first.clicks) :]}
    assert clicked_again
    for reader, history in histories.items():
        known = second.clean if reader in clicked_again else first.clean
        assert second.advice[reader] == news_oracle.recommended(history, known)


@pytest.mark.nightly
def test_the_lake_has_the_new_records_once_too(second: Found) -> None:
    assert len(second.lake) == len(set(second.lake)) == second.record_count


def is_all_there(address: str, data: Path, clean_count: int) -> bool:
    """True once new articles have passed every stage."""
    found = Found(address, data)
    return (
        len(found.clean) == clean_count
        and found.trends == news_oracle.trends(found.clean)
        and found.clicks == clicks_on_all(found.clean)
        and found.read
        == {reader: len(history) for reader, history in news_oracle.histories(found.clicks).items()}
        and len(found.lake) == found.record_count
    )


def clicks_on_all(articles: Iterable[Article]) -> list[dict[str, str]]:
    return [asdict(click) for article in articles for click in clicks_on(article)]
