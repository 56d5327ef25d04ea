"""Expiry of committed offsets, and of groups that have none left."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.coordinator.groups.classic_group import ClassicGroup, State
from ottla.coordinator.groups.consumer_group import ConsumerGroup
from ottla.coordinator.groups.consumer_records import EpochDropped
from ottla.coordinator.groups.offsets import CommittedOffsets
from ottla.coordinator.groups.records import GroupDropped, OffsetDropped, Record


class ExpiredCounts(NamedTuple):
    """Offsets that have expired, and groups that were dropped because they had none left."""

    offsets: int
    groups: int

    def __str__(self) -> str:
        return f"{self.offsets} offsets, {self.groups} groups"


def count_expired(records: Iterable[Record]) -> ExpiredCounts:
    """The numbers of offsets and of groups that these tombstones are about."""
    kinds = Counter(
        map(type, records)
    )  # a consumer group has more tombstones than that of its epoch
    return ExpiredCounts(kinds[OffsetDropped], kinds[GroupDropped] + kinds[EpochDropped])


def expired_records(
    groups: Mapping[str, ClassicGroup | ConsumerGroup], offsets: CommittedOffsets, before_ms: int
) -> tuple[Record, ...]:
    """Tombstones of offsets that were last used before `before_ms`, and of groups without any."""
    records: list[Record] = []
    for group_id, group in groups.items():
        expired = _expired_offsets(group, offsets, before_ms)
        records += expired
        left_count = len(offsets.by_group.get(group_id, ())) - len(expired)
        is_pending = group_id in offsets.groups_pending
        if left_count == 0 and group.is_forgettable and not is_pending:
            records += group.tombstones()
    return tuple(records)


def _expired_offsets(
    group: ClassicGroup | ConsumerGroup, offsets: CommittedOffsets, before_ms: int
) -> tuple[OffsetDropped, ...]:
    if isinstance(group, ConsumerGroup):
        since_ms = 0 if group.members else group.empty_since_ms
        return offsets.expired(group.group_id, since_ms, group.subscribed_topics(), before_ms)
    if group.state is State.EMPTY:
        return offsets.expired(group.group_id, group.changed_ms, frozenset(), before_ms)
    if group.state is State.STABLE and (topics := group.subscribed_topics()) is not None:
        return offsets.expired(group.group_id, 0, topics, before_ms)
    return ()
