"""The expected results of the stages of the news example, computed in plain Python."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

Article = Mapping[str, Any]

WINDOW = timedelta(hours=6)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SMALL_WORDS = frozenset({"a", "an", "and", "as", "at", "by", "for", "in", "of", "on", "the", "to"})


def fingerprint(article: Article) -> str:
    title, feed = article["title"].lower(), article["feed"].lower()
    if feed:
        title = title.removesuffix(feed)
    title = re.sub(r"^\s*(?:breaking|exclusive|live|update|video|watch)(?: \d+)?\s*:", "", title)
    words = re.findall(r"[^\W_]+", re.sub(r"['\u2019\u2010\u2011-]", "", title))
    return " ".join(sorted(set(words) - SMALL_WORDS)) or article["id"]


def without_copies(articles: Iterable[Article]) -> list[Article]:
    """The first of each id, and of those the first of each title."""
    ids, titles, kept = set[str](), set[str](), list[Article]()
    for article in articles:
        if article["id"] in ids:
            continue
        ids.add(article["id"])
        if (title := fingerprint(article)) in titles:
            continue
        titles.add(title)
        kept.append(article)
    return kept


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def trends(articles: Iterable[Article]) -> dict[tuple[datetime, str], int]:
    """Articles by the window in which they were published, and topic."""
    return Counter(
        (EPOCH + (moment(article["published"]) - EPOCH) // WINDOW * WINDOW, topic)
        for article in articles
        for topic in article["topics"]
    )


def recommended(history: Iterable[str], known: Sequence[Article]) -> list[tuple[str, int]]:
    """The three best articles for who has read `history`, with their scores."""
    read = set(history)
    likes = Counter(topic for one in known if one["id"] in read for topic in one["topics"])
    ranked = sorted(
        (
            -sum(likes[topic] for topic in one["topics"]),
            -moment(one["published"]).timestamp(),
            one["id"],
        )
        for one in known
        if one["id"] not in read
    )
    return [(article, -rank) for rank, _, article in ranked[:3] if rank < 0]


def histories(clicks: Iterable[Mapping[str, str]]) -> dict[str, list[str]]:
    """The articles that each reader has read."""
    found = defaultdict[str, list[str]](list)
    for click in clicks:
        found[click["reader"]].append(click["article"])
    return dict(found)
