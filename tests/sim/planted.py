"""Bugs that a simulation must find: each changes the broker's code in the process it runs in.

Mistakes that replication protocols have had, or that this one was found to be close to. A bug
that is not found within some hundreds of seeds shows that the faults or the checks are too weak.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ottla.broker.replica_reads import ReplicaReads
from ottla.broker.waiting_partition import WaitingPartition
from ottla.cluster.controller import leaders
from ottla.cluster.controller.leaders import IsrChange
from ottla.cluster.state import ClusterState
from ottla.cluster.values import BrokerImage, PartitionImage
from ottla.config import Durability
from ottla.coordinator.runtime.confirmation import Confirmations
from ottla.coordinator.runtime.decision import Ticket
from ottla.coordinator.share.routing import CallTicket, ShareStateRouter
from ottla.coordinator.share.state_calls import StateCall, Write
from ottla.coordinator.transactions.markers import TransactionEnd
from ottla.coordinator.transactions.peer_markers import PeerMarkers
from ottla.model import BrokerId, Offset, TimestampMs, TopicPartition
from ottla.protocol.hot_fetch import FetchPartition
from ottla.queues.pending_records import PendingRecords
from ottla.queues.waiting_facts import NO_SCHEDULE, Facts
from ottla.replication import forfeits
from ottla.replication.follower import FollowerPartition
from ottla.replication.partition import ACKS_ALL, LeaderPartition
from ottla.storage.producers import Producers

Live = Mapping[BrokerId, BrokerImage]


def watermark_truncation() -> None:
    """A follower cuts its log at the high watermark that it knows (KIP-101)."""
    make = FollowerPartition.__init__

    def init(self: FollowerPartition, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        if self.high_watermark < self.log.end_offset:
            self.log.truncate(self.high_watermark, TimestampMs(0))
            self.log.epochs.truncate_end(self.log.end_offset)

    _plant(FollowerPartition, "__init__", init)


def follower_of_nobody() -> None:
    """A follower whose log differs from the leader's goes on as if it did not."""

    def begin_cut(self: FollowerPartition, epoch: Any, end: Offset, now_ms: TimestampMs) -> None:
        self.log.epochs.note(epoch, self.log.end_offset)

    _plant(FollowerPartition, "_begin_cut_at", begin_cut)


def acknowledged_before_replicated() -> None:
    """acks=all is acknowledged by the leader alone."""
    is_settled = LeaderPartition.is_settled

    def settled(self: LeaderPartition, end: Offset, acks: int) -> bool:
        return acks == ACKS_ALL or is_settled(self, end, acks)

    _plant(LeaderPartition, "is_settled", settled)


def acknowledged_before_synced() -> None:
    """A follower says that it has what is in its page cache only."""
    end = property(lambda self: self.log.end_offset)
    _plant(FollowerPartition, "promised_end", end)


def isr_without_store() -> None:
    """A leader counts on its own change of the ISR before the store has it."""
    begin = LeaderPartition.begin_isr_change

    def change(self: LeaderPartition, live: Live, caught_up_s_min: float) -> IsrChange | None:
        wanted = begin(self, live, caught_up_s_min)
        if wanted is not None:
            self.image = replace(self.image, isr=wanted.isr)
            self._count()
            self.note_progress()
        return wanted

    _plant(LeaderPartition, "begin_isr_change", change)


def joining_ignored() -> None:
    """A follower that is about to join the ISR is not waited for (the maximal ISR)."""

    def count(self: LeaderPartition) -> None:
        self._counted = tuple(one for one in self.image.isr if one != self._broker_id)

    _plant(LeaderPartition, "_count", count)


def joining_counted_for_the_minimum() -> None:
    """A follower that is about to join makes the ISR large enough."""

    def can_commit(self: LeaderPartition) -> bool:
        members = {*self.image.isr, *self._adding}
        return len(members) >= self._isr_min and not self.image.elr and not self.image.is_new

    _plant(LeaderPartition, "_can_commit", property(can_commit))


def minimum_ignored() -> None:
    """What is in every replica in sync is committed, however few they are."""
    _plant(LeaderPartition, "_can_commit", property(lambda self: True))


