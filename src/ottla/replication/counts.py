"""Counts of replication since the broker started, for metrics."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from ottla.cluster.image import TopicChange
from ottla.cluster.values import PartitionImage
from ottla.model import BrokerId
from ottla.replication.leadership import changed_partitions

CLEAN: Final = "clean"
ELIGIBLE: Final = "eligible"
UNCLEAN: Final = "unclean"
ELECTIONS: Final = (CLEAN, ELIGIBLE, UNCLEAN)
GROW: Final = "grow"
SHRINK: Final = "shrink"
ISR_CHANGES: Final = (GROW, SHRINK)


class ReplicationCounts:
    """Counts of one broker.

    A change of a partition is counted by the broker that leads it then, so that the sum over all
    brokers is that of the cluster.
    """

    def __init__(self, broker_id: BrokerId) -> None:
        self.elections = Counter[str]()
        self.isr_changes = Counter[str]()
        self.truncated_records = 0
        self.repairs = 0  # replicas cut because they were damaged
        self.fetched_bytes = Counter[BrokerId]()  # by leader
        self._broker_id = broker_id

    def note_image(self, changes: Iterable[TopicChange]) -> None:
        """Count what has changed in the partitions that this broker leads now."""
        for change in changes:
            for _, was, now in changed_partitions(change):
                if now.leader == self._broker_id:
                    self._note_change(was, now)

    def _note_change(self, was: PartitionImage, now: PartitionImage) -> None:
        if now.leader_epoch != was.leader_epoch:
            self.elections[_election(was, now)] += 1
        if set(now.isr) - set(was.isr):
            self.isr_changes[GROW] += 1
        if set(was.isr) - set(now.isr):
            self.isr_changes[SHRINK] += 1


def _election(was: PartitionImage, now: PartitionImage) -> str:
    """The kind of the election that made the leader of `now`."""
    if now.unclean_epoch == now.leader_epoch:
        return UNCLEAN
    return ELIGIBLE if now.leader in was.elr else CLEAN
