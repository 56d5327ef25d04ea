"""How far groups have read: what they committed, and when it may be forgotten."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.coordinator.records import OffsetCommitted, OffsetDropped
from ottla.errors import ErrorCode
from ottla.model import LeaderEpoch, Offset, TimestampMs, TopicPartition


class Commit(NamedTuple):
    """How far a partition was read, as a client wants it remembered."""

    tp: TopicPartition
    offset: Offset
    leader_epoch: LeaderEpoch
    metadata: str


@dataclass(slots=True)
class CommittedOffsets:
    """Owned by a shard. Decides without changing anything; `replay` and `replay_drop` change."""

    by_group: dict[str, dict[TopicPartition, OffsetCommitted]] = field(default_factory=dict)

    def commit(
        self, group_id: str, commits: Sequence[Commit], now_ms: int, *, metadata_bytes_max: int
    ) -> tuple[tuple[OffsetCommitted, ...], list[ErrorCode]]:
        """What to write down, and what to say about each; the last word on a partition counts."""
        records = {}
        errors = []
        for commit in commits:
            if len(commit.metadata.encode()) > metadata_bytes_max:
                errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            errors.append(ErrorCode.NONE)
            records[commit.tp] = OffsetCommitted(
                group_id=group_id,
                tp=commit.tp,
                offset=commit.offset,
                leader_epoch=commit.leader_epoch,
                metadata=commit.metadata,
                committed_ms=TimestampMs(now_ms),
            )
        return tuple(records.values()), errors

    def fetch(self, group_id: str, tp: TopicPartition) -> OffsetCommitted | None:
        return self.by_group.get(group_id, {}).get(tp)

    def fetch_all(self, group_id: str) -> list[OffsetCommitted]:
        return list(self.by_group.get(group_id, {}).values())

    def drop(self, group_id: str, tps: Iterable[TopicPartition]) -> tuple[OffsetDropped, ...]:
        """What to write down to forget these, as far as they are known."""
        known = self.by_group.get(group_id, {})
        return tuple(OffsetDropped(group_id, tp) for tp in dict.fromkeys(tps) if tp in known)

    def drop_all(self, group_id: str) -> tuple[OffsetDropped, ...]:
        return self.drop(group_id, self.by_group.get(group_id, {}))

    def drop_topics(self, is_gone: Callable[[str], bool]) -> tuple[OffsetDropped, ...]:
        """The same for every group and every topic that is gone."""
        return tuple(
            OffsetDropped(group_id, tp)
            for group_id, offsets in self.by_group.items()
            for tp in offsets
            if is_gone(tp.topic)
        )

    def expired(
        self, group_id: str, since_ms: int, subscribed: frozenset[str] | None, before_ms: int
    ) -> tuple[OffsetDropped, ...]:
        """What nobody used since `before_ms`.

        An offset is in use while its topic is subscribed to; it counts as used when it was
        committed, and at `since_ms`, when the last member went.
        """
        return tuple(
            OffsetDropped(group_id, tp)
            for tp, committed in self.by_group.get(group_id, {}).items()
            if (subscribed is None or tp.topic not in subscribed)
            and max(committed.committed_ms, since_ms) <= before_ms
        )

    def replay(self, record: OffsetCommitted) -> None:
        self.by_group.setdefault(record.group_id, {})[record.tp] = record

    def replay_drop(self, record: OffsetDropped) -> None:
        offsets = self.by_group.get(record.group_id)
        if offsets is not None:
            offsets.pop(record.tp, None)
            if not offsets:
                del self.by_group[record.group_id]
