"""The partitions of this broker: made, changed and given up as the cluster's image says."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.clock import Clock
from ottla.cluster.image import ClusterImage, TopicImage, topic_changes
from ottla.cluster.store import Revision
from ottla.cluster.values import PartitionImage
from ottla.config import TopicConfig
from ottla.errors import (
    ApiError,
    NotLeader,
    StorageFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.model import BrokerId, Offset, TopicPartition, Uuid
from ottla.protocol.hot_fields import TopicKey
from ottla.replication.chores import Chores
from ottla.replication.epoch_reads import EpochReads
from ottla.replication.following import Following
from ottla.replication.leadership import (
    ChangedPartitions,
    changed_topics,
    kept_partitions,
    lost_partitions,
    removed_topics,
    restarted_brokers,
)
from ottla.replication.log_maker import LogMaker
from ottla.replication.partition import Flushes, LeaderPartition
from ottla.replication.removal import Removal
from ottla.replication.store_memory import StoreMemory
from ottla.replication.strays import expected_id, judge, missing_logs
from ottla.replication.unfinished import UnfinishedTopics
from ottla.replication.waiting import wait_called
from ottla.replication.writable import WritablePartitions
from ottla.storage.cleaner import Cleaner
from ottla.storage.delete_records import Deletions
from ottla.storage.disk_worker import Worker
from ottla.storage.files import DiskSpace
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.scrub import Scrubber

if TYPE_CHECKING:
    from ottla.replication.waiting_records import WaitingRecords

log = logging.getLogger("ottla.replication")

_PROGRESS_S: Final = 1.0
_LOGS_PER_STEP: Final = 64  # of a checkpoint, before the loop does what others wait for


class Replicas:
    """Owner of every partition here. Follows the image, and takes no commands.

    `leaders`, `writable` and `topic_names` are read on the hot path and changed only in here.
    """

    def __init__(
        self,
        log_dir: LogDir,
        topic_config: Callable[[Mapping[str, str]], TopicConfig],
        clock: Clock,
        rng: random.Random,
        *,
        broker_id: BrokerId,
        flusher: Flushes,
        cleaner: Cleaner,
        worker: Worker,
        deletions: Deletions,
        scrubber: Scrubber,
        following: Following,
        want_isr_change: Callable[[], None],
        soon: Callable[[Callable[[], None]], object],
        remember: Callable[[Revision], None],
    ) -> None:
        self.following = following
        self.leaders: dict[tuple[str, int], LeaderPartition] = {}
        self.topic_names: dict[bytes, str] = {}
        self.make_waiting: Callable[[LeaderPartition], WaitingRecords] | None = None  # as led
        self.writable = WritablePartitions(self.leaders, self.topic_names, self.absence)
        self._log_dir = log_dir
        self._topic_config = topic_config
        self._clock = clock
        self._broker_id = broker_id
        self._flusher = flusher
        self._maker = LogMaker(log_dir, worker, clock, following.cutting)
        self._removal = Removal(log_dir, worker, rng)
        self.discard = self._removal.discard
        self.note_epochs_wrong = EpochReads(log_dir, worker).begin
        self._deletions = deletions
        self._soon = soon
        self._want_isr_change = want_isr_change
        self.remember_store = StoreMemory(log_dir, worker, remember).note
        self.chores = Chores(
            log_dir,
            clock,
            committed_end=self.committed_end,
            flusher=flusher,
            cleaner=cleaner,
            scrubber=scrubber,
            checkpoints=following.cutting.checkpoints,
            soon=soon,
        )
        self._image = ClusterImage()
        self._applied = ClusterImage()
        self._behind_since_s: float | None = None  # since when there is an image to apply
        self._news = asyncio.Event()
        self._applied_waiters: list[tuple[Revision, asyncio.Future[None]]] = []
        self._unfinished = UnfinishedTopics()
        self._unserved: dict[str, None] = {}  # topics with partitions that could not be led yet
        self._follower: asyncio.Task[None] | None = None

    def open(self, image: ClusterImage, *, is_checked: bool = True) -> "asyncio.Task[None]":
        """Open every log that the image knows, and begin to follow it.

        `is_checked` says whether every `partition.metadata` here must have a checksum. Returns
        the task that follows: if it ends, partitions no longer are what the image says.
        """
        no_config = self._topic_config({})
        configs = {
            name: self._topic_config(topic.config) if topic.config else no_config
            for name, topic in image.topics.items()
        }
        self._log_dir.open_logs(
            lambda tp: configs.get(tp.topic, no_config),
            self._clock.now_ms(),
            _report_progress(self._clock.monotonic_s),
            judge=partial(judge, image, self._broker_id),
            expected=partial(expected_id, image, self._broker_id),
            is_checked=is_checked,
            listener=self,
        )
        if not self._log_dir.has_recovery_points:
            _report_missing(missing_logs(image, self._broker_id, self._log_dir.logs))
        self._follower = asyncio.get_running_loop().create_task(
            self._follow(), name="ottla-replicas"
        )
        return self._follower

    async def close(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait([self._follower])
        await self.following.close()
        for partition in self.leaders.values():
            partition.give_up(NotLeader("the broker is stopping"))

    # Finding

    def find(self, tp: TopicPartition) -> LeaderPartition:
        """The partition, if this broker leads it."""
        if tp not in self.leaders:
            raise self.absence(tp.topic, tp.partition)
        return self.leaders[tp]

    def locate(self, key: TopicKey, index: int) -> LeaderPartition:
        """The partition, for clients that send the topic's name or, in newer versions, its id."""
        if isinstance(key, bytes):
            name = self.topic_names.get(key)
            if name is None:
                raise UnknownTopicId("no topic has this id")
            key = name
        partition = self.leaders.get((key, index))
        if partition is None:
            raise self.absence(key, index)
        return partition

    def absence(self, topic: str, index: int) -> ApiError:
        """The error to raise for a partition that is not here."""
        tp = TopicPartition(topic, index)
        if self._image.partition(tp) is None:
            return UnknownTopicOrPartition(f"there is no partition {tp}")
        if self.is_offline:
            return StorageFailed(f"{tp} is on a data directory that has failed")
        return NotLeader(f"this broker does not lead {tp}")

    def is_ready(self, tp: TopicPartition, partition: PartitionImage) -> bool:
        """True when clients will find the leader working, as far as this broker knows."""
        if partition.leader is None:
            return False
        return partition.leader != self._broker_id or tp in self.leaders

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        """Every log that is here, led or not."""
        return self._log_dir.logs

    # Following the image

    def note_image(self, image: ClusterImage) -> None:
        """The cluster has changed: give up what this broker leads no more, follow the rest soon."""
        assert image.revision >= self._image.revision, "images only get newer"
        before, self._image = self._image, image
        changes = topic_changes(before.topics, image.topics, image.touched)
        for gone in removed_topics(changes):
            self.topic_names.pop(gone.id, None)
        for tp, error in lost_partitions(changes, self._broker_id):
            self._give_up(tp, error)
        self.writable.note_image(changes)
        self.following.note_image(image, changes)
        now_s = self._clock.monotonic_s()
        for tp, partition in kept_partitions(changes, self._broker_id):
            if tp in self.leaders:
                self.leaders[tp].note_image(partition, now_s)
        for broker in restarted_brokers(before, image):
            for leader in self.leaders.values():
                leader.forget_follower(broker)
        if self._behind_since_s is None:
            self._behind_since_s = now_s
        self._news.set()

    @property
    def behind_s(self) -> float:
        """Seconds since when a newer image waits and none was applied; 0 when none waits."""
        if self._behind_since_s is None:
            return 0.0
        return self._clock.monotonic_s() - self._behind_since_s

    def note_settings(self) -> None:
        """The broker's settings have changed, and with them the defaults of every topic."""
        topics = self._image.topics
        for (topic, _), partition in self.leaders.items():
            partition.configure(self._topic_config(topics[topic].config))
        for tp, followed in self.following.partitions.items():
            followed.log.config = self._topic_config(topics[tp.topic].config)

    async def wait_applied(self, revision: Revision) -> None:
        """Returns when the partitions are as the image of this revision says."""
        if self._applied.revision >= revision:
            return
        applied = asyncio.get_running_loop().create_future()
        self._applied_waiters.append((revision, applied))
        await applied

    async def _follow(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            image = self._image
            await self._apply(image)
            if image.topics is not self._applied.topics:
                await self.remember_store(image.revision)
            self._applied = image
            is_newest = image is self._image
            self._behind_since_s = None if is_newest else self._clock.monotonic_s()
            due = [
                future for revision, future in self._applied_waiters if revision <= image.revision
            ]
            self._applied_waiters = [w for w in self._applied_waiters if w[0] > image.revision]
            for future in due:
                if not future.done():
                    future.set_result(None)

    async def _apply(self, image: ClusterImage) -> None:
        changes = topic_changes(self._applied.topics, image.topics, image.touched)
        for gone in removed_topics(changes):
            await self._drop_topic(gone, is_deleted=gone.id in image.tombstones)
        # Until the image shows that this broker is ready, it leads and follows nothing: an older
        # registration of its id may have led the same partitions, in the epochs of the image.
        may_serve = self._broker_id in image.brokers
        is_new = may_serve and self._broker_id not in self._applied.brokers
        again, self._unserved = {**self._unfinished, **self._unserved}, {}
        changed = changed_topics(changes, image.topics, image.topics if is_new else again)
        if may_serve:
            await self._prepare(changed)
        for topic, partitions in changed:
            await self._apply_topic(topic, partitions, may_serve=may_serve)
        self._maker.forget_prepared()

    async def _prepare(self, changed: Iterable[tuple[TopicImage, ChangedPartitions]]) -> None:
        """Prepare the logs that are missing together."""
        logs = self._log_dir.logs
        await self._maker.prepare(
            [
                (tp, topic.id)
                for topic, partitions in changed
                for tp, partition in partitions
                if tp not in logs and self._broker_id in partition.replicas
            ]
        )

    async def _apply_topic(
        self, topic: TopicImage, changed: ChangedPartitions, *, may_serve: bool
    ) -> None:
        self.topic_names[topic.id] = topic.name
        config = self._topic_config(topic.config)
        problem: StorageFailed | None = None
        dropped: list[TopicPartition] = []
        for tp, partition in changed:
            if tp in self.leaders:
                self.leaders[tp].configure(config)
            elif self._broker_id not in partition.replicas:
                if tp in self._log_dir.logs and may_serve:
                    dropped.append(tp)
            elif may_serve and problem is None and not self.is_offline:
                problem = await self._serve(topic, tp, config)
        self._unfinished.note(topic.name, problem)
        if dropped and not self.is_offline:
            await self._drop_replicas(topic, dropped)

    async def _serve(
        self, topic: TopicImage, tp: TopicPartition, config: TopicConfig
    ) -> StorageFailed | None:
        """Lead or follow a partition; why not, if its log cannot be made."""
        try:
            opened = self._log_dir.logs.get(tp)
            if opened is None or opened.truncation.is_under_way:
                opened = await self._maker.provide(tp, topic.id, config)
                config = self._topic_config(topic.config)  # it may have changed meanwhile
            opened.config = config
        except StorageFailed as problem:
            return problem
        now = self._image.topics.get(tp.topic)  # the newest: leaders change faster than disks work
        if now is None or now.id != topic.id:
            return None
        partition = now.partitions[tp.partition]
        if self._broker_id not in partition.replicas:
            return None  # it has just been moved: its log goes with the next image
        if partition.leader == self._broker_id:
            if self._broker_id in self._image.brokers:
                self._lead(tp, partition, opened)
            else:
                self._unserved[topic.name] = None  # until it is registered again
        elif partition.leader is not None:
            self.following.follow(tp, topic.id, partition, opened)
        return None

    def _lead(self, tp: TopicPartition, partition: PartitionImage, opened: Log) -> None:
        leader = self.leaders[tp] = LeaderPartition(
            tp,
            opened,
            partition,
            broker_id=self._broker_id,
            flusher=self._flusher,
            soon=self._soon,
            want_isr_change=self._want_isr_change,
            now_s=self._clock.monotonic_s(),
            make_waiting=self.make_waiting,
        )
        self.writable.add(leader, self._image.topics[tp.topic])

    async def checkpoint_watermarks(self) -> None:
        """Keep the high watermarks on disk: a new leader begins with the one that it knows."""
        for partition in self.leaders.values():
            partition.note_watermark()
        for followed in self.following.partitions.values():
            followed.log.noted_watermark = followed.high_watermark
        await self.chores.checkpoint_watermarks()

    def committed_end(self, tp: TopicPartition) -> Offset:
        """The high watermark of a partition, as far as this broker knows it."""
        served = self.leaders.get(tp) or self.following.partitions.get(tp)
        if served is not None:
            return served.high_watermark
        return self._log_dir.logs[tp].noted_watermark

    async def _drop_topic(self, topic: TopicImage, *, is_deleted: bool) -> None:
        self.topic_names.pop(topic.id, None)
        self._unfinished.pop(topic.name, None)
        for index in range(len(topic.partitions)):
            tp = TopicPartition(topic.name, index)
            self._give_up(tp, UnknownTopicOrPartition(f"{tp} has been deleted"))
            self.following.forget(tp)
        await self._removal.remove_topic(topic, is_deleted=is_deleted)

    async def _drop_replicas(self, topic: TopicImage, tps: Sequence[TopicPartition]) -> None:
        for tp in tps:
            self.following.drop(tp)
            self.following.defects.pop(tp, None)
        if await self._removal.remove_replicas(topic, tps):
            # A new log of the name must not be trusted up to where the old one was on disk.
            await self.chores.checkpoint()
            await self.chores.checkpoint_watermarks()

    def _give_up(self, tp: TopicPartition, error: ApiError) -> None:
        partition = self.leaders.pop(tp, None)
        self.writable.remove(tp)
        if partition is not None:
            partition.give_up(error)

    # The store

    def removed_topics(self) -> list[Uuid]:
        """Deleted topics that wait for this broker to say that it has no logs of them."""
        if self.is_offline or not self._applied.tombstones:
            return []
        return self._removal.removed_topics(self._applied, self._broker_id)

    # The disk

    @property
    def stray_count(self) -> int:
        """Directories of logs that were set aside because the store does not know them."""
        return self._log_dir.directories.stray_count

    @property
    def is_offline(self) -> bool:
        return self._log_dir.offline_reason is not None

    @property
    def directory(self) -> str:
        return str(self._log_dir.path)

    def disk_space(self) -> DiskSpace:
        """The file system that the data is on."""
        return self._log_dir.disk_space()

    def note_durable(self, tp: TopicPartition) -> None:
        if tp in self.leaders:
            self.leaders[tp].note_progress()
        else:
            self.following.note_durable(tp)

    def note_crowded(self, tp: TopicPartition) -> None:
        if tp in self.leaders:
            self.leaders[tp].request_flush()

    def note_start(self, tp: TopicPartition) -> None:
        if tp in self.leaders:
            self.leaders[tp].watchers.note_committed()

    def note_damaged(self, tp: TopicPartition) -> None:
        self.following.hold(tp)

    def note_offline(self, reason: str) -> None:
        for topic, index in list(self.leaders):
            self._give_up(TopicPartition(topic, index), StorageFailed(reason))
        self.following.note_offline()

    async def commit_deletions(self) -> None:
        """Return once nothing can bring back the records that were deleted until now."""
        await wait_called(self._deletions.commit)

    def failure_of(self, topic: str) -> StorageFailed | None:
        """The reason why logs of a topic are missing on this broker; None if they are not."""
        if topic in self._unfinished:
            return self._unfinished[topic]
        found = self._image.topics.get(topic)
        is_ours = found is not None and any(
            partition.leader == self._broker_id for partition in found.partitions
        )
        if is_ours and self._log_dir.offline_reason is not None:
            return StorageFailed(self._log_dir.offline_reason)
        return None

    def retry_unfinished(self) -> None:
        """Make the logs that could not be made: there may be room on the disk again."""
        if self._unfinished:
            self._news.set()


def _report_progress(monotonic_s: Callable[[], float]) -> Callable[[int, int], None]:
    """A line in the broker's log, at most once a second, while opening takes longer than that."""
    due_s = monotonic_s() + _PROGRESS_S

    def report(done: int, total: int) -> None:
        nonlocal due_s
        now_s = monotonic_s()
        if now_s >= due_s:
            due_s = now_s + _PROGRESS_S
            log.info("logs being opened", extra={"done": done, "total": total})

    return report


def _report_missing(tps: Iterable[TopicPartition]) -> None:
    """Name the logs that are not here, when no checkpoint says which of them had records."""
    for tp in tps:
        log.error(
            "log missing, and with it the checkpoint of its end",
            extra={
                "tp": str(tp),
                "help": "it begins at offset 0: bring its directory back if you can",
            },
        )
