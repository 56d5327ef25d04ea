"""Removing the logs of deleted topics and of replicas that have moved to other brokers.

Logs that the store has lost are set aside.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random

from ottla.cluster.image import ClusterImage, TopicImage
from ottla.model import BrokerId, TopicPartition, Uuid, format_uuid
from ottla.replication.waiting import do_work
from ottla.storage.disk_worker import Worker
from ottla.storage.log_dir import LogDir
from ottla.storage.segments import Discarded

log = logging.getLogger("ottla.replication")


class Removal:
    """Removes files of one data directory; the worker waits for the disk."""

    def __init__(self, log_dir: LogDir, worker: Worker, rng: Random) -> None:
        self._log_dir = log_dir
        self._worker = worker
        self._rng = rng
        self._left_behind: set[Uuid] = set()  # deleted topics with logs that could not be removed

    async def remove_topic(self, topic: TopicImage, *, is_deleted: bool) -> None:
        """Forget the logs of a topic at once; then the worker removes their files.

        Without a tombstone the topic was not deleted: the store has lost it, and the logs are
        set aside.
        """
        work = list[Callable[[], None]]()
        for index in range(len(topic.partitions)):
            tp = TopicPartition(topic.name, index)
            if tp not in self._log_dir.logs:
                work.append(partial(self._log_dir.directories.remove_unmade, tp))
                continue
            forgotten = self._log_dir.forget_log(tp, self._rng)
            if is_deleted:
                work.append(partial(self._log_dir.directories.remove, forgotten))
            else:
                reason = f"the store has lost the topic of id {format_uuid(topic.id)}"
                work.append(
                    partial(self._log_dir.directories.set_aside, forgotten.directory, reason)
                )
        await self._work(topic, work)

    async def remove_replicas(self, topic: TopicImage, tps: Sequence[TopicPartition]) -> bool:
        """Remove the logs of partitions that have moved to other brokers; True if there were any.

        The image is newer than any that named this broker: images do not go back, and neither does
        the store since the directory was last used. A log that knows a newer leader shows that it
        has gone back nevertheless, and stays. Directories are renamed first, so that new logs can
        be made if the broker gets replicas of the partitions again.
        """
        work = list[Callable[[], None]]()
        for tp in tps:
            newest, stored = self._log_dir.logs[tp].epochs.latest, topic.partitions[tp.partition]
            if newest > stored.leader_epoch:
                extra = {"tp": tp, "epoch": newest, "stored_epoch": stored.leader_epoch}
                log.error("moved replica kept: its log is newer than the store", extra=extra)
                continue
            log.info("replica removed", extra={"tp": tp, "topic_id": format_uuid(topic.id)})
            forgotten = self._log_dir.forget_log(tp, self._rng)
            work.append(partial(self._log_dir.directories.remove, forgotten))
        await self._work(topic, work)
        return bool(work)

    async def _work(self, topic: TopicImage, steps: Iterable[Callable[[], None]]) -> None:
        for step in steps:
            try:
                await do_work(self._worker, step)
            except OSError as error:  # files that stay behind go at the next start
                self._left_behind.add(topic.id)
                problem = self._log_dir.refusal(error)
                log.error("log deletion failed", extra={"topic": topic.name, "reason": problem})

    def removed_topics(self, image: ClusterImage, broker: BrokerId) -> list[Uuid]:
        """Deleted topics that wait for this broker to say that it has no logs of them."""
        here = self._left_behind.union(self._log_dir.topic_ids.values())
        return [
            tombstone.id
            for tombstone in image.tombstones.values()
            if broker in tombstone.brokers and tombstone.id not in here
        ]

    def discard(self, discarded: Discarded) -> None:
        """Have the worker remove a file: a segment of a gigabyte takes a third of a second."""
        self._worker.run(lambda _: discarded.remove(), self._note_removal)

    def _note_removal(self, outcome: Exception | None) -> None:
        if isinstance(outcome, OSError):
            self._log_dir.take_offline(outcome)
        elif outcome is not None:
            raise outcome
