"""Fetching from a leader, over a real socket: which partitions a request names, and when."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from fakes import build
from fakes.answering_broker import AnsweringBroker
from fakes.cluster_images import broker
from fakes.loopback import until
from fakes.memory_files import MemoryFiles
from ottla.clock import SystemClock
from ottla.cluster.store import Revision
from ottla.config import BrokerConfig, Durability, TopicConfig
from ottla.errors import ErrorCode
from ottla.model import BrokerId, LeaderEpoch, TopicPartition, Uuid
from ottla.protocol.api import ApiKey
from ottla.protocol.hot_fetch import NO_WATERMARK
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from ottla.replication.catch_up import CatchUpBudget
from ottla.replication.counts import ReplicationCounts
from ottla.replication.cutting import BegunCut
from ottla.replication.fetcher import FetcherEnvironment, ReplicaFetcher
from ottla.replication.follower import FollowerPartition
from ottla.replication.peer_deaths import PeerDeaths

HERE, LEADER = BrokerId(1), BrokerId(2)
TOPIC_ID = Uuid(bytes(range(16)))
CONFIG = TopicConfig(durability=Durability.REPLICATED)
EPOCH = LeaderEpoch(3)
SESSION = 5
COUNT = 40  # partitions that are followed


class Leader:
    """Responds at once, with what the test has put into `parts`; each part is sent once."""

    def __init__(self) -> None:
        self.parts: list[FetchPartitionResponse] = []
        self.session_id = SESSION
        self.error = ErrorCode.NONE
        self.requests: list[FetchRequest] = []
        self.broker = AnsweringBroker({ApiKey.FETCH: self._respond})

    def _respond(self, request: FetchRequest) -> FetchResponse:
        self.requests.append(request)
        parts, self.parts = self.parts, []
        error, self.error = self.error, ErrorCode.NONE
        topics = [FetchTopicResponse(topic_id=TOPIC_ID, partitions=parts)] if parts else []
        return FetchResponse(session_id=self.session_id, error_code=error, responses=topics)

    def named(self, at: int) -> list[int]:
        """The partitions that a request names."""
        return [one.partition for topic in self.requests[at].topics for one in topic.partitions]

    def changes(self) -> list[tuple[list[int], list[int]]]:
        """The partitions named and forgotten by requests behind the first, but empty ones."""
        changes = [(self.named(at), self.forgotten(at)) for at in range(1, len(self.requests))]
        return [change for change in changes if change != ([], [])]

    def wants(self, index: int) -> list[FetchPartition]:
        """Every fetch of a partition that a request named."""
        return [
            one
            for request in self.requests
            for topic in request.topics
            for one in topic.partitions
            if one.partition == index
        ]

    def forgotten(self, at: int) -> list[int]:
        topics = self.requests[at].forgotten_topics_data
        return sorted(index for topic in topics for index in topic.partitions)


class Followed:
    """A fetcher with many partitions, all in sync, and the leader that it fetches from."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.config = BrokerConfig(replica_fetch_wait_max_ms=100)
        self.counts = ReplicationCounts(HERE)
        self.synced: list[FollowerPartition] = []  # that were brought to disk
        self.cuts: list[BegunCut] = []  # that were begun, and that the test may finish
        self.on_cut: Callable[[Sequence[BegunCut]], None] = lambda begun: None
        clock = SystemClock()
        registration = replace(broker(HERE), epoch=7, token=bytes(16))
        self.fetcher = ReplicaFetcher(
            LEADER,
            FetcherEnvironment(
                clock=clock,
                rng=random.Random(0),
                config=lambda: self.config,
                registration=lambda: registration,
                endpoint_of=lambda _: leader.broker.endpoint,
                make_durable=self._make_durable,
                cut=self._cut,
                note_defect=self._note_defect,
                deaths=PeerDeaths(HERE, clock, self._report_dead),
                counts=self.counts,
                catch_up=CatchUpBudget(),
            ),
        )
        self.partitions = [self.make(index) for index in range(COUNT)]
        for partition in self.partitions:
            self.fetcher.add(partition)

    def make(self, index: int, epoch: LeaderEpoch = EPOCH) -> FollowerPartition:
        return FollowerPartition(
            TopicPartition("t", index),
            TOPIC_ID,
            build.log(MemoryFiles(), CONFIG),
            leader=LEADER,
            leader_epoch=epoch,
            unclean_epoch=LeaderEpoch(-1),
            is_in_sync=True,
        )

    def _make_durable(self, grown: Iterable[FollowerPartition]) -> "asyncio.Future[None]":
        grown = list(grown)
        self.synced += grown
        for one in grown:
            if one.promised_end < one.log.end_offset:
                one.log.flush()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def _cut(self, begun: Sequence[BegunCut]) -> None:
        self.cuts += begun
        self.on_cut(begun)

    def _note_defect(self, followed: FollowerPartition, defect: Exception) -> None:
        raise AssertionError from defect

    async def _report_dead(
        self, broker: BrokerId, epoch: int, by: BrokerId, stale: Revision
    ) -> None:
        raise AssertionError

    def finish_cuts(self) -> None:
        """Cut the logs that are being cut."""
        begun, self.cuts = self.cuts, []
        for one in begun:
            one.cut.run()
            one.log.truncation.end(one.cut)
            one.ended()

    async def requested(self, more: int) -> None:
        """Return when so many more requests have come."""
        count = len(self.leader.requests) + more
        await until(lambda: len(self.leader.requests) >= count)


