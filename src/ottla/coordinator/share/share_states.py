"""The states of all share partitions of one shard.

Two numbers fence: the state epoch rises when a state is begun anew, and the leader epoch is that of
the partition's leader. A leader that reads a state commits its epoch before it gets the response,
so that an older leader can write no more.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from ottla.coordinator.runtime.decision import A, Decision, Ticket
from ottla.coordinator.share.records import ShareRecord, Snapshot, StateDropped, Update
from ottla.errors import ApiError, FencedLeaderEpoch, InvalidRequest, UnknownTopicOrPartition
from ottla.model import Offset, TimestampMs, Uuid
from ottla.queues.errors import FencedStateEpoch
from ottla.queues.share_state import (
    NO_START,
    DeliveryState,
    SharePartitionKey,
    StateRead,
    StateSummary,
    StateWrite,
    combine,
)

UPDATES_PER_SNAPSHOT: Final = 500
UNREAD: Final = -1  # leader epoch of a state that no leader has read yet

ShareDecision = Decision[ShareRecord]


@dataclass(slots=True)
class _Kept:
    """The state of one share partition, as if its last snapshot had been written now."""

    snapshot: Snapshot
    update_count: int = 0  # since the last snapshot in the log
    round: int = 0  # of pruning, in which the last snapshot in the log was written


@dataclass(slots=True)
class ShareStates:
    """The machine of a shard. A response is a value, or the ApiError that refuses the request."""

    states: dict[SharePartitionKey, _Kept] = field(default_factory=dict)
    _round: int = 0  # of pruning
    _boundary: int = 0  # the log's end when the last round began
    _archiving: dict[SharePartitionKey, None] = field(default_factory=dict)
    _changed_count: int = 0  # records since the last round began, but for its own

    # The five calls

    def initialize(
        self,
        ticket: Ticket[ApiError | None],
        key: SharePartitionKey,
        state_epoch: int,
        start_offset: Offset,
        now_ms: int,
    ) -> ShareDecision:
        """Begin the state anew. A repeated call, of the same epoch, changes nothing.

        Without a start offset it is begun only if there is none: members that join together ask
        for it one after the other, each in an epoch of its own.
        """
        kept = self.states.get(key)
        if kept is not None:
            if start_offset == NO_START:
                return _respond(ticket, None)
            known = kept.snapshot.state_epoch
            if state_epoch < known:
                return _respond(ticket, _fenced_state(key, known, state_epoch))
            if state_epoch == known:
                return _respond(ticket, None)
        snapshot = Snapshot(
            key=key,
            snapshot_epoch=0 if kept is None else kept.snapshot.snapshot_epoch + 1,
            state_epoch=state_epoch,
            leader_epoch=UNREAD if kept is None else kept.snapshot.leader_epoch,
            start_offset=start_offset,
            complete_count=0,
            created_ms=TimestampMs(now_ms),
            written_ms=TimestampMs(now_ms),
        )
        return self._decide(snapshot, ticket, None, now_ms)

    def read(
        self,
        ticket: Ticket[StateRead | ApiError],
        key: SharePartitionKey,
        leader_epoch: int,
        now_ms: int,
    ) -> ShareDecision:
        """Read as the leader of an epoch; from then on older leaders are fenced."""
        kept = self.states.get(key)
        if kept is None:
            return _respond(ticket, _unknown(key))
        found = kept.snapshot
        if leader_epoch < found.leader_epoch:
            return _respond(ticket, _fenced_leader(key, found.leader_epoch, leader_epoch))
        result = StateRead(found.state_epoch, found.start_offset, found.batches, found.sender)
        if leader_epoch == found.leader_epoch:
            return _respond(ticket, result)
        update = Update(
            key=key,
            snapshot_epoch=found.snapshot_epoch,
            leader_epoch=leader_epoch,
            start_offset=found.start_offset,
            complete_count=found.complete_count,
        )
        return self._decide(update, ticket, result, now_ms)

    def write(
        self,
        ticket: Ticket[ApiError | None],
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        change: StateWrite,
        now_ms: int,
    ) -> ShareDecision:
        kept = self.states.get(key)
        if kept is None:
            return _respond(ticket, _unknown(key))
        known = kept.snapshot
        if leader_epoch < known.leader_epoch:
            return _respond(ticket, _fenced_leader(key, known.leader_epoch, leader_epoch))
        if state_epoch < known.state_epoch:
            return _respond(ticket, _fenced_state(key, known.state_epoch, state_epoch))
        if state_epoch > known.state_epoch or (
            change.batches and any(b.first > b.last for b in change.batches)
        ):
            return _respond(ticket, InvalidRequest(f"{key} has no such state"))
        update = tuple.__new__(Update, (key, known.snapshot_epoch, leader_epoch, *change))
        if kept.update_count < UPDATES_PER_SNAPSHOT:
            return self._decide(update, ticket, None, now_ms)
        return self._decide(_next_snapshot(_updated(known, update), now_ms), ticket, None, now_ms)

    def delete(
        self, ticket: Ticket[ApiError | None], key: SharePartitionKey, now_ms: int
    ) -> ShareDecision:
        """Forget a state; there need not be one."""
        if key not in self.states:
            return _respond(ticket, None)
        return self._decide(StateDropped(key), ticket, None, now_ms)

    def summarize(
        self, ticket: Ticket[StateSummary | ApiError], key: SharePartitionKey
    ) -> ShareDecision:
        kept = self.states.get(key)
        if kept is None:
            return _respond(ticket, _unknown(key))
        found = kept.snapshot
        return _respond(
            ticket,
            StateSummary(
                found.state_epoch, found.leader_epoch, found.start_offset, found.complete_count
            ),
        )

    def starts_of(
        self, ticket: Ticket[dict[tuple[str, int], Offset]], topic_id: Uuid
    ) -> ShareDecision:
        """Start offsets of a topic, by group and partition."""
        return _respond(
            ticket,
            {
                (key.group_id, key.partition): kept.snapshot.start_offset
                for key, kept in self.states.items()
                if key.topic_id == topic_id
            },
        )

    @property
    def archiving(self) -> list[SharePartitionKey]:
        """Share partitions with records whose dead letters are not written yet."""
        return list(self._archiving)

    # Deleted topics

    def drop_topics(
        self, ticket: Ticket[None], is_gone: Callable[[Uuid], bool], now_ms: int
    ) -> ShareDecision:
        """Drop the states of partitions whose topics were deleted."""
        gone = [StateDropped(key) for key in self.states if is_gone(key.topic_id)]
        return self._decide_all(gone, ticket, None, now_ms)

    # Pruning

    @property
    def is_prunable(self) -> bool:
        """True if a round of pruning would do something: more was written than snapshots."""
        return self._changed_count > 0

    def begin_round(self, ticket: Ticket[Offset], end: Offset, now_ms: int) -> ShareDecision:
        """Write states anew that have no snapshot since the last round began; the log ends at
        `end`.

        The response is the log's end when the last round began: nothing below is needed any more.
        """
        self._round += 1
        below, self._boundary = Offset(self._boundary), end
        old = [
            _next_snapshot(kept.snapshot, now_ms)
            for kept in self.states.values()
            if kept.round < self._round - 1
        ]
        decision = self._decide_all(old, ticket, below, now_ms)
        self._changed_count = 0
        return decision

    # Time

    def next_deadline_ms(self) -> int | None:
        return None

    def pass_time(self, now_ms: int) -> ShareDecision:
        return Decision()

    # Replaying

    def replay(self, record: ShareRecord, now_ms: int) -> None:
        self._changed_count += 1
        match record:
            case Update():
                kept = self.states.get(record.key)
                if kept is not None:  # else its snapshot was pruned, and a tombstone follows
                    kept.snapshot = _updated(kept.snapshot, record)
                    kept.update_count += 1
                    self._note_archiving(kept.snapshot)
            case Snapshot():
                self.states[record.key] = _Kept(record, 0, self._round)
                self._note_archiving(record)
            case StateDropped(key):
                self.states.pop(key, None)
                self._archiving.pop(key, None)

    def _note_archiving(self, state: Snapshot) -> None:
        if state.batches and any(b.state is DeliveryState.ARCHIVING for b in state.batches):
            self._archiving[state.key] = None
        elif self._archiving:
            self._archiving.pop(state.key, None)

    def end_load(self) -> None:
        """Nothing follows from the end of a load."""

    def _decide(
        self, record: ShareRecord, ticket: Ticket[A], response: A, now_ms: int
    ) -> ShareDecision:
        self.replay(record, now_ms)
        return tuple.__new__(Decision, ((record,), (ticket.respond(response),)))

    def _decide_all(
        self, records: Iterable[ShareRecord], ticket: Ticket[A], response: A, now_ms: int
    ) -> ShareDecision:
        written = tuple(records)
        for record in written:
            self.replay(record, now_ms)
        return Decision(written, (ticket.respond(response),))


def _updated(known: Snapshot, update: Update) -> Snapshot:
    # Tuples are taken apart and made at once, for this is hot: each name would be a lookup.
    key, state_epoch, leader_epoch, start, created_ms, written_ms, number, _, batches, sender = (
        known
    )
    _, _, new_leader_epoch, new_start, complete_count, changed, new_sender = update
    start = max(new_start, start)
    if batches or changed:
        batches = combine(batches, changed, start)
    return tuple.__new__(
        Snapshot,
        (
            key,
            state_epoch,
            max(leader_epoch, new_leader_epoch),
            start,
            created_ms,
            written_ms,
            number,
            complete_count,
            batches,
            new_sender or sender,
        ),
    )


def _next_snapshot(state: Snapshot, now_ms: int) -> Snapshot:
    return state._replace(snapshot_epoch=state.snapshot_epoch + 1, written_ms=TimestampMs(now_ms))


def _respond(ticket: Ticket[A], value: A) -> ShareDecision:
    return Decision(responses=(ticket.respond(value),))


def _unknown(key: SharePartitionKey) -> UnknownTopicOrPartition:
    return UnknownTopicOrPartition(f"there is no state of {key}")


def _fenced_leader(key: SharePartitionKey, known: int, given: int) -> FencedLeaderEpoch:
    return FencedLeaderEpoch(f"{key} was read by a leader of epoch {known}, not {given}")


def _fenced_state(key: SharePartitionKey, known: int, given: int) -> FencedStateEpoch:
    return FencedStateEpoch(f"{key} is in state epoch {known}, not {given}")
