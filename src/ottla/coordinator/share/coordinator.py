"""The share coordinator: states of share partitions, in partitions of `__share_group_state`.

Leaders of share partitions and group coordinators call it as long as the shard is led by the same
broker; the requests that would carry the calls to another broker are not served yet.
"""

import logging

from ottla.cluster.image import ClusterImage
from ottla.coordinator.runtime.coordinator import Coordinator
from ottla.coordinator.runtime.internal_topics import SHARE_STATE_TOPIC
from ottla.coordinator.runtime.log_entries import Entry, TransactionEnded
from ottla.coordinator.runtime.shard import Shard
from ottla.coordinator.share.records import ShareRecord, from_bytes, to_bytes
from ottla.coordinator.share.share_states import ShareStates
from ottla.errors import ApiError
from ottla.model import Offset
from ottla.queues.share_state import SharePartitionKey

log = logging.getLogger("ottla.coordinator")

ShareShard = Shard[ShareStates, ShareRecord]


class ShareCoordinator(Coordinator[ShareStates, ShareRecord]):
    """States by the keys of share partitions; drops those of deleted topics, prunes the log."""

    topic = SHARE_STATE_TOPIC

    def new_machine(self, index: int) -> ShareStates:
        return ShareStates()

    def encode(self, record: ShareRecord) -> Entry:
        key, value = to_bytes(record)
        return tuple.__new__(Entry, (key, value, None))

    def decode(self, entry: Entry | TransactionEnded) -> ShareRecord | None:
        if isinstance(entry, TransactionEnded) or entry.key is None:
            return None
        return from_bytes(entry.key, entry.value)

    def archiving(self) -> list[SharePartitionKey]:
        """Share partitions with records whose dead letters are not written yet, of all shards."""
        shards = [shard for shard in self._shards.values() if not shard.is_loading]
        return [key for shard in shards for key in shard.machine.archiving]

    # Deleted topics

    def note_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """Follow leadership, and drop states of topics that the new image has not."""
        super().note_image(old, new)
        if not self._is_closed and old.topic_names.keys() - new.topic_names.keys():
            for shard in list(self._shards.values()):
                self.spawn(self.note_loaded(shard))

    async def note_loaded(self, shard: ShareShard) -> None:
        try:
            await shard.run(
                lambda states, ticket, now_ms: states.drop_topics(
                    ticket, lambda topic_id: topic_id not in self._state.image.topic_names, now_ms
                )
            )
        except ApiError as problem:  # a shard that loads drops them itself afterwards
            log.debug(
                "share states of deleted topics kept",
                extra={"tp": shard.log.partition.tp, "reason": problem},
            )

    # Pruning

    async def expire(self) -> None:
        """Delete what lies before the oldest snapshot that counts, in every shard."""
        pruned = [shard for shard in list(self._shards.values()) if await self._prune(shard)]
        if pruned:
            await self._replicas.commit_deletions()

    async def _prune(self, shard: ShareShard) -> bool:
        """Run a round for a shard; True if its log begins later now."""
        partition = shard.log.partition
        if shard.is_loading or not shard.machine.is_prunable:
            return False
        end = partition.log.end_offset
        try:
            below: Offset = await shard.run(
                lambda states, ticket, now_ms: states.begin_round(ticket, end, now_ms)
            )
        except ApiError as problem:
            log.debug("pruning postponed", extra={"tp": partition.tp, "reason": problem})
            return False
        if not shard.log.is_led or below <= partition.log.start_offset:
            return False
        partition.log.advance_start(below)
        log.debug("share states pruned", extra={"tp": partition.tp, "start_offset": below})
        return True
