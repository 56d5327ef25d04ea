"""Output of the pipeline: lines, tables and a summary. Pure: values in, text out."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from examples.news.audit import Check
from examples.news.crawl import Visited, is_web_address

WINDOWS_SHOWN: Final = 4
TOPICS_SHOWN: Final = 5
TITLE_LENGTH_SHOWN: Final = 58  # in a terminal of 80 columns
Value = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals of all runs on one broker."""

    crawled: int
    clean: int
    clicks: int
    windows: int
    recommendations: int
    lake_rows: int


def visit_line(visited: Visited) -> str:
    source = visited.source if is_web_address(visited.source) else PurePath(visited.source).name
    if visited.problem is not None:
        return f"crawl      {source} is left out: {visited.problem}"
    return f"crawl      {source:<22} {visited.articles_new:>4} new articles"


def batch_line(progress: Value) -> str:
    """A line about a micro-batch, as Spark reports it."""
    seconds = progress["batchDuration"] / 1000
    rows = progress["numInputRows"]
    return (
        f"{progress['name']:<10} batch {progress['batchId']:<3} {rows:>5} records {seconds:>6.1f} s"
    )


def clicks_line(clicks: int) -> str:
    return f"readers    {clicks} clicks"


def trends_table(trends: Collection[Value]) -> str:
    """The topics of the newest windows, those with the most articles first."""
    by_window: dict[tuple[str, str], list[Value]] = defaultdict(list)
    for trend in trends:
        by_window[trend["start"], trend["end"]].append(trend)
    rows = [
        (f"{_minutes(start)} to {_minutes(end)[11:]}", _counts(by_window[start, end]))
        for start, end in sorted(by_window)[-WINDOWS_SHOWN:]
    ]
    return table("Trends: articles by topic", ("window (UTC)", "topics"), rows)


def _minutes(moment: str) -> str:
    return moment[:16].replace("T", " ")


def _counts(trends: Sequence[Value]) -> str:
    ranked = sorted(trends, key=lambda one: (-one["articles"], one["topic"]))
    return ", ".join(f"{one['topic']} {one['articles']}" for one in ranked[:TOPICS_SHOWN])


def recommendations_table(recommendations: Collection[Value]) -> str:
    """For every reader the first article of the latest advice."""
    rows = [
        (advice["reader"], str(advice["read"]), _short(advice["articles"][0]["title"]))
        for advice in sorted(recommendations, key=lambda one: str(one["reader"]))
        if advice["articles"]
    ]
    return table("Recommended", ("reader", "has read", "next"), rows)


def _short(title: str) -> str:
    if len(title) <= TITLE_LENGTH_SHOWN:
        return title
    return title[: TITLE_LENGTH_SHOWN - 1].rstrip() + "…"


def summary(totals: Totals, lake: PurePath) -> str:
    return (
        f"done: {totals.crawled} articles crawled,"
        f" {totals.crawled - totals.clean} duplicates removed, {totals.clean} left;"
        f" {totals.windows} windows, {totals.clicks} clicks,"
        f" {totals.recommendations} readers with recommendations;"
        f" {totals.lake_rows} rows in {lake}"
    )


def check_line(check: Check) -> str:
    return (
        f"check      {check.step:<16} {check.records_in:>5} in {check.records_out:>5} out"
        f"  lost {check.lost}  doubled {check.doubled}"
    )


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A title and columns that line up; the last one is as wide as it likes."""
    columns = zip(heads, *rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in (tuple(heads), *rows)
    ]
    return "\n".join((title, *lines))
