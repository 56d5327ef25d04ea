"""Following a store whose watch may fall silent, whose lease lies, or that was restored."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace

import pytest

from fakes.cluster_images import broker
from fakes.memory_store import MemoryStore
from fakes.virtual_loop import VirtualLoop
from ottla.cluster import layout
from ottla.cluster.controller.decision import Decision
from ottla.cluster.controller.topics import NewTopic, create_topic
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.restored import StoreRestored, check_later
from ottla.cluster.state import ClusterState
from ottla.cluster.store import (
    ChangeBatch,
    LeaseId,
    LeaseLost,
    Put,
    Revision,
    Snapshot,
    StoreUnavailable,
)
from ottla.cluster.store_following import SILENCE_S
from ottla.cluster.values import (
    BEAT_KEY,
    CLUSTER_KEY,
    ClusterId,
    ClusterIdentity,
    Member,
    PartitionImage,
    partition_key,
    topic_key,
)
from ottla.config import BrokerConfig
from ottla.model import BrokerId, LeaderEpoch, Uuid

WAIT_S = 1000.0  # virtual


class SilentStore(MemoryStore):
    """A store whose watches can stop reporting, with every connection open."""

    can_fall_silent = True
    is_silent = False
    renews_all = False  # says that a renewal has succeeded, whatever became of the lease
    renews_none = False  # says that the lease is gone, though its keys are there
    is_unreadable = False
    watch_count = 0

    async def range(self, prefix: str) -> Snapshot:
        if self.is_unreadable:
            await asyncio.sleep(2)
            raise StoreUnavailable("the store did not respond")
        return await super().range(prefix)

    async def watch(self, prefix: str, after: Revision) -> AsyncGenerator[ChangeBatch, None]:
        self.watch_count += 1
        is_dead = False
        async for batch in super().watch(prefix, after):
            is_dead = is_dead or self.is_silent
            if is_dead:
                await asyncio.get_running_loop().create_future()
            yield batch

    async def keep_alive(self, lease: LeaseId) -> None:
        if self.renews_none:
            raise LeaseLost(f"lease {lease} is over")
        try:
            await super().keep_alive(lease)
        except LeaseLost:
            if not self.renews_all:
                raise


class Members:
    """A store, and processes that follow it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.store = SilentStore(loop)
        self.lost: list[BaseException] = []
        self.states: list[ClusterState] = []

    async def open(self) -> ClusterState:
        state = await ClusterState.open(
            self.store, random.Random(len(self.states)), on_lost=self.lost.append
        )
        self.states.append(state)
        return state


def run(scenario: Callable[[Members], Awaitable[None]]) -> None:
    async def bounded(loop: VirtualLoop) -> None:
        members = Members(loop)
        async with asyncio.timeout(WAIT_S):
            await scenario(members)
            for state in members.states:
                await state.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        runner.run(bounded(loop))


async def create(state: ClusterState, name: str) -> TopicImage:
    topic_id = state.draw_uuid()

    def decide(image: ClusterImage) -> Decision[TopicImage]:
        return create_topic(image, NewTopic(name=name), BrokerConfig(), topic_id=topic_id, start=0)

    return await state.commit(decide)


def test_the_controller_beats_and_a_watch_that_reports_it_is_not_opened_again() -> None:
    async def scenario(members: Members) -> None:
        one, two = await members.open(), await members.open()
        await one.register(broker(1))
        await two.register(broker(2))
        opened = members.store.watch_count
        before = (await members.store.get(BEAT_KEY)).revision
        await asyncio.sleep(60)
        assert members.store.watch_count == opened
        (beat,) = (await members.store.get(BEAT_KEY)).entries
        assert beat.value == b"1", "the controller's, and no other's"
        assert beat.mod_revision >= before + 25

    run(scenario)


def test_a_watch_that_fell_silent_is_opened_again_after_everything_was_read() -> None:
    async def scenario(members: Members) -> None:
        one, two = await members.open(), await members.open()
        await one.register(broker(1))
        await two.register(broker(2))
        members.store.is_silent = True
        await asyncio.sleep(2.5)  # a beat reaches the dead watches
        members.store.is_silent = False
        begun_s = asyncio.get_running_loop().time()
        topic = await create(one, "orders")
        assert one.image.topics["orders"] == topic, "read, though its own watch is dead"
        assert asyncio.get_running_loop().time() - begun_s < 3, "without waiting for the watch"
        await asyncio.sleep(SILENCE_S + 1)
        assert two.image.topics["orders"] == topic
        assert one.is_registered
        assert two.is_registered

    run(scenario)


def test_a_commit_that_was_made_does_not_fail_because_it_cannot_be_read() -> None:
    async def scenario(members: Members) -> None:
        state = await members.open()
        await state.register(broker(1), ttl_ms=60_000)
        topic_id = state.draw_uuid()

        def decide(image: ClusterImage) -> Decision[TopicImage]:
            wanted = NewTopic(name="orders")
            return create_topic(image, wanted, BrokerConfig(), topic_id=topic_id, start=0)

        members.store.is_silent = members.store.is_unreadable = True
        committing = asyncio.ensure_future(state.commit_surely(decide))
        await asyncio.sleep(10)
        assert topic_key("orders") in {one.key for one in members.store.snapshot().entries}
        assert not committing.done(), "else it would be decided again"
        members.store.is_silent = members.store.is_unreadable = False
        assert (await committing).name == "orders"
        assert "orders" in state.image.topics

    run(scenario)


