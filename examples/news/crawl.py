"""Visits feeds and writes what is new into `articles.raw`, each entry of a feed once.

What was seen before, and by which marks a feed says that it has not changed, is remembered in the
compacted topic `articles.visits`. Articles and memory are written in one transaction: a crawler
that is killed neither forgets an article nor sends it twice.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Final

import confluent_kafka

from examples.news import topics
from examples.news.feed import FEED_BYTES_MAX, Article, FeedRefused, parse_feed

SEEN_MAX: Final = 2000  # entries remembered of one feed: twice what is read of it
FETCH_TIMEOUT_S: Final = 10
_PATIENCE_S: Final = 60
_USER_AGENT: Final = "ottla-news-example"


@dataclass(frozen=True, slots=True)
class Visit:
    """The state of a feed between visits."""

    etag: str | None = None
    last_modified: str | None = None
    seen: tuple[str, ...] = ()  # entries, the oldest first


@dataclass(frozen=True, slots=True)
class Fetched:
    """A feed's document, and the marks to ask with the next time."""

    document: bytes
    etag: str | None = None
    last_modified: str | None = None


@dataclass(frozen=True, slots=True)
class Visited:
    """The result of a visit, for display."""

    source: str
    articles_new: int = 0
    problem: str | None = None


def find_sources(locations: Sequence[str]) -> list[str]:
    """Files and addresses of feeds: a directory stands for every .xml in it."""
    return [source for location in locations for source in _sources_at(location)]


def _sources_at(location: str) -> list[str]:
    if is_web_address(location):
        return [location]
    path = Path(location).resolve()
    if path.is_dir():
        return sorted(str(file) for file in path.glob("*.xml"))
    if path.is_file():
        return [str(path)]
    raise FeedRefused(f"{location} is no file, no directory and no http address")


def is_web_address(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def fetch(source: str, visit: Visit) -> Fetched | None:
    """The current content of a feed; None if it has not changed since `visit`."""
    try:
        return _fetch_web(source, visit) if is_web_address(source) else _fetch_file(source, visit)
    except (OSError, ValueError) as problem:
        raise FeedRefused(str(problem)) from None


def _fetch_file(source: str, visit: Visit) -> Fetched | None:
    file = Path(source)
    status = file.stat()
    etag = f"{status.st_mtime_ns}-{status.st_size}"  # what a web server would make of a file
    if etag == visit.etag:
        return None
    with file.open("rb") as content:
        return Fetched(content.read(FEED_BYTES_MAX + 1), etag)


def _fetch_web(source: str, visit: Visit) -> Fetched | None:
    headers = {"User-Agent": _USER_AGENT}
    if visit.etag is not None:
        headers["If-None-Match"] = visit.etag
    if visit.last_modified is not None:
        headers["If-Modified-Since"] = visit.last_modified
    request = urllib.request.Request(source, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=FETCH_TIMEOUT_S) as response:
            return Fetched(
                response.read(FEED_BYTES_MAX + 1),
                response.headers["ETag"],
                response.headers["Last-Modified"],
            )
    except urllib.error.HTTPError as response:
        with response:
            if response.code == HTTPStatus.NOT_MODIFIED:
                return None
            raise FeedRefused(f"the server says {response.code} {response.reason}") from None


def choose_new(
    fetched: Fetched, visit: Visit, articles_max: int | None
) -> tuple[list[Article], Visit]:
    """The oldest articles that were not seen before, and what to remember then."""
    seen = set(visit.seen)
    unseen = [one for one in reversed(parse_feed(fetched.document)) if one.entry not in seen]
    by_entry = {article.entry: article for article in unseen}
    new = list(by_entry.values())[:articles_max]
    entries = (*visit.seen, *(article.entry for article in new))[-SEEN_MAX:]
    if len(new) < len(by_entry):
        return new, replace(visit, seen=entries)  # without marks: the rest has to be asked for
    return new, Visit(fetched.etag, fetched.last_modified, entries)


class Crawler:
    """Owns the memory of all visits; there is one at a time, for a new one fences the last."""

    def __init__(self, address: str, sources: Sequence[str]) -> None:
        self._sources = sources
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": address, "transactional.id": "news-crawler"}
        )
        self._producer.init_transactions(_PATIENCE_S)  # before reading: the last one's end is seen
        self._visits = {
            source: Visit(**{**value, "seen": tuple(value["seen"])})
            for source, value in topics.read_last(address, topics.VISITS).items()
        }

    def visit_all(self, articles_max: int | None = None) -> Iterator[Visited]:
        """Look at every feed once; of each, at most `articles_max` new articles are taken."""
        for source in self._sources:
            try:
                yield Visited(source, self._visit(source, articles_max))
            except FeedRefused as problem:
                yield Visited(source, problem=str(problem))

    def close(self) -> None:
        del self._producer  # which ends it; its own `close` cannot end one that was fenced

    def _visit(self, source: str, articles_max: int | None) -> int:
        before = self._visits.get(source, Visit())
        fetched = fetch(source, before)
        if fetched is None:
            return 0
        new, visit = choose_new(fetched, before, articles_max)
        if visit != before:
            self._write(source, new, visit)
        return len(new)

    def _write(self, source: str, new: list[Article], visit: Visit) -> None:
        self._producer.begin_transaction()
        for article in new:
            self._producer.produce(topics.RAW, json.dumps(asdict(article)), article.id)
        self._producer.produce(topics.VISITS, json.dumps(asdict(visit)), source)
        self._producer.commit_transaction(_PATIENCE_S)
        self._visits[source] = visit