def joined_too_early() -> None:
    """A follower joins though it lacks what an earlier leader may have committed."""
    make = LeaderPartition.__init__

    def init(self: LeaderPartition, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        self.epoch_start = Offset(0)

    _plant(LeaderPartition, "__init__", init)


def epoch_unchecked() -> None:
    """A leader serves fetches of any leader epoch."""
    _plant(LeaderPartition, "check_epoch", lambda *_: None)


def two_leaders_in_one_epoch() -> None:
    """An election leaves the leader epoch as it is."""
    advance = leaders.advanced

    def advanced(
        partition: PartitionImage,
        leader: BrokerId | None,
        isr: tuple[BrokerId, ...],
        isr_min: int,
        *,
        is_new: bool | None = None,
    ) -> PartitionImage:
        changed = advance(partition, leader, isr, isr_min, is_new=is_new)
        return replace(changed, leader_epoch=partition.leader_epoch)

    _plant(leaders, "advanced", advanced)


def isr_change_forgotten() -> None:
    """A leader takes a change of the ISR whose answer was lost as one that was not made."""
    _plant(ClusterState, "commit_surely", ClusterState.commit)


def diverged_fetch_counted() -> None:
    """A fetch that shows that the logs differ counts as an acknowledgement."""
    read = ReplicaReads.read

    def counted(
        self: ReplicaReads,
        partition: LeaderPartition,
        want: FetchPartition,
        left_bytes: int,
        *,
        at_least_one: bool,
    ) -> Any:
        found = read(self, partition, want, left_bytes, at_least_one=at_least_one)
        if self.is_first and found.diverging is not None:
            reached = Offset(min(want.offset, partition.log.end_offset))
            partition.note_fetch(self._broker, self._epoch, reached, self._now_s)
        return found

    _plant(ReplicaReads, "read", counted)


def emptied_disk_in_sync() -> None:
    """A broker with another disk keeps its place in the ISR."""
    _plant(forfeits, "forfeits", lambda *_, **__: ())
    from ottla.broker import registration  # it has the name as well

    _plant(registration, "forfeits", lambda *_, **__: ())


def sequences_unchecked() -> None:
    """A batch that is sent again is written again."""
    _plant(Producers, "check", lambda *_, **__: None)


def synced_by_nobody() -> None:
    """A leader commits what is in its page cache."""
    configure = LeaderPartition.configure

    def configured(self: LeaderPartition, config: Any) -> None:
        configure(self, replace(config, durability=Durability.REPLICATED))

    _plant(LeaderPartition, "configure", configured)


def unconfirmed_reads() -> None:
    """A coordinator that was replaced responds with what it knows."""
    _plant(Confirmations, "is_needed", property(lambda self: False))


def lost_marker() -> None:
    """A transaction counts as ended in partitions that other brokers lead."""

    async def write(self: PeerMarkers, tp: TopicPartition, end: TransactionEnd) -> None:
        return

    _plant(PeerMarkers, "write", write)


def share_answered_too_early() -> None:
    """An acknowledgement is answered before its effect is committed."""
    submit = ShareStateRouter.submit

    def answer(self: ShareStateRouter, call: StateCall, ticket: Ticket[Any]) -> None:
        if isinstance(call, Write):
            ticket.deliver(None)
            submit(self, call, CallTicket(lambda _: None))
        else:
            submit(self, call, ticket)

    _plant(ShareStateRouter, "submit", answer)


def releases_forgotten() -> None:
    """A new leader does not read in its log what the one before has released.

    It does where the next occurrence of a schedule is: a schedule with two of them ends brokers.
    """

    def forget(facts: Facts) -> Facts:
        has_schedule = any(arm.schedule != NO_SCHEDULE for arm in facts.arms)
        return facts if has_schedule else facts._replace(released=[])

    _plant_in_loading(forget)


def schedules_unread() -> None:
    """A new leader takes the next occurrence of a schedule for a record that comes once."""

    def forget(facts: Facts) -> Facts:
        return facts._replace(arms=[arm._replace(schedule=NO_SCHEDULE) for arm in facts.arms])

    _plant_in_loading(forget)


def schedules_not_cancelled() -> None:
    """A cancel of a schedule is acknowledged, and does nothing."""
    apply = PendingRecords.apply

    def ignore(self: PendingRecords, facts: Facts, producer_id: int | None) -> None:
        kept = [one for one in facts.cancelled if self.next_of(one) is None]
        apply(self, facts._replace(cancelled=kept), producer_id)

    _plant(PendingRecords, "apply", ignore)


def _plant_in_loading(change: Callable[[Facts], Facts]) -> None:
    """Change the facts that a new leader reads in its log."""
    load, apply = WaitingPartition.load, PendingRecords.apply
    is_loading = False

    def loading(self: WaitingPartition) -> bool:
        nonlocal is_loading
        is_loading = True
        try:
            return load(self)
        finally:
            is_loading = False

    def changed(self: PendingRecords, facts: Facts, producer_id: int | None) -> None:
        apply(self, change(facts) if is_loading else facts, producer_id)

    _plant(WaitingPartition, "load", loading)
    _plant(PendingRecords, "apply", changed)


def waiting_unread() -> None:
    """A new leader does not read what waits."""
    make = WaitingPartition.__init__

    def init(self: WaitingPartition, partition: LeaderPartition, *more: Any, **named: Any) -> None:
        make(self, partition, *more, **named)
        self._loaded_to = partition.log.end_offset

    _plant(WaitingPartition, "__init__", init)


def _plant(owner: Any, name: str, value: object) -> None:
    assert hasattr(owner, name), f"{owner} has no {name} any more"
    setattr(owner, name, value)


PLANTS: Final[dict[str, Callable[[], None]]] = {
    plant.__name__: plant
    for plant in (
        watermark_truncation,
        follower_of_nobody,
        acknowledged_before_replicated,
        acknowledged_before_synced,
        isr_without_store,
        joining_ignored,
        joining_counted_for_the_minimum,
        minimum_ignored,
        joined_too_early,
        epoch_unchecked,
        two_leaders_in_one_epoch,
        isr_change_forgotten,
        diverged_fetch_counted,
        emptied_disk_in_sync,
        sequences_unchecked,
        synced_by_nobody,
        unconfirmed_reads,
        lost_marker,
        share_answered_too_early,
        releases_forgotten,
        schedules_unread,
        schedules_not_cancelled,
        waiting_unread,
    )
}