def test_a_broker_that_can_neither_watch_nor_read_lets_its_lease_go() -> None:
    async def scenario(members: Members) -> None:
        state = await members.open()
        await state.register(broker(1), ttl_ms=3000)
        members.store.is_silent = members.store.is_unreadable = True
        await asyncio.sleep(2 * SILENCE_S + 10)
        assert "brokers/1" not in {entry.key for entry in members.store.snapshot().entries}
        members.store.is_silent = members.store.is_unreadable = False
        await asyncio.sleep(5)
        assert not state.is_registered
        await state.register(broker(1))
        assert BrokerId(1) in state.image.brokers

    run(scenario)


def test_a_broker_believes_its_key_and_not_the_renewal_of_its_lease() -> None:
    async def scenario(members: Members) -> None:
        state = await members.open()
        await state.register(broker(1), ttl_ms=3000)
        members.store.renews_all = True
        members.store.expire_key("brokers/1")
        await state.catch_up()
        assert not state.is_registered
        assert [type(problem) for problem in members.lost] == [LeaseLost]

    run(scenario)


def test_a_key_whose_lease_is_gone_is_no_registration() -> None:
    async def scenario(members: Members) -> None:
        state = await members.open()
        epoch = await state.register(broker(1), ttl_ms=3000)
        members.store.renews_none = True
        await asyncio.sleep(2)
        assert not state.is_registered, "its key would stay for ever"
        members.store.renews_none = False
        assert await state.register(broker(1)) > epoch

    run(scenario)


def test_a_partition_whose_epoch_went_back_is_a_restored_store() -> None:
    async def scenario(members: Members) -> None:
        state = await members.open()
        await state.register(broker(1), ttl_ms=3000)
        topic = await create(state, "orders")
        key = partition_key(topic.id, 0)
        older = replace(topic.partitions[0], leader_epoch=LeaderEpoch(-1))
        await members.store.commit([Put(key, layout.encode(key, older))])
        await asyncio.sleep(3)
        assert state.image.topics["orders"] == topic, "not followed"
        assert isinstance(members.lost[0], StoreRestored)
        with pytest.raises(StoreUnavailable, match="restored from an older copy: orders-0 is at"):
            await create(state, "others")
        await asyncio.sleep(10)
        assert "brokers/1" not in {entry.key for entry in members.store.snapshot().entries}

    run(scenario)


def test_another_cluster_in_the_store_is_a_restored_store() -> None:
    async def scenario(members: Members) -> None:
        state = await members.open()
        await state.register(broker(1))
        known = state.image.cluster_id
        other = layout.encode(CLUSTER_KEY, ClusterIdentity(ClusterId("another")))
        members.store.is_silent = True  # so that everything is read
        await members.store.commit([Put(CLUSTER_KEY, other)])
        await asyncio.sleep(SILENCE_S + 3)
        assert state.image.cluster_id == known
        assert any(isinstance(problem, StoreRestored) for problem in members.lost)

    run(scenario)


def test_images_that_cannot_follow_each_other_say_why() -> None:
    partition = PartitionImage(BrokerId(1), LeaderEpoch(3), (BrokerId(1),), (BrokerId(1),), 7)
    topic = TopicImage("orders", Uuid(bytes(16)), (partition, partition))
    known = ClusterImage(
        cluster_id=ClusterId("c"),
        topics={"orders": topic},
        members={BrokerId(1): Member(BrokerId(1), 40)},
    )
    check_later(known, known)
    check_later(known, replace(known, topics={}, members={}))
    again = replace(topic, id=Uuid(bytes(15) + b"1"), partitions=(partition,))
    check_later(known, replace(known, topics={"orders": again}))
    led = replace(partition, leader_epoch=LeaderEpoch(2))
    changed = replace(partition, partition_epoch=6)
    for found, reason in [
        (replace(known, cluster_id=ClusterId("")), "cluster \\(none\\), and was that of cluster c"),
        (replace(known, members={BrokerId(1): Member(BrokerId(1), 39)}), "at epoch 39.* at 40"),
        (_with(known, topic, led), "orders-1 is at leader epoch 2, and was at 3"),
        (_with(known, topic, changed), "orders-1 is at partition epoch 6, and was at 7"),
        (
            replace(known, topics={"orders": replace(topic, partitions=(partition,))}),
            "orders has 1 partitions, and had 2",
        ),
    ]:
        with pytest.raises(StoreRestored, match=reason):
            check_later(known, found)


def _with(image: ClusterImage, topic: TopicImage, last: PartitionImage) -> ClusterImage:
    partitions = (*topic.partitions[:-1], last)
    return replace(image, topics={topic.name: replace(topic, partitions=partitions)})
