"""Patterns of members: resolved when new, again when topics change, dropped when unused."""

import pytest

from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups.consumer_records import PatternDropped, PatternResolved
from ottla.coordinator.groups.pattern_subscriptions import PatternSubscriptions
from ottla.errors import InvalidRegularExpression
from ottla.model import TimestampMs


@pytest.fixture
def catalog() -> TopicCatalog:
    catalog = TopicCatalog(orders=1, users=1)
    catalog.create("internal", 1, is_internal=True)
    return catalog


@pytest.fixture
def patterns() -> PatternSubscriptions:
    return PatternSubscriptions("g")


def resolution(*topics: str, version: int = 0, now_ms: int = 0) -> PatternResolved:
    return PatternResolved(
        group_id="g",
        pattern=".*r.*",
        topics=topics,
        version=version,
        resolved_ms=TimestampMs(now_ms),
    )


def test_a_new_pattern_matches_all_topics_but_internal_ones(
    patterns: PatternSubscriptions, catalog: TopicCatalog
) -> None:
    resolved = patterns.resolve(".*r.*", {}, catalog.image, 0)
    assert resolved == resolution("orders", "users")


def test_a_known_pattern_or_none_is_not_resolved(
    patterns: PatternSubscriptions, catalog: TopicCatalog
) -> None:
    known = {".*r.*": resolution("orders")}
    assert patterns.resolve(".*r.*", known, catalog.image, 0) is None
    assert patterns.resolve(None, known, catalog.image, 0) is None


def test_a_pattern_that_is_not_one_is_refused_with_its_text(
    patterns: PatternSubscriptions, catalog: TopicCatalog
) -> None:
    with pytest.raises(InvalidRegularExpression, match=r"'\(r'"):
        patterns.resolve("(r", {}, catalog.image, 0)


def test_topics_that_come_and_go_raise_the_version(
    patterns: PatternSubscriptions, catalog: TopicCatalog
) -> None:
    before = catalog.image.topics
    known = {".*r.*": resolution("orders", "users")}
    used = frozenset({".*r.*", None})
    assert list(patterns.resolve_again(known, used, before, catalog.image, 5)) == []
    catalog.create("riders", 1)
    catalog.create("cats", 1)
    catalog.delete("users")
    assert list(patterns.resolve_again(known, used, before, catalog.image, 5)) == [
        resolution("orders", "riders", version=1, now_ms=5)
    ]


def test_a_pattern_that_no_member_uses_is_dropped(
    patterns: PatternSubscriptions, catalog: TopicCatalog
) -> None:
    known = {".*r.*": resolution("orders")}
    records = list(patterns.resolve_again(known, frozenset({None}), {}, catalog.image, 0))
    assert records == [PatternDropped("g", ".*r.*")]


def test_a_pattern_of_another_version_keeps_its_topics(
    patterns: PatternSubscriptions, catalog: TopicCatalog
) -> None:
    look_around = PatternResolved(
        group_id="g", pattern="(?=o)", topics=("orders",), version=3, resolved_ms=TimestampMs(0)
    )
    used = frozenset({"(?=o)"})
    records = patterns.resolve_again({"(?=o)": look_around}, used, {}, catalog.image, 0)
    assert list(records) == []