@asynccontextmanager
async def following() -> AsyncIterator[Followed]:
    leader = Leader()
    async with leader.broker:
        followed = Followed(leader)
        try:
            yield followed
        finally:
            followed.fetcher.task.cancel()
            await asyncio.wait([followed.fetcher.task])


def run(scenario: Callable[[Followed], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), following() as followed:
            await scenario(followed)

    asyncio.run(main())


def grown(index: int, watermark: int = 0) -> FetchPartitionResponse:
    """A response with one more record."""
    batch = build.batch(leader_epoch=EPOCH)
    return FetchPartitionResponse(
        partition_index=index, high_watermark=watermark, log_start_offset=0, records=bytes(batch)
    )


def test_the_first_request_names_every_partition_and_the_others_only_what_changed() -> None:
    async def scenario(followed: Followed) -> None:
        followed.leader.parts.append(grown(7))
        await followed.requested(4)
        assert sorted(followed.leader.named(0)) == list(range(COUNT))
        assert followed.leader.changes() == [([7], [])]
        assert followed.leader.requests[1].topics[0].partitions[0].fetch_offset == 1
        assert [one.session_epoch for one in followed.leader.requests[:4]] == [0, 1, 2, 3]

    run(scenario)


def test_another_watermark_alone_is_not_sent_back() -> None:
    async def scenario(followed: Followed) -> None:
        followed.leader.parts.append(grown(7))
        await followed.requested(2)
        followed.leader.parts.append(
            FetchPartitionResponse(partition_index=7, high_watermark=1, log_start_offset=0)
        )
        await followed.requested(3)
        assert followed.partitions[7].high_watermark == 1
        assert followed.leader.changes() == [([7], [])]

    run(scenario)


def test_a_partition_that_is_refused_is_forgotten_and_named_again_later() -> None:
    async def scenario(followed: Followed) -> None:
        refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
        followed.leader.parts.append(FetchPartitionResponse(partition_index=3, error_code=refused))
        await until(lambda: len(followed.leader.changes()) > 1)
        assert followed.leader.changes()[:2] == [([], [3]), ([3], [])]
        assert followed.leader.requests[1].max_wait_ms <= 100, "it does not wait for records"

    run(scenario)


def test_a_partition_that_is_no_longer_followed_is_forgotten() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.requested(2)
        followed.fetcher.remove(followed.partitions[2])
        await followed.requested(2)
        assert followed.leader.changes() == [([], [2])]
        followed.leader.parts.append(grown(2))
        await followed.requested(2)
        assert followed.partitions[2].log.end_offset == 0

    run(scenario)


def test_a_partition_that_is_followed_in_another_epoch_is_named_again() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.requested(2)
        followed.fetcher.remove(followed.partitions[2])
        partition = followed.make(2, LeaderEpoch(4))
        followed.fetcher.add(partition)
        await followed.requested(3)
        epochs = [one.current_leader_epoch for one in followed.leader.wants(2)]
        assert epochs == [EPOCH, 4]

    run(scenario)


def test_a_session_that_the_leader_does_not_know_begins_again() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.requested(2)
        followed.leader.error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        await followed.requested(3)
        (change,) = followed.leader.changes()
        assert (sorted(change[0]), change[1]) == (list(range(COUNT)), [])
        assert [one.session_epoch for one in followed.leader.requests].count(0) == 2

    run(scenario)


def test_a_leader_without_sessions_is_sent_every_partition_each_time() -> None:
    async def scenario(followed: Followed) -> None:
        followed.leader.session_id = 0
        await followed.requested(3)
        for at in range(3):
            assert sorted(followed.leader.named(at)) == list(range(COUNT))

    run(scenario)


def test_a_replica_that_left_the_isr_says_only_what_is_on_its_disk() -> None:
    async def scenario(followed: Followed) -> None:
        partition = followed.partitions[5]
        followed.leader.parts.append(grown(5))
        await followed.requested(3)
        assert (partition.log.end_offset, partition.log.durable_offset) == (1, 0)
        partition.note_in_sync(False)
        await until(lambda: len(followed.leader.changes()) > 2)
        assert followed.leader.changes() == [([5], []), ([], [5]), ([5], [])]
        assert partition.log.durable_offset == 1

    run(scenario)


def test_replicas_outside_the_isr_are_forgotten_while_they_have_fetched_too_fast() -> None:
    async def scenario(followed: Followed) -> None:
        for index in (5, 6):
            followed.partitions[index].note_in_sync(False)
        await followed.requested(2)
        followed.config = replace(followed.config, catch_up_bytes_per_s=1)
        followed.leader.parts.append(grown(5))
        await until(lambda: bool(followed.leader.changes()))
        assert followed.leader.changes()[0] == ([], [5, 6])

    run(scenario)


def test_while_consumers_read_here_the_leader_is_told_which_watermark_is_known() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.requested(2)
        partition = followed.partitions[5]
        partition.note_read(SystemClock().monotonic_s(), 60.0)
        await until(lambda: bool(followed.leader.changes()))
        followed.leader.parts.append(grown(5, watermark=1))
        await until(lambda: len(followed.leader.changes()) > 1)
        named = [one.high_watermark for one in followed.leader.wants(5)]
        assert named == [NO_WATERMARK, 0, 1]

    run(scenario)


def diverging(index: int, end: int) -> FetchPartitionResponse:
    """A response that says that the leader's epoch ended there."""
    where = EpochEndOffset(epoch=EPOCH, end_offset=end)
    return FetchPartitionResponse(partition_index=index, diverging_epoch=where)


async def with_two_records(followed: Followed, index: int) -> None:
    """Fetch a partition until it has two records."""
    for end in (1, 2):
        batch = build.batch(base_offset=end - 1, leader_epoch=EPOCH)
        response = FetchPartitionResponse(partition_index=index, records=bytes(batch))
        followed.leader.parts.append(response)
        await until(lambda end=end: followed.partitions[index].log.end_offset == end)  # type: ignore[misc]


def test_a_partition_whose_log_is_cut_is_forgotten_and_the_others_are_fetched_meanwhile() -> None:
    async def scenario(followed: Followed) -> None:
        await with_two_records(followed, 3)
        partition = followed.partitions[3]
        followed.leader.parts += [diverging(3, 1), diverging(3, 1)]
        await until(lambda: bool(followed.cuts))
        await until(lambda: followed.leader.changes()[-1] == ([], [3]))
        before = len(followed.leader.wants(3))
        followed.leader.parts += [grown(7), diverging(3, 0), grown(3)]
        await until(lambda: followed.partitions[7].log.end_offset == 1)
        await followed.requested(3)
        assert len(followed.cuts) == 1, "what comes for it is ignored"
        assert len(followed.leader.wants(3)) == before
        assert followed.counts.truncated_records == 0
        followed.finish_cuts()
        assert followed.counts.truncated_records == 1
        await until(lambda: len(followed.leader.wants(3)) > before)
        want = followed.leader.wants(3)[-1]
        assert (want.fetch_offset, want.last_fetched_epoch) == (1, EPOCH)
        assert partition.log.end_offset == 1

    run(scenario)


def test_logs_of_one_response_are_cut_together_but_not_too_many_in_one_turn() -> None:
    async def scenario(followed: Followed) -> None:
        for index in range(COUNT):
            await with_two_records(followed, index)
        together: list[int] = []
        turns = [0]

        def count_turns() -> None:
            turns[-1] += 1
            if sum(together) < COUNT:
                asyncio.get_running_loop().call_soon(count_turns)

        def note(begun: Sequence[BegunCut]) -> None:
            together.append(len(begun))
            turns.append(0)

        followed.on_cut = note
        count_turns()
        followed.leader.parts += [diverging(index, 1) for index in range(COUNT)]
        await until(lambda: sum(together) == COUNT)
        assert together == [32, COUNT - 32]
        assert turns[1] > 0, "others had a turn in between"

    run(scenario)


def test_a_partition_that_is_dropped_while_others_are_cut_is_not_waited_for() -> None:
    """Its log may be of another epoch by then, and nobody would report that it is on disk."""

    async def scenario(followed: Followed) -> None:
        for index in range(2, COUNT):
            await with_two_records(followed, index)
        followed.synced.clear()
        followed.on_cut = lambda begun: followed.fetcher.remove(followed.partitions[0])
        cut = [diverging(index, 1) for index in range(2, COUNT)]
        followed.leader.parts += [grown(0), grown(1), *cut]
        await until(lambda: bool(followed.synced))
        assert followed.synced == [followed.partitions[1]]
        assert followed.partitions[0].log.end_offset == 1

    run(scenario)


def test_a_log_that_begins_again_inside_of_a_batch_gets_what_came_with_it() -> None:
    """Asked again for its new end, the leader would say that it begins later."""

    async def scenario(followed: Followed) -> None:
        partition = followed.partitions[3]
        followed.leader.parts.append(
            FetchPartitionResponse(
                partition_index=3, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=6
            )
        )
        await until(lambda: bool(followed.cuts))
        followed.finish_cuts()
        await until(lambda: followed.leader.wants(3)[-1].fetch_offset == 6)
        batch = build.batch(4, base_offset=4, leader_epoch=EPOCH)
        followed.leader.parts.append(
            FetchPartitionResponse(
                partition_index=3, high_watermark=8, log_start_offset=6, records=bytes(batch)
            )
        )
        await until(lambda: bool(followed.cuts))
        followed.finish_cuts()
        assert (partition.log.start_offset, partition.log.end_offset) == (6, 8)
        assert partition.high_watermark == 8
        await until(lambda: followed.leader.wants(3)[-1].fetch_offset == 8)
        assert followed.counts.truncated_records == 0

    run(scenario)


def test_a_cut_that_outlives_its_partition_still_counts_and_brings_nothing() -> None:
    async def scenario(followed: Followed) -> None:
        await with_two_records(followed, 3)
        followed.leader.parts.append(diverging(3, 1))
        await until(lambda: bool(followed.cuts))
        followed.fetcher.remove(followed.partitions[3])
        followed.finish_cuts()
        await followed.requested(2)
        assert followed.counts.truncated_records == 1
        assert followed.partitions[3].log.end_offset == 1
        assert followed.leader.changes()[-1] == ([], [3])

    run(scenario)


def test_a_log_that_cannot_be_cut_now_is_cut_later() -> None:
    async def scenario(followed: Followed) -> None:
        await with_two_records(followed, 3)
        log = followed.partitions[3].log
        log.take_offline("another reason")
        followed.leader.parts.append(diverging(3, 1))
        await until(lambda: followed.leader.changes()[-1] == ([], [3]))
        assert not followed.cuts
        await until(lambda: followed.leader.changes()[-1] == ([3], []))
        assert followed.partitions[3].is_refused

    run(scenario)
