"""The partitions that this broker follows, from one image of the cluster to the next."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ottla.clock import Clock
from ottla.cluster.image import ClusterImage, TopicChange
from ottla.cluster.values import BrokerImage, PartitionImage
from ottla.config import BrokerConfig
from ottla.model import BrokerId, Endpoint, Offset, TopicPartition, Uuid
from ottla.replication.catch_up import CatchUpBudget
from ottla.replication.counts import ReplicationCounts
from ottla.replication.cutting import BegunCut, Cutting
from ottla.replication.leadership import changed_partitions, removed_topics
from ottla.replication.partition import Flushes
from ottla.replication.peer_deaths import PeerDeaths, Report
from ottla.storage.log import Log

if TYPE_CHECKING:  # a broker without peers does not need what a client needs
    from ottla.replication.fetcher import ReplicaFetcher
    from ottla.replication.follower import FollowerPartition

log = logging.getLogger("ottla.replication")


class Following:
    """Owner of the followed partitions and of a fetcher for each of their leaders."""

    def __init__(
        self,
        broker_id: BrokerId,
        clock: Clock,
        rng: random.Random,
        *,
        config: Callable[[], BrokerConfig],
        flusher: Flushes,
        watch: Callable[["asyncio.Task[None]"], None],
        report_dead: Report,
        want_repair: Callable[[], None],
        cutting: Cutting,
    ) -> None:
        """`watch` is given every task: if one ends by itself, the broker is defective.

        `report_dead` is called for peers that are gone.
        `want_repair` is called when a replica is held because of damage.
        """
        self.partitions: dict[TopicPartition, FollowerPartition] = {}
        self.defects: dict[TopicPartition, str] = {}  # replicas that were taken out, and why
        self.held: dict[TopicPartition, None] = {}  # replicas with damage, which must not follow
        self.counts = ReplicationCounts(broker_id)
        self._catch_up = CatchUpBudget()
        self._broker_id = broker_id
        self._flusher = flusher
        self._watch = watch
        self._want_repair = want_repair
        self.cutting = cutting
        self._image = ClusterImage()
        self._fetchers: dict[BrokerId, ReplicaFetcher] = {}
        self._rounds: list[tuple[dict[FollowerPartition, Offset], asyncio.Future[None]]] = []
        self._clock = clock
        self.deaths = PeerDeaths(broker_id, clock, report_dead)
        self._rng = rng
        self._config = config

    async def close(self) -> None:
        for tp in list(self.partitions):
            self.drop(tp)
        tasks = [fetcher.task for fetcher in self._fetchers.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._fetchers.clear()

    # Following the image

    def note_image(self, image: ClusterImage, changes: Iterable[TopicChange]) -> None:
        """Stop what the image no longer says, at once: a successor no longer fetches.

        `changes` is how its topics differ from those of the image before.
        """
        self.counts.note_image(changes)
        self._image = image
        self.deaths.note_image(image)
        for topic in removed_topics(changes):
            for index in range(len(topic.partitions)):
                self.drop(TopicPartition(topic.name, index))
        for change in changes:
            for tp, _, partition in changed_partitions(change):
                self._note_partition(tp, partition)

    def _note_partition(self, tp: TopicPartition, partition: PartitionImage) -> None:
        if (followed := self.partitions.get(tp)) is None:
            return
        if (
            partition.leader != followed.leader
            or partition.leader_epoch != followed.leader_epoch
            or self._broker_id not in partition.replicas
        ):
            self.drop(tp)
        else:
            followed.note_in_sync(self._broker_id in partition.isr)

    def follow(
        self,
        tp: TopicPartition,
        topic_id: Uuid,
        partition: PartitionImage,
        replica: Log,
    ) -> None:
        """Begin to follow a partition that another broker leads, if that is not done yet."""
        assert partition.leader is not None, f"{tp} has no leader to follow"
        assert partition.leader != self._broker_id, f"{tp} is led here"
        assert not replica.truncation.is_under_way, f"{tp} is being cut"
        if tp in self.partitions or tp in self.defects or tp in self.held:
            return
        from ottla.replication.follower import FollowerPartition  # noqa: PLC0415

        followed = self.partitions[tp] = FollowerPartition(
            tp,
            topic_id,
            replica,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            unclean_epoch=partition.unclean_epoch,
            is_in_sync=self._broker_id in partition.isr,
        )
        if partition.leader not in self._fetchers:
            self._fetchers[partition.leader] = self._start_fetcher(partition.leader)
        self._fetchers[partition.leader].add(followed)

    def _start_fetcher(self, leader: BrokerId) -> "ReplicaFetcher":
        from ottla.replication.fetcher import FetcherEnvironment, ReplicaFetcher  # noqa: PLC0415

        environment = FetcherEnvironment(
            clock=self._clock,
            rng=self._rng,
            config=self._config,
            registration=self._registration,
            endpoint_of=self._endpoint_of,
            make_durable=self._make_durable,
            cut=self._cut,
            note_defect=self._note_defect,
            deaths=self.deaths,
            counts=self.counts,
            catch_up=self._catch_up,
        )
        fetcher = ReplicaFetcher(leader, environment)
        self._watch(fetcher.task)
        return fetcher

    def drop(self, tp: TopicPartition) -> "FollowerPartition | None":
        """Stop following a partition."""
        followed = self.partitions.pop(tp, None)
        if followed is not None:
            followed.log.noted_watermark = followed.high_watermark
            fetcher = self._fetchers[followed.leader]
            fetcher.remove(followed)
            if fetcher.is_idle:
                fetcher.task.cancel()
                del self._fetchers[followed.leader]
            self._end_rounds(followed, None)
            followed.wake_readers()
        return followed

    def find(self, topic: str, index: int) -> "FollowerPartition | None":
        return self.partitions.get(TopicPartition(topic, index))

    def forget(self, tp: TopicPartition) -> None:
        """The topic was deleted."""
        self.drop(tp)
        self.defects.pop(tp, None)
        self.held.pop(tp, None)

    def hold(self, tp: TopicPartition) -> None:
        """Do not follow a partition until it is released: its log is damaged."""
        self.held[tp] = None
        self.drop(tp)
        self._want_repair()

    def release(self, tp: TopicPartition, replica: Log | None) -> None:
        """Follow a partition again whose log, if it is still there, was damaged."""
        del self.held[tp]
        topic = self._image.topics.get(tp.topic)
        if topic is None or replica is None or self._registration() is None:
            return
        partition = topic.partitions[tp.partition]
        if partition.leader is not None and partition.leader != self._broker_id:
            self.follow(tp, topic.id, partition, replica)

    def _registration(self) -> BrokerImage | None:
        return self._image.brokers.get(self._broker_id)

    def _endpoint_of(self, broker: BrokerId) -> Endpoint | None:
        leader = self._image.brokers.get(broker)
        return None if leader is None else leader.endpoint

    # The disk

    def _make_durable(self, grown: "Iterable[FollowerPartition]") -> "asyncio.Future[None]":
        """Bring logs to disk; done at once for those that promise their page cache only."""
        waited: dict[FollowerPartition, Offset] = {}
        for followed in grown:
            replica = followed.log
            if followed.promised_end < replica.end_offset:
                self._flusher.request(replica)
            if followed.promised_end < replica.end_offset:  # a flusher may be done at once
                waited[followed] = replica.end_offset
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if waited:
            self._rounds.append((waited, done))
        else:
            done.set_result(None)
        return done

    def _cut(self, begun: Sequence[BegunCut]) -> None:
        """Cut logs; what was written to them is not waited for any more."""
        for one in begun:
            if (followed := self.partitions.get(one.log.tp)) is not None:
                self._end_rounds(followed, None)
        self.cutting.run(begun)

    def note_durable(self, tp: TopicPartition) -> None:
        followed = self.partitions.get(tp)
        if followed is not None and self._rounds:
            self._end_rounds(followed, followed.log.durable_offset)

    def _end_rounds(self, followed: "FollowerPartition", durable: Offset | None) -> None:
        """Nothing more of this partition has to be waited for, up to what is durable."""
        for waited, done in list(self._rounds):
            if followed in waited and (durable is None or waited[followed] <= durable):
                del waited[followed]
            if not waited:
                self._rounds.remove((waited, done))
                if not done.done():
                    done.set_result(None)

    def note_offline(self) -> None:
        """The disk has failed: nothing can be followed."""
        for tp in list(self.partitions):
            self.drop(tp)

    # Defects

    def _note_defect(self, followed: "FollowerPartition", defect: Exception) -> None:
        """Take out a replica that cannot be what it should be; its files stay as they are."""
        log.error("replica taken out", extra={"tp": followed.tp, "reason": defect})
        self.drop(followed.tp)
        self.defects[followed.tp] = str(defect)
