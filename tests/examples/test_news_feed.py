"""What the news example makes of feeds, the good ones and the others."""

from pathlib import Path
from textwrap import dedent

import pytest

from examples.news import feed
from examples.news.feed import Article, FeedRefused, article_id, parse_feed, plain_text

SHIPPED = Path(feed.__file__).parent / "feeds"
RSS = dedent(
    """\
    <?xml version="1.0"?>
    <rss version="2.0"><channel>
      <title>The Lamp</title>
      <item>
        <title>Tea &amp;amp; toast</title>
        <link>https://Lamp.example/tea/?utm_source=feed&amp;page=2#top</link>
        <guid>lamp:1</guid>
        <pubDate>Mon, 02 Mar 2026 09:30:00 +0200</pubDate>
        <category>Food</category><category></category>
        <description>&lt;p&gt;Both are
          &lt;b&gt;warm&lt;/b&gt;.&lt;/p&gt;</description>
      </item>
      %s
    </channel></rss>
    """
)
ATOM = dedent(
    """\
    <feed xmlns="http://www.w3.org/2005/Atom">
      <title>The Lamp</title>
      <entry>
        <title type="html">Tea &amp;amp; toast</title>
        <link rel="self" href="https://lamp.example/1.atom"/>
        <link href="https://lamp.example/tea?page=2"/>
        <id>lamp:1</id>
        <updated>2026-03-02T07:30:00Z</updated>
        <category term="Food"/>
        <summary>Both are warm.</summary>
      </entry>
    </feed>
    """
)


def rss(more: str = "") -> bytes:
    return (RSS % more).encode()


def test_an_item_of_rss_is_an_article() -> None:
    link = "https://Lamp.example/tea/?utm_source=feed&page=2#top"
    assert parse_feed(rss()) == [
        Article(
            id=article_id(link),
            entry="lamp:1",
            feed="The Lamp",
            title="Tea & toast",
            link=link,
            summary="Both are warm.",
            topics=("Food",),
            published="2026-03-02T07:30:00+00:00",
        )
    ]


def test_an_entry_of_atom_is_the_same_article() -> None:
    (of_atom,), (of_rss,) = parse_feed(ATOM.encode()), parse_feed(rss())
    assert of_atom.link == "https://lamp.example/tea?page=2"
    assert (of_atom.id, of_atom.title, of_atom.published, of_atom.summary) == (
        of_rss.id,
        of_rss.title,
        of_rss.published,
        of_rss.summary,
    )


@pytest.mark.parametrize(
    "item",
    [
        "<item><title>no link</title></item>",
        "<item><link>https://lamp.example/2</link></item>",
        "<item><title>no web</title><link>javascript:alert(1)</link></item>",
        "<item><title>no address</title><link>https://[</link></item>",
    ],
)
def test_an_entry_without_title_or_link_is_left_out(item: str) -> None:
    assert [article.entry for article in parse_feed(rss(item))] == ["lamp:1"]


@pytest.mark.parametrize("date", ["", "yesterday", "Mon, 99 Mar 2026 09:30:00 GMT"])
def test_a_date_that_cannot_be_read_is_none(date: str) -> None:
    item = f"<item><title>t</title><link>https://l.example/</link><pubDate>{date}</pubDate></item>"
    assert parse_feed(rss(item))[1].published is None


def test_a_link_is_the_entry_where_nothing_else_names_it() -> None:
    item = "<item><title>t</title><link>https://l.example/</link></item>"
    assert parse_feed(rss(item))[1].entry == "https://l.example/"


def test_definitions_are_refused_before_they_are_expanded() -> None:
    laughs = "".join(f'<!ENTITY l{level} "{f"&l{level - 1};" * 10}">' for level in range(1, 10))
    bomb = f'<?xml version="1.0"?><!DOCTYPE r [<!ENTITY l0 "ha">{laughs}]><rss>&l9;</rss>'
    with pytest.raises(FeedRefused, match="DOCTYPE"):
        parse_feed(bomb.encode())


def test_files_of_this_machine_are_not_read() -> None:
    spy = '<!DOCTYPE r [<!ENTITY f SYSTEM "file:///etc/hostname">]><rss>&f;</rss>'
    with pytest.raises(FeedRefused, match="DOCTYPE"):
        parse_feed(spy.encode())


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"", "not XML"),
        (b"<rss><channel>", "not XML"),
        (b"\xff\xfe\x00", "not XML"),
        (b'<?xml version="1.0" encoding="nonsense"?><rss/>', "not XML"),
        (b"<rss>&nbsp;</rss>", "not XML"),
        (b"<html><body/></html>", "neither RSS 2.0 nor Atom: it begins with <html>"),
        (b"<rss>" + b" " * feed.FEED_BYTES_MAX + b"</rss>", "larger than 4 MiB"),
    ],
)
def test_what_is_no_feed_is_refused_with_a_reason(document: bytes, reason: str) -> None:
    with pytest.raises(FeedRefused, match=reason):
        parse_feed(document)


def test_a_feed_is_read_up_to_its_limits() -> None:
    item = "<item><title>{0}</title><link>https://l.example/{0}</link>{1}</item>"
    many = "".join(item.format(number, "") for number in range(feed.ENTRIES_MAX + 5))
    assert len(parse_feed(rss(many))) == feed.ENTRIES_MAX
    wide = item.format("t" * 1000, "<category>c</category>" * 50)
    article = parse_feed(rss(wide))[1]
    assert len(article.title) == feed.TITLE_LENGTH_MAX
    assert len(article.topics) == feed.TOPICS_MAX


def test_nesting_does_not_exhaust_the_stack() -> None:
    deep = "<b>" * 50_000 + "</b>" * 50_000
    item = f"<item><title>{deep}t</title><link>https://l.example/</link></item>"
    assert parse_feed(rss(item))[1].title == "t"


def test_text_is_what_a_reader_sees() -> None:
    assert plain_text(" one<br>two &lt;three&gt; ") == "onetwo <three>"
    assert plain_text("a < b") == "a < b"


def test_the_feeds_that_are_shipped_can_all_be_read() -> None:
    feeds = {file.name: parse_feed(file.read_bytes()) for file in SHIPPED.glob("*.xml")}
    articles = [article for found in feeds.values() for article in found]
    assert len(feeds) == 5
    assert len(articles) == 86
    assert len({article.id for article in articles}) == 68
    assert all(article.topics and article.published and article.summary for article in articles)
