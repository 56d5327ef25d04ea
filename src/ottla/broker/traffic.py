"""Totals of batches by topic, counted once for each batch or response and never for a record."""

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.protocol.hot_fields import TopicKey


@dataclass(slots=True)
class TopicTraffic:
    """Totals of one topic; what a direction does not count stays 0."""

    batches: int = 0
    records: int = 0
    size_bytes: int = 0

    def add(self, other: "TopicTraffic") -> None:
        self.batches += other.batches
        self.records += other.records
        self.size_bytes += other.size_bytes


class Traffic(dict[TopicKey, TopicTraffic]):
    """Totals of one direction, by name or id of the topic. A dict, for a lookup in it is hot."""

    def __init__(self) -> None:
        super().__init__()
        self._deleted = TopicTraffic()  # of topics that are gone: the sum never falls

    def __missing__(self, key: TopicKey) -> TopicTraffic:
        made = self[key] = TopicTraffic()
        return made

    def sum(self) -> TopicTraffic:
        """The totals of all topics, also of those that have been deleted."""
        total = TopicTraffic()
        for part in (self._deleted, *self.values()):
            total.add(part)
        return total

    def by_topic(self, names: Mapping[bytes, str]) -> dict[str, TopicTraffic]:
        """The totals of the topics that exist, by name; others are forgotten but for the sum."""
        known = frozenset(names.values())
        found: dict[str, TopicTraffic] = {}
        for key, traffic in list(self.items()):
            name = names.get(key) if isinstance(key, bytes) else key
            if name is None or name not in known:
                self._deleted.add(self.pop(key))
            else:
                found.setdefault(name, TopicTraffic()).add(traffic)
        return dict(sorted(found.items()))
