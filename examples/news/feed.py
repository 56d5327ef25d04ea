"""Parses RSS 2.0 and Atom documents to articles. Pure: bytes in, values out.

Feeds come from strangers. The standard library's parser never fetches anything a document refers
to, but it expands what a document defines; so a document that brings definitions (a DOCTYPE, which
neither format needs) is refused before the first of them is read. What is left of the usual
attacks is size, which is bounded here and by the crawler that fetched the bytes. That is all that
defusedxml would add, so it is not needed.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from html.parser import HTMLParser
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from xml.etree import ElementTree as ET

FEED_BYTES_MAX: Final = 4 << 20
ENTRIES_MAX: Final = 1000  # the first ones: feeds begin with what is new
TOPICS_MAX: Final = 8
TITLE_LENGTH_MAX: Final = 300
SUMMARY_LENGTH_MAX: Final = 1000
_ATOM: Final = "{http://www.w3.org/2005/Atom}"
_SPACE: Final = re.compile(r"\s+")


class FeedRefused(Exception):
    """A feed that cannot be had or read; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Article:
    """An entry of a feed. Feeds that carry the same article agree on its `id`."""

    id: str
    entry: str  # what this feed calls it
    feed: str
    title: str
    link: str
    summary: str
    topics: tuple[str, ...]
    published: str | None  # ISO 8601 in UTC; None where the feed says nothing that can be read


def parse_feed(document: bytes) -> list[Article]:
    """The articles of a feed, in its order. Entries without a link or a title are left out."""
    if len(document) > FEED_BYTES_MAX:
        raise FeedRefused(f"it is larger than {FEED_BYTES_MAX >> 20} MiB")
    root = _parse_xml(document)
    if root.tag == "rss":
        channel = root.find("channel")
        found = [] if channel is None else list(_rss_articles(channel))
    elif root.tag == f"{_ATOM}feed":
        found = list(_atom_articles(root))
    else:
        raise FeedRefused(f"it is neither RSS 2.0 nor Atom: it begins with <{root.tag[:60]}>")
    return [article for article in found if article.link and article.title]


def article_id(link: str) -> str:
    """The same for the same article, wherever it was linked from."""
    return hashlib.sha256(canonical_link(link).encode()).hexdigest()[:16]


def canonical_link(link: str) -> str:
    """A link without what only tells the publisher where its reader came from."""
    parts = urlsplit(link)
    query = [(name, value) for name, value in parse_qsl(parts.query) if not name.startswith("utm_")]
    return urlunsplit(
        (parts.scheme, parts.netloc.lower(), parts.path.rstrip("/"), urlencode(query), "")
    )


class _NoDefinitions(ET.TreeBuilder):
    """Builds documents that define nothing."""

    def doctype(self, name: str, public_id: str | None, system_id: str | None) -> None:
        raise FeedRefused("it has a DOCTYPE: definitions in feeds are not read")


def _parse_xml(document: bytes) -> ET.Element:
    parser = ET.XMLParser(target=_NoDefinitions())
    try:
        parser.feed(document)
        root: ET.Element = parser.close()
    except (ET.ParseError, LookupError, ValueError) as problem:
        raise FeedRefused(f"it is not XML: {problem}") from None
    return root


def _rss_articles(channel: ET.Element) -> Iterator[Article]:
    feed = _text(channel.find("title"))
    for item in channel.findall("item")[:ENTRIES_MAX]:
        link = _text(item.find("link"))
        yield _article(
            feed=feed,
            entry=_text(item.find("guid")) or link,
            link=link,
            title=_text(item.find("title")),
            summary=_text(item.find("description")),
            topics=[_text(one) for one in item.findall("category")],
            published=_parse_rss_date(_text(item.find("pubDate"))),
        )


def _atom_articles(root: ET.Element) -> Iterator[Article]:
    feed = _text(root.find(f"{_ATOM}title"))
    for entry in root.findall(f"{_ATOM}entry")[:ENTRIES_MAX]:
        link = _atom_link(entry)
        published = entry.find(f"{_ATOM}published")
        yield _article(
            feed=feed,
            entry=_text(entry.find(f"{_ATOM}id")) or link,
            link=link,
            title=_text(entry.find(f"{_ATOM}title")),
            summary=_text(entry.find(f"{_ATOM}summary")),
            topics=[one.get("term", "") for one in entry.findall(f"{_ATOM}category")],
            published=_parse_atom_date(
                _text(entry.find(f"{_ATOM}updated") if published is None else published)
            ),
        )


def _atom_link(entry: ET.Element) -> str:
    links = entry.findall(f"{_ATOM}link")
    return next((one.get("href", "") for one in links if one.get("rel") in (None, "alternate")), "")


def _article(
    *,
    feed: str,
    entry: str,
    link: str,
    title: str,
    summary: str,
    topics: list[str],
    published: datetime | None,
) -> Article:
    return Article(
        id=article_id(link) if _is_web_address(link) else "",
        entry=entry,
        feed=feed,
        title=plain_text(title)[:TITLE_LENGTH_MAX],
        link=link if _is_web_address(link) else "",
        summary=plain_text(summary)[:SUMMARY_LENGTH_MAX],
        topics=tuple(filter(None, topics))[:TOPICS_MAX],
        published=None if published is None else published.astimezone(UTC).isoformat(),
    )


def _is_web_address(link: str) -> bool:
    try:
        return urlsplit(link).scheme in ("http", "https")
    except ValueError:
        return False


def _text(element: ET.Element | None) -> str:
    """All text of an element, with one space wherever there was any."""
    return "" if element is None else _SPACE.sub(" ", "".join(element.itertext())).strip()


def _parse_rss_date(text: str) -> datetime | None:
    try:
        return _in_utc_unless_said(parsedate_to_datetime(text))
    except (ValueError, OverflowError):
        return None


def _parse_atom_date(text: str) -> datetime | None:
    try:
        return _in_utc_unless_said(datetime.fromisoformat(text))
    except ValueError:
        return None


def _in_utc_unless_said(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


class _Text(HTMLParser):
    """Collects what is between tags."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def plain_text(markup: str) -> str:
    """Text as a reader sees it: summaries and some titles are HTML."""
    parser = _Text()
    parser.feed(markup)
    parser.close()
    return _SPACE.sub(" ", "".join(parser.parts)).strip()
