"""What the news example prints."""

from itertools import pairwise
from pathlib import PurePath

from examples.news import show
from examples.news.crawl import Visited
from examples.news.show import Totals


def trend(start: str, end: str, topic: str, articles: int) -> show.Value:
    return {"start": start, "end": end, "topic": topic, "articles": articles}


def test_the_newest_windows_come_last_and_the_largest_topics_first() -> None:
    days = [f"2026-03-0{day}T06:00:00.000Z" for day in range(1, 7)]
    trends = [
        trend(start, end, topic, articles)
        for start, end in pairwise(days)
        for topic, articles in (("sport", 1), ("city", 2), ("art", 2))
    ]
    assert show.trends_table(trends) == (
        "Trends: articles by topic\n"
        "  window (UTC)               topics\n"
        "  2026-03-02 06:00 to 06:00  art 2, city 2, sport 1\n"
        "  2026-03-03 06:00 to 06:00  art 2, city 2, sport 1\n"
        "  2026-03-04 06:00 to 06:00  art 2, city 2, sport 1\n"
        "  2026-03-05 06:00 to 06:00  art 2, city 2, sport 1"
    )


def test_readers_get_the_first_of_what_is_recommended() -> None:
    advice = [
        {"reader": "bo", "read": 12, "articles": [{"title": "T" * 60}, {"title": "second"}]},
        {"reader": "ada", "read": 3, "articles": [{"title": "Moon clock"}]},
        {"reader": "cy", "read": 1, "articles": []},
    ]
    assert show.recommendations_table(advice) == (
        "Recommended\n"
        "  reader  has read  next\n"
        "  ada     3         Moon clock\n"
        f"  bo      12        {'T' * 57}…"
    )


def test_tables_may_be_empty() -> None:
    assert show.trends_table([]).count("\n") == 1
    assert show.recommendations_table([]).count("\n") == 1


def test_a_visit_is_a_line_and_so_is_a_problem() -> None:
    read = show.visit_line(Visited("/feeds/lamp.xml", 7))
    assert read == "crawl      lamp.xml                  7 new articles"
    problem = show.visit_line(Visited("https://l.example/f", problem="the server says 404"))
    assert problem == "crawl      https://l.example/f is left out: the server says 404"


def test_a_batch_is_a_line() -> None:
    progress = {"name": "clean", "batchId": 3, "numInputRows": 20, "batchDuration": 1234}
    assert show.batch_line(progress) == "clean      batch 3      20 records    1.2 s"


def test_the_summary_says_what_came_of_it() -> None:
    totals = Totals(crawled=86, clean=57, clicks=96, windows=12, recommendations=8, lake_rows=300)
    assert show.summary(totals, PurePath("data/news/lake")) == (
        "done: 86 articles crawled, 29 duplicates removed, 57 left; 12 windows, 96 clicks,"
        " 8 readers with recommendations; 300 rows in data/news/lake"
    )
