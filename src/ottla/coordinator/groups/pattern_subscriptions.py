"""Topics that the regular expressions of a consumer group's members match."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ottla.coordinator.groups.consumer_records import (
    ConsumerRecord,
    PatternDropped,
    PatternResolved,
)
from ottla.coordinator.groups.topic_pattern import InvalidPattern, TopicPattern
from ottla.coordinator.groups.topics import Topic, Topics
from ottla.errors import InvalidRegularExpression
from ottla.model import TimestampMs

Patterns = Mapping[str, PatternResolved]  # by their text, as the log has them


@dataclass(slots=True)
class PatternSubscriptions:
    """Owned by a consumer group. Keeps compiled patterns; the topics they match are replayed."""

    group_id: str
    _compiled: dict[str, TopicPattern] = field(default_factory=dict)

    def resolve(
        self, pattern: str | None, known: Patterns, topics: Topics, now_ms: int
    ) -> PatternResolved | None:
        """The record of a pattern that no member had before; raises InvalidRegularExpression."""
        if pattern is None or pattern in known:
            return None
        try:
            compiled = TopicPattern(pattern)
            found = compiled.find(_visible(topics, topics.topics))
        except InvalidPattern as problem:
            raise InvalidRegularExpression(f"{pattern[:100]!r}: {problem}") from None
        self._compiled[pattern] = compiled
        return self._resolution(pattern, found, None, now_ms)

    def resolve_again(
        self,
        known: Patterns,
        used: frozenset[str | None],
        before: Mapping[str, Topic],
        topics: Topics,
        now_ms: int,
    ) -> Iterator[ConsumerRecord]:
        """Records of patterns that are no longer used, or match other topics than `before`."""
        fresh = topics.topics.keys() - before.keys()
        for pattern, resolved in list(known.items()):
            if pattern not in used:
                self._compiled.pop(pattern, None)
                yield PatternDropped(self.group_id, pattern)
                continue
            found = {name for name in resolved.topics if name in topics.topics}
            found |= self._find(pattern, _visible(topics, fresh))
            if found != set(resolved.topics):
                yield self._resolution(pattern, found, resolved, now_ms)

    def _find(self, pattern: str, names: Iterable[str]) -> frozenset[str]:
        """Empty for a pattern that another version accepted, or that has become too costly."""
        try:
            if pattern not in self._compiled:
                self._compiled[pattern] = TopicPattern(pattern)
            return self._compiled[pattern].find(names)
        except InvalidPattern:
            return frozenset()

    def _resolution(
        self, pattern: str, found: Iterable[str], known: PatternResolved | None, now_ms: int
    ) -> PatternResolved:
        return PatternResolved(
            group_id=self.group_id,
            pattern=pattern,
            topics=tuple(sorted(found)),
            version=0 if known is None else known.version + 1,
            resolved_ms=TimestampMs(now_ms),
        )


def _visible(topics: Topics, names: Iterable[str]) -> list[str]:
    """The topics that a pattern can match: no internal ones."""
    return [name for name in names if not topics.topics[name].is_internal]
