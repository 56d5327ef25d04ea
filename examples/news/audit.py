"""Compares each topic and the lake with what they were made from: nothing lost or doubled."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from examples.news import topics
from examples.news.crawl import Visit, fetch, is_web_address
from examples.news.feed import parse_feed
from examples.news.readers import clicks_on

if TYPE_CHECKING:
    from examples.news.stages import StageContext

# ruff: noqa: PLC0415  # Spark is imported where it is needed

SAME_STORY_S: Final = 7 * 24 * 3600.0  # as `SAME_STORY_FOR` of the stages
LATE_AFTER: Final = timedelta(days=7)  # as `LATE_BY_AT_MOST`


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result for one step: what went in and came out, and what is wrong with it."""

    step: str
    records_in: int
    records_out: int
    lost: int
    doubled: int

    @property
    def is_right(self) -> bool:
        return not self.lost and not self.doubled


@dataclass(frozen=True, slots=True)
class Fingerprinted:
    """An article as the stage `clean` compares it."""

    article: str
    title: str  # the words that matter
    at_s: float  # when its record was written


def audit(context: "StageContext", sources: Sequence[str]) -> list[Check]:
    """Check every step; to be called when no stage runs any more."""
    clean = [value for _, value in topics.read_all(context.address, topics.CLEAN)]
    clicks = [value for _, value in topics.read_all(context.address, topics.CLICKS)]
    return [
        check_crawl(context.address, sources),
        check_clean(context),
        check_trends(context),
        compare(
            "clean to clicks",
            (tuple(asdict(click).values()) for one in clean for click in clicks_on(one)),
            ((one.get("reader"), one.get("article")) for one in clicks),
        ),
        check_lake(context),
    ]


def compare(step: str, expected: Iterable[object], found: Iterable[object]) -> Check:
    """What a step should have written beside what it has written, however often each."""
    wanted, there = Counter(expected), Counter(found)
    return Check(
        step=step,
        records_in=wanted.total(),
        records_out=there.total(),
        lost=(wanted - there).total(),
        doubled=(there - wanted).total(),
    )


def check_crawl(address: str, sources: Sequence[str]) -> Check:
    """Each entry of each feed, once."""
    raw = [value for _, value in topics.read_all(address, topics.RAW)]
    visits = topics.read_last(address, topics.VISITS)
    expected = Counter[str]()
    for source in sources:
        expected.update(set(_entries(source, visits.get(source, {}))))
    ours = [one["entry"] for one in raw if one.get("entry") in expected]
    return compare("feeds to raw", expected.elements(), ours)


def _entries(source: str, visit: Mapping[str, list[str]]) -> list[str]:
    """The entries of a feed. A web server may have newer ones by now: those that were visited."""
    if is_web_address(source):
        return visit.get("seen", [])
    fetched = fetch(source, Visit())
    return [] if fetched is None else [one.entry for one in parse_feed(fetched.document)]


def check_clean(context: "StageContext") -> Check:
    """Each article once: those that are missing are copies of one that is there."""
    from examples.news.stages import normalised_batch

    raw, clean = (normalised_batch(context, topic) for topic in (topics.RAW, topics.CLEAN))
    return check_copies(raw, clean)


def check_copies(raw: Sequence[Fingerprinted], clean: Sequence[Fingerprinted]) -> Check:
    """As `check_clean`, of fingerprints."""
    titles_of = defaultdict[str, set[str]](set)
    for one in raw:
        titles_of[one.article].add(one.title)
    ids, titles = {one.article for one in clean}, {one.title for one in clean}
    return Check(
        step="raw to clean",
        records_in=len(raw),
        records_out=len(clean),
        lost=sum(one not in ids and not titles & known for one, known in titles_of.items()),
        doubled=count_repeats(clean),
    )


def count_repeats(articles: Sequence[Fingerprinted]) -> int:
    """Articles whose id or title came before, as the same story."""
    seen_at_s = dict[str, float]()
    repeats = 0
    for one in articles:
        names = (f"id {one.article}", f"title {one.title}")
        repeats += any(
            name in seen_at_s and one.at_s - seen_at_s[name] < SAME_STORY_S for name in names
        )
        seen_at_s.update(dict.fromkeys(names, one.at_s))
    return repeats


def check_trends(context: "StageContext") -> Check:
    """The articles that windows count, beside a count of all clean articles.

    Without windows to which articles came too late to be counted.
    """
    from examples.news.stages import recount_topics

    expected = recount_topics(context)
    found = Counter(
        {
            (one["start"], one["topic"]): one["articles"]
            for one in topics.read_last(context.address, topics.TRENDS).values()
        }
    )
    starts = {start: datetime.fromisoformat(start) for start, _ in expected | found}
    newest = max(starts.values(), default=None)
    late = {start for start, at in starts.items() if newest and newest - at >= LATE_AFTER}
    return compare(
        "clean to trends",
        (window for window in expected.elements() if window[0] not in late),
        (window for window in found.elements() if window[0] not in late),
    )


def check_lake(context: "StageContext") -> Check:
    """Each record of each archived topic, once."""
    from deltalake import DeltaTable

    lake = DeltaTable(context.lake).to_pyarrow_table(columns=["topic", "offset"]).to_pydict()
    found = list(zip(lake["topic"], lake["offset"], strict=True))
    expected = {
        (topic, offset)
        for topic in topics.ARCHIVED
        for offset in topics.read_offsets(context.address, topic)
    }
    # Compaction removes records that were archived before.
    expected.update(record for record in found if record[0] in topics.LAST_HOLDS)
    return compare("topics to lake", expected, found)
