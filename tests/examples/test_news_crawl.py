"""The crawler of the news example: real files, a real web server, a real broker."""

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import confluent_kafka
import pytest

from examples.news import topics
from examples.news.crawl import (
    SEEN_MAX,
    Crawler,
    Fetched,
    Visit,
    Visited,
    choose_new,
    fetch,
    find_sources,
)
from examples.news.feed import FEED_BYTES_MAX, FeedRefused

PATIENCE_S = 60


def rss(*names: str) -> bytes:
    """A feed with an item of each name, newest first."""
    items = "".join(
        f"<item><title>{name}</title><link>https://l.example/{name}</link></item>" for name in names
    )
    return f'<rss version="2.0"><channel><title>L</title>{items}</channel></rss>'.encode()


def titles(articles: list[topics.Value]) -> list[str]:
    return [article["title"] for article in articles]


def raw(address: str) -> list[topics.Value]:
    topics.wait_settled(address)
    return [value for _, value in topics.read_all(address, topics.RAW)]


@dataclass
class Site:
    """What a web server serves, and what it was asked."""

    document: bytes = b""
    etag: str | None = None
    last_modified: str | None = None
    status: HTTPStatus = HTTPStatus.OK
    statuses: list[int] = field(default_factory=list)
    address: str = ""


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers["If-None-Match"], self.headers["If-Modified-Since"]
            is_known = any(asked) and asked == (site.etag, site.last_modified)
            status = HTTPStatus.NOT_MODIFIED if is_known else site.status
            site.statuses.append(status)
            self.send_response(status)
            for name, value in (("ETag", site.etag), ("Last-Modified", site.last_modified)):
                if value is not None:
                    self.send_header(name, value)
            self.end_headers()
            if status is HTTPStatus.OK:
                self.wfile.write(site.document)

        def log_message(self, *facts: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    site.address = f"http://127.0.0.1:{server.server_port}/feed"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)


def test_the_oldest_come_first_and_none_twice() -> None:
    fetched = Fetched(rss("c", "b", "b", "a"), "tag")
    new, visit = choose_new(fetched, Visit(seen=("https://l.example/a",)), None)
    assert [article.title for article in new] == ["b", "c"]
    assert visit == Visit("tag", None, tuple(f"https://l.example/{name}" for name in "abc"))


def test_a_feed_is_asked_again_for_what_was_not_taken() -> None:
    fetched = Fetched(rss("c", "b", "a"), "tag", "today")
    new, visit = choose_new(fetched, Visit(), articles_max=2)
    assert [article.title for article in new] == ["a", "b"]
    assert (visit.etag, visit.last_modified) == (None, None)
    rest, visit = choose_new(fetched, visit, articles_max=2)
    assert [article.title for article in rest] == ["c"]
    assert (visit.etag, visit.last_modified) == ("tag", "today")


def test_memory_has_an_end() -> None:
    seen = tuple(map(str, range(SEEN_MAX)))
    _, visit = choose_new(Fetched(rss("new")), Visit(seen=seen), None)
    assert len(visit.seen) == SEEN_MAX
    assert visit.seen[-1] == "https://l.example/new"


def test_a_directory_stands_for_the_feeds_in_it(tmp_path: Path) -> None:
    for name in ("b.xml", "a.xml", "notes.txt"):
        (tmp_path / name).touch()
    web = "https://feeds.example/news.xml"
    found = find_sources([str(tmp_path), str(tmp_path / "notes.txt"), web])
    assert [Path(source).name for source in found] == ["a.xml", "b.xml", "notes.txt", "news.xml"]
    with pytest.raises(FeedRefused, match=r"nowhere is no file, no directory and no http address"):
        find_sources(["nowhere"])


def test_a_web_server_is_asked_only_for_what_has_changed() -> None:
    with serving(Site(rss("a"), '"1"', "Mon, 02 Mar 2026 09:30:00 GMT")) as site:
        first = fetch(site.address, Visit())
        assert first == Fetched(rss("a"), site.etag, site.last_modified)
        assert fetch(site.address, Visit(site.etag, site.last_modified)) is None
        site.document, site.etag = rss("b"), '"2"'
        again = fetch(site.address, Visit('"1"', site.last_modified))
        assert again is not None
        assert again.document == rss("b")
    assert site.statuses == [200, 304, 200]


def test_no_more_is_read_than_a_feed_may_have() -> None:
    with serving(Site(b" " * (FEED_BYTES_MAX + 1000))) as site:
        fetched = fetch(site.address, Visit())
    assert fetched is not None
    assert len(fetched.document) == FEED_BYTES_MAX + 1


def test_a_server_that_refuses_is_a_feed_that_is_left_out() -> None:
    with (
        serving(Site(status=HTTPStatus.NOT_FOUND)) as site,
        pytest.raises(FeedRefused, match="the server says 404 Not Found"),
    ):
        fetch(site.address, Visit())
    with pytest.raises(FeedRefused, match="refused"):
        fetch(site.address, Visit())  # nobody is there any more


def test_an_article_that_came_before_is_not_sent_again(ottla_broker: str, tmp_path: Path) -> None:
    topics.create_topics(ottla_broker)
    file = tmp_path / "feed.xml"
    file.write_bytes(rss("b", "a"))
    sources = find_sources([str(tmp_path)])
    with closing(Crawler(ottla_broker, sources)) as crawler:
        assert list(crawler.visit_all()) == [Visited(sources[0], 2)]
        assert list(crawler.visit_all()) == [Visited(sources[0], 0)]
    file.write_bytes(rss("c", "b", "a"))
    os.utime(file, ns=(1, 1))  # another time in any case, however coarse the file system's clock
    with closing(Crawler(ottla_broker, sources)) as crawler:  # what it knows is in the topic
        assert list(crawler.visit_all()) == [Visited(sources[0], 1)]
    assert titles(raw(ottla_broker)) == ["a", "b", "c"]
    visits = topics.read_last(ottla_broker, topics.VISITS)
    assert json.dumps(visits[sources[0]]["seen"]).count("l.example") == 3


def test_a_bad_feed_does_not_keep_the_others_from_being_read(
    ottla_broker: str, tmp_path: Path
) -> None:
    topics.create_topics(ottla_broker)
    topics.create_topics(ottla_broker)  # a second time, as every start does
    (tmp_path / "a.xml").write_text("<html/>")
    (tmp_path / "b.xml").write_bytes(rss("b"))
    bad, good = sources = find_sources([str(tmp_path)])
    with closing(Crawler(ottla_broker, sources)) as crawler:
        refused, read = crawler.visit_all()
    assert refused.source == bad
    assert "neither RSS 2.0 nor Atom" in str(refused.problem)
    assert read == Visited(good, 1)
    assert titles(raw(ottla_broker)) == ["b"]


def test_a_second_crawler_fences_the_first(ottla_broker: str, tmp_path: Path) -> None:
    topics.create_topics(ottla_broker)
    (tmp_path / "a.xml").write_bytes(rss("a"))
    sources = find_sources([str(tmp_path)])
    with closing(Crawler(ottla_broker, sources)) as first:
        with closing(Crawler(ottla_broker, sources)) as second:
            assert list(second.visit_all()) == [Visited(sources[0], 1)]
        with pytest.raises(confluent_kafka.KafkaException, match="fenced"):
            list(first.visit_all())
    assert titles(raw(ottla_broker)) == ["a"]
