"""Offsets that groups have committed, or will have once a transaction commits."""

from collections.abc import Callable, Iterable, KeysView, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.coordinator.groups.records import OffsetCommitted, OffsetDropped, OffsetPending
from ottla.coordinator.runtime.log_entries import TransactionEnded
from ottla.errors import ErrorCode
from ottla.model import LeaderEpoch, Offset, ProducerId, TimestampMs, TopicPartition


class Commit(NamedTuple):
    """An offset that a client commits."""

    tp: TopicPartition
    offset: Offset
    leader_epoch: LeaderEpoch
    metadata: str


class UnstableOffset(NamedTuple):
    """The result for an offset that an open transaction may move."""

    tp: TopicPartition


FoundOffset = OffsetCommitted | UnstableOffset | None
FoundOffsets = list[FoundOffset] | ErrorCode  # the error of a client that is no member


@dataclass(frozen=True, slots=True)
class DeletedOffsets:
    """The result of OffsetDelete: one error for the group, or one for each partition."""

    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()


@dataclass(slots=True)
class CommittedOffsets:
    """Owned by a shard. Only methods that begin with `replay` change it.

    The last commit of a partition counts, in the order of the log, whenever the transaction that
    it is part of is decided. So a pending offset is void as soon as a later one is committed.
    """

    by_group: dict[str, dict[TopicPartition, OffsetCommitted]] = field(default_factory=dict)
    # Offsets of open transactions, for each partition in the order of the log.
    _pending: dict[str, dict[TopicPartition, dict[ProducerId, OffsetCommitted]]] = field(
        default_factory=dict
    )
    _of_producer: dict[ProducerId, set[tuple[str, TopicPartition]]] = field(default_factory=dict)

    def commit(
        self,
        group_id: str,
        commits: Sequence[Commit],
        now_ms: int,
        *,
        metadata_bytes_max: Callable[[], int],
    ) -> tuple[tuple[OffsetCommitted, ...], list[ErrorCode]]:
        """Records of the last commit of each partition, and an error for each commit."""
        records = {}
        errors = []
        for commit in commits:
            if commit.metadata and len(commit.metadata.encode()) > metadata_bytes_max():
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

    def fetch(self, group_id: str, tp: TopicPartition, *, is_stable: bool = False) -> FoundOffset:
        """The committed offset; with `is_stable`, UnstableOffset if a transaction may move it."""
        if is_stable and self.is_pending(group_id, tp):
            return UnstableOffset(tp)
        return self.by_group.get(group_id, {}).get(tp)

    def fetch_all(self, group_id: str, *, is_stable: bool = False) -> list[FoundOffset]:
        """All committed offsets; pending ones do not count yet."""
        offsets = self.by_group.get(group_id, {})
        return [self.fetch(group_id, tp, is_stable=is_stable) for tp in offsets]

    def is_pending(self, group_id: str, tp: TopicPartition) -> bool:
        return tp in self._pending.get(group_id, {})

    @property
    def groups_pending(self) -> KeysView[str]:
        """Groups that an open transaction may give an offset."""
        return self._pending.keys()

    def drop(self, group_id: str, tps: Iterable[TopicPartition]) -> tuple[OffsetDropped, ...]:
        """Tombstones of these offsets, as far as they are committed or pending."""
        known = self._known(group_id)
        return tuple(OffsetDropped(group_id, tp) for tp in dict.fromkeys(tps) if tp in known)

    def drop_all(self, group_id: str) -> tuple[OffsetDropped, ...]:
        return self.drop(group_id, self._known(group_id))

    def drop_partitions(
        self, is_gone: Callable[[TopicPartition], bool]
    ) -> tuple[OffsetDropped, ...]:
        """Tombstones of all groups' offsets of partitions that are gone."""
        return tuple(
            OffsetDropped(group_id, tp)
            for group_id in dict.fromkeys((*self.by_group, *self._pending))
            for tp in self._known(group_id)
            if is_gone(tp)
        )

    def _known(self, group_id: str) -> dict[TopicPartition, None]:
        committed, pending = self.by_group.get(group_id, {}), self._pending.get(group_id, {})
        return dict.fromkeys((*committed, *pending))

    def expired(
        self, group_id: str, since_ms: int, subscribed: frozenset[str] | None, before_ms: int
    ) -> tuple[OffsetDropped, ...]:
        """Tombstones of offsets that were last used before `before_ms`.

        An offset is in use while its topic is subscribed to, or while it is pending; it was used
        when it was committed, and at `since_ms`, when the last member left.
        """
        return tuple(
            OffsetDropped(group_id, tp)
            for tp, committed in self.by_group.get(group_id, {}).items()
            if (subscribed is None or tp.topic not in subscribed)
            and max(committed.committed_ms, since_ms) <= before_ms
            and not self.is_pending(group_id, tp)
        )

    def replay(self, record: OffsetCommitted) -> None:
        if record.group_id in self._pending:
            self._void(record.group_id, record.tp)
        self.by_group.setdefault(record.group_id, {})[record.tp] = record

    def replay_drop(self, record: OffsetDropped) -> None:
        self._void(record.group_id, record.tp)
        offsets = self.by_group.get(record.group_id)
        if offsets is not None:
            offsets.pop(record.tp, None)
            if not offsets:
                del self.by_group[record.group_id]

    def replay_pending(self, record: OffsetPending) -> None:
        group_id, tp, producer_id = record.offset.group_id, record.offset.tp, record.producer.id
        pending = self._pending.setdefault(group_id, {}).setdefault(tp, {})
        pending.pop(producer_id, None)  # its newest offset goes behind those of others
        pending[producer_id] = record.offset
        self._of_producer.setdefault(producer_id, set()).add((group_id, tp))

    def replay_end(self, record: TransactionEnded) -> None:
        """Commit or forget the pending offsets of a producer whose transaction has ended."""
        producer_id = record.producer.id
        for group_id, tp in sorted(self._of_producer.get(producer_id, ())):
            if record.is_committed:
                committed = self._pending[group_id][tp][producer_id]
                assert (committed.group_id, committed.tp) == (group_id, tp), (
                    "an offset is pending in the group that it was committed for"
                )
                self.by_group.setdefault(group_id, {})[tp] = committed
                self._void(group_id, tp, until=producer_id)
            else:
                self._forget_pending(group_id, tp, producer_id)

    def _void(self, group_id: str, tp: TopicPartition, *, until: ProducerId | None = None) -> None:
        """Forget the pending offsets of a partition, or only those up to one producer's."""
        for producer_id in list(self._pending.get(group_id, {}).get(tp, ())):
            self._forget_pending(group_id, tp, producer_id)
            if producer_id == until:
                return

    def _forget_pending(self, group_id: str, tp: TopicPartition, producer_id: ProducerId) -> None:
        pending = self._pending[group_id][tp]
        assert producer_id in pending, "a pending offset is forgotten once"
        del pending[producer_id]
        if not pending:
            del self._pending[group_id][tp]
            if not self._pending[group_id]:
                del self._pending[group_id]
        partitions = self._of_producer[producer_id]
        partitions.remove((group_id, tp))
        if not partitions:
            del self._of_producer[producer_id]
