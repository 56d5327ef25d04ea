"""How a process follows the cluster, changes it, and stays or falls as one of its brokers."""

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.cluster_images import broker as broker_image
from fakes.memory_store import MemoryStore
from fakes.virtual_loop import VirtualLoop
from ottla.clock import SystemClock
from ottla.cluster import layout
from ottla.cluster.controller import leaders
from ottla.cluster.controller.decision import Decision
from ottla.cluster.controller.leaders import IneligibleReplica
from ottla.cluster.controller.topics import NewTopic, create_topic, delete_topic
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.settling import MAKING_S
from ottla.cluster.state import ClusterState
from ottla.cluster.store import (
    SMALLEST_LIMITS,
    Compare,
    Delete,
    LeaseLost,
    Put,
    Revision,
    Snapshot,
    StoreUnavailable,
    Write,
)
from ottla.cluster.store_sqlite import SqliteStore
from ottla.cluster.values import (
    CLUSTER_KEY,
    BrokerImage,
    Catalog,
    Change,
    ClusterId,
    ClusterIdentity,
    PartitionImage,
    StoredTopic,
    partition_key,
    topic_key,
)
from ottla.config import BrokerConfig
from ottla.errors import RequestTimedOut, TopicAlreadyExists, UsageRefused
from ottla.model import BrokerId, TopicPartition, Uuid, format_uuid
from ottla.protocol.messages.topics import BROKER_DEFAULT

CONFIG = BrokerConfig()
WAIT_S = 1000.0  # virtual, mostly


class World:
    """One store in memory, and the states that were opened on it."""

    def __init__(self, loop: VirtualLoop, *, revisions_kept: int = 1000) -> None:
        self.store: MemoryStore = MemoryStore(loop, revisions_kept=revisions_kept)
        self.lost: dict[str, list[BaseException]] = {}
        self.states: list[ClusterState] = []

    async def open(self, name: str) -> ClusterState:
        self.lost[name] = []
        state = await ClusterState.open(
            self.store, random.Random(name), on_lost=self.lost[name].append
        )
        self.states.append(state)
        return state


def run(scenario: Callable[[World], Awaitable[None]], *, revisions_kept: int = 1000) -> None:
    async def bounded(loop: VirtualLoop) -> None:
        world = World(loop, revisions_kept=revisions_kept)
        async with asyncio.timeout(WAIT_S):
            await scenario(world)
            for state in world.states:
                await state.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        runner.run(bounded(loop))


def broker(broker_id: int, port: int = 9092) -> BrokerImage:
    return broker_image(broker_id, port)


async def create(
    state: ClusterState,
    name: str,
    *,
    partition_count: int = BROKER_DEFAULT,
    replication_factor: int = BROKER_DEFAULT,
) -> TopicImage:
    topic = NewTopic(
        name=name, partition_count=partition_count, replication_factor=replication_factor
    )

    topic_id = state.draw_uuid()

    def decide(image: ClusterImage) -> Decision[TopicImage]:
        return create_topic(image, topic, CONFIG, topic_id=topic_id, start=0)

    return await state.commit(decide)


async def alter_isr(state: ClusterState, *isr: BrokerId) -> None:
    def decide(image: ClusterImage) -> Decision[PartitionImage]:
        partition = image.topics["orders"].partitions[0]
        change = leaders.IsrChange(
            TopicPartition("orders", 0),
            tuple(isr),
            BrokerId(1),
            partition.leader_epoch,
            partition.partition_epoch,
        )
        return leaders.alter_isr(image, change, leaders.replication_rules({}, BrokerConfig()))

    await state.commit(decide)


async def until(state: ClusterState, holds: Callable[[ClusterImage], bool]) -> None:
    """Return when the image is as asked for; the test's time limit ends a wait in vain."""
    met = asyncio.Event()

    def look(_old: ClusterImage, new: ClusterImage) -> None:
        if holds(new):
            met.set()

    state.subscribe(look)
    look(state.image, state.image)
    await met.wait()


def test_the_first_to_open_names_the_cluster_and_all_others_agree() -> None:
    async def scenario(world: World) -> None:
        first, second = await asyncio.gather(world.open("a"), world.open("b"))
        third = await world.open("c")
        assert len(first.image.cluster_id) == 22
        assert first.image.cluster_id == second.image.cluster_id == third.image.cluster_id

    run(scenario)


def test_a_commit_is_in_the_image_when_it_returns_and_in_everybody_elses_soon() -> None:
    async def scenario(world: World) -> None:
        here, there = await world.open("here"), await world.open("there")
        await here.register(broker(1))
        topic = await create(here, "orders", partition_count=2)
        assert here.image.topics["orders"] == topic
        await until(there, lambda image: image.topics.get("orders") == topic)

    run(scenario)


def test_subscribers_are_called_with_the_old_and_the_new_image_as_it_changes() -> None:
    async def scenario(world: World) -> None:
        state = await world.open("a")
        await state.register(broker(1))
        seen: list[tuple[bool, bool, bool]] = []
        state.subscribe(
            lambda old, new: seen.append(
                ("orders" in old.topics, "orders" in new.topics, new is state.image)
            )
        )
        await create(state, "orders")
        assert seen == [(False, True, True)]

    run(scenario)


def test_a_conflict_is_decided_again_on_the_image_that_caused_it() -> None:
    async def scenario(world: World) -> None:
        here, there = await world.open("here"), await world.open("there")
        await here.register(broker(1))
        await there.catch_up()
        results = await asyncio.gather(
            create(here, "orders"), create(there, "orders"), return_exceptions=True
        )
        assert isinstance(results[0], TopicImage)
        assert isinstance(results[1], TopicAlreadyExists)

    run(scenario)


def test_names_that_collide_cannot_be_created_at_the_same_moment() -> None:
    async def scenario(world: World) -> None:
        here, there = await world.open("here"), await world.open("there")
        await here.register(broker(1))
        await there.catch_up()
        results = await asyncio.gather(
            create(here, "a.b"), create(there, "a_b"), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in results) == ["InvalidTopic", "TopicImage"]

    run(scenario)


def test_a_refusal_is_never_taken_on_an_old_image() -> None:
    async def scenario(world: World) -> None:
        here, there = await world.open("here"), await world.open("there")
        await here.register(broker(1))
        await create(here, "orders")
        await there.catch_up()
        old = there.image
        await world.store.commit([Delete(topic_key("orders"))])
        assert there.image is old
        assert (await create(there, "orders")).name == "orders"

    run(scenario)


def test_nobody_is_taken_into_an_isr_after_having_died() -> None:
    async def scenario(world: World) -> None:
        here, there = await world.open("here"), await world.open("there")
        await here.register(broker(1))
        await there.register(broker(2))
        await create(here, "orders", replication_factor=2)
        await alter_isr(here, BrokerId(1))
        await world.store.commit([Delete("brokers/2")])
        assert BrokerId(2) in here.image.brokers, "it has not heard yet"
        with pytest.raises(IneligibleReplica):
            await alter_isr(here, BrokerId(1), BrokerId(2))

    run(scenario)


class ContestedStore(MemoryStore):
    """A store in which somebody else is always a little faster."""

    async def commit(self, writes: Sequence[Write], compares: Sequence[Compare] = ()) -> Revision:
        if compares:
            await super().commit([write for write in writes if isinstance(write, Put)])
        return await super().commit(writes, compares)


def test_a_commit_that_always_comes_too_late_gives_up_with_advice() -> None:
    async def scenario(world: World) -> None:
        state = await world.open("a")
        rename = Change(CLUSTER_KEY, ClusterIdentity(ClusterId("another")))
        contested = ContestedStore(SystemClock())
        identity = layout.encode(CLUSTER_KEY, ClusterIdentity(ClusterId("it")))
        await contested.commit([Put(CLUSTER_KEY, identity)])
        late = await ClusterState.open(contested, random.Random(0), on_lost=print)
        with pytest.raises(RequestTimedOut, match="check whether it was made, then try again"):
            await late.commit(lambda _: Decision((rename,), None))
        await late.close()
        await state.commit(lambda _: Decision((rename,), None))
        assert state.image.cluster_id == "another"

    run(scenario)


def test_a_follower_that_fell_behind_the_history_reads_everything_again() -> None:
    async def scenario(world: World) -> None:
        state = await world.open("a")
        await state.register(broker(1))
        await create(state, "orders")
        for number in range(10):  # the memory store never waits, so the follower cannot look
            key = topic_key(f"copy-{number}")
            copy = StoredTopic(f"copy-{number}", state.draw_uuid(), 0)
            await world.store.commit([Put(key, layout.encode(key, copy))])
        assert len(state.image.topics) == 1
        await state.catch_up()
        assert len(state.image.topics) == 11
        assert world.lost["a"] == []

    run(scenario, revisions_kept=3)


class DistantStore(MemoryStore):
    """A store whose answers take a while, so that others come in between."""

    async def get(self, key: str) -> Snapshot:
        snapshot = await super().get(key)
        await asyncio.sleep(0.001)
        return snapshot


class AwayStore(MemoryStore):
    """A store that is out of reach for some of those who want to read everything."""

    refusals = 0

    async def range(self, prefix: str) -> Snapshot:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailable("away")
        return await super().range(prefix)


def test_a_store_that_is_away_while_everything_is_read_again_is_asked_once_more() -> None:
    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        world.store = store = AwayStore(loop, revisions_kept=3)
        state = await world.open("a")
        await state.register(broker(1))
        await create(state, "orders")
        for number in range(10):
            key = topic_key(f"copy-{number}")
            copy = StoredTopic(f"copy-{number}", state.draw_uuid(), 0)
            await store.commit([Put(key, layout.encode(key, copy))])
        store.refusals = 1
        await state.catch_up()
        assert len(state.image.topics) == 11
        assert [type(problem) for problem in world.lost["a"]] == [StoreUnavailable]
        assert not state.follower.done()

    run(scenario)


class SharedStore(MemoryStore):
    """A store on a server that others use too: its revisions begin anywhere and skip."""

    offset = 1000

    def note_foreign_change(self) -> None:
        self.offset += 7

    async def get(self, key: str) -> Snapshot:
        snapshot = await super().get(key)
        return Snapshot(Revision(snapshot.revision + self.offset), snapshot.entries)


def test_an_image_catches_up_though_others_use_the_server() -> None:
    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        world.store = store = SharedStore(loop)
        state = await world.open("a")
        await state.register(broker(1))
        store.note_foreign_change()
        key = topic_key("copy")
        copy = StoredTopic("copy", state.draw_uuid(), 0)
        await store.commit([Put(key, layout.encode(key, copy))])
        await state.catch_up()
        assert "copy" in state.image.topics
        with pytest.raises(TopicAlreadyExists):
            await create(state, "copy")

    run(scenario)


class CountingStore(MemoryStore):
    """Counts the writes of each commit; lets a test act before one of them."""

    def __init__(self, clock: VirtualLoop) -> None:
        super().__init__(clock)
        self.sizes: list[int] = []
        self.before_commit: Callable[[int], Awaitable[None]] | None = None

    async def commit(self, writes: Sequence[Write], compares: Sequence[Compare] = ()) -> Revision:
        if self.before_commit is not None:
            act, self.before_commit = self.before_commit, None
            await act(len(self.sizes))
            self.before_commit = act
        revision = await super().commit(writes, compares)
        self.sizes.append(len(writes))
        return revision


async def counting(world: World) -> CountingStore:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    world.store = store = CountingStore(loop)
    return store


def test_a_topic_of_many_partitions_is_made_in_parts_and_seen_whole() -> None:
    async def scenario(world: World) -> None:
        store = await counting(world)
        here, there = await world.open("a"), await world.open("b")
        await here.register(broker(1))
        seen: list[int] = []
        there.subscribe(
            lambda _, new: seen.append(
                len(new.topics["orders"].partitions) if "orders" in new.topics else 0
            )
        )
        store.sizes.clear()
        topic = await create(here, "orders", partition_count=200)
        assert len(topic.partitions) == 200
        assert here.image.topics["orders"] == topic
        assert len(store.sizes) == 4
        await there.catch_up()
        assert set(seen) == {0, 200}
        assert (there.image.detached, there.image.making) == ({}, {})

    run(scenario)


def test_a_creation_in_parts_survives_the_changes_of_others() -> None:
    async def scenario(world: World) -> None:
        store = await counting(world)
        here, there = await world.open("a"), await world.open("b")
        await here.register(broker(1))
        names = iter(range(100))

        async def create_another(_count: int) -> None:
            if (number := next(names)) < 5:
                await create(there, f"other-{number}")

        store.before_commit = create_another
        topic = await create(here, "orders", partition_count=150)
        store.before_commit = None
        assert here.image.topics["orders"] == topic
        assert here.image.partition_count == 150 + len(here.image.topics) - 1
        assert (here.image.detached, here.image.making) == ({}, {})

    run(scenario)


def test_a_creation_that_stopped_half_way_is_swept_and_its_name_is_free() -> None:
    async def scenario(world: World) -> None:
        store = await counting(world)
        here, there = await world.open("a"), await world.open("b")
        await here.register(broker(1))
        start = len(store.sizes)

        async def die(count: int) -> None:
            if count == start + 2:
                raise StoreUnavailable("the creator dies here")

        store.before_commit = die
        with pytest.raises(StoreUnavailable):
            await create(there, "orders", partition_count=200)
        store.before_commit = None
        await here.catch_up()
        assert len(here.image.making) == 1
        assert "orders" not in here.image.topics
        topic = await create(here, "orders", partition_count=1)
        await until(here, lambda image: not image.making and not image.detached)
        assert here.image.topics == {"orders": topic}
        keys = [entry.key for entry in (await store.range("partitions/")).entries]
        assert keys == [partition_key(topic.id, 0)]

    run(scenario)


def test_a_creation_that_was_given_up_begins_again_and_does_not_mix() -> None:
    async def scenario(world: World) -> None:
        store = await counting(world)
        here, there = await world.open("a"), await world.open("b")
        await here.register(broker(1))
        start = len(store.sizes)

        async def pause(count: int) -> None:
            if count == start + 2:
                await asyncio.sleep(2 * MAKING_S)  # as if its machine had stood still

        store.before_commit = pause
        with pytest.raises(RequestTimedOut):  # the request is over long before that
            await create(there, "orders", partition_count=200)
        store.before_commit = None
        await until(here, lambda image: not image.making and not image.detached)
        topic = await create(there, "orders", partition_count=200)
        assert there.image.topics["orders"] == topic

    run(scenario)


def test_partitions_of_a_large_topic_that_was_deleted_are_swept() -> None:
    async def scenario(world: World) -> None:
        store = await counting(world)
        state = await world.open("a")
        await state.register(broker(1))
        await create(state, "orders", partition_count=200)
        await state.commit(lambda image: delete_topic(image, "orders", CONFIG))
        await until(state, lambda image: not image.detached)
        assert (await store.range("partitions/")).entries == ()

    run(scenario)


def test_all_partitions_of_a_broker_that_starts_anew_are_led_in_new_epochs() -> None:
    async def scenario(world: World) -> None:
        store = await counting(world)
        state = await world.open("a")
        await state.register(broker(1))
        await create(state, "orders", partition_count=200)
        await state.close()
        world.states.remove(state)
        store.sizes.clear()
        again = await world.open("b")
        await again.register(broker(1))
        partitions = again.image.topics["orders"].partitions
        assert {(one.leader, one.leader_epoch) for one in partitions} == {(1, 1)}
        assert max(store.sizes) <= SMALLEST_LIMITS.writes

    run(scenario)


def test_other_brokers_lead_before_one_that_starts_anew_is_ready() -> None:
    async def scenario(world: World) -> None:
        first, other = await world.open("a"), await world.open("b")
        await first.register(broker(1))
        await other.register(broker(2))
        await create(first, "orders", partition_count=2, replication_factor=2)
        again = await world.open("again")
        leaders: list[BrokerId | None] = []

        async def prepare(epoch: int) -> None:
            leaders.extend(one.leader for one in again.image.topics["orders"].partitions)

        await again.register(broker(1), prepare=prepare)
        assert leaders == [2, 2]

    run(scenario)


def test_producer_ids_are_given_out_once() -> None:
    async def scenario(world: World) -> None:
        world.store = DistantStore(SystemClock())
        here, there = await world.open("here"), await world.open("there")
        blocks = await asyncio.gather(
            *(state.allocate_producer_ids(10) for state in (here, there) * 5)
        )
        again = await (await world.open("later")).allocate_producer_ids()
        given = [producer_id for block in blocks for producer_id in block]
        assert sorted(given) == list(range(100))
        assert again == range(100, 1100)

    run(scenario)


def test_a_registered_broker_stays_for_longer_than_its_lease() -> None:
    async def scenario(world: World) -> None:
        state = await world.open("a")
        epoch = await state.register(broker(1), ttl_ms=1000)
        assert state.image.brokers == {1: replace(broker(1), epoch=epoch)}
        await asyncio.sleep(60)
        await state.catch_up()
        assert state.image.brokers[BrokerId(1)].epoch == epoch
        assert world.lost["a"] == []

    run(scenario)


def test_closing_leaves_the_cluster_at_once() -> None:
    async def scenario(world: World) -> None:
        here, there = await world.open("here"), await world.open("there")
        await here.register(broker(1))
        await there.register(broker(2))
        await here.close()
        await there.catch_up()
        assert list(there.image.brokers) == [2]

    run(scenario)


def test_partitions_of_a_broker_that_goes_away_are_led_by_others() -> None:
    async def scenario(world: World) -> None:
        states = [await world.open(name) for name in "abc"]
        for number, state in enumerate(states, start=1):
            await state.register(broker(number))
        await create(states[1], "orders", partition_count=3, replication_factor=3)
        await states[0].close()
        await until(
            states[2],
            lambda image: all(
                partition.leader in {2, 3} and 1 not in partition.isr
                for partition in image.topics["orders"].partitions
            ),
        )
        epochs = [part.leader_epoch for part in states[2].image.topics["orders"].partitions]
        assert epochs == [1, 0, 0]

    run(scenario)


@pytest.mark.parametrize(("rest_s", "leader"), [(1, 3), (100, 2)])
def test_a_broker_that_has_just_come_back_leads_only_if_no_other_can(
    rest_s: float, leader: int
) -> None:
    async def scenario(world: World) -> None:
        first, second, third = [await world.open(name) for name in "abc"]
        await first.register(broker(1))
        await third.register(broker(3))
        await asyncio.sleep(100)
        await second.register(broker(2))
        await create(first, "orders", partition_count=1, replication_factor=3)
        assert first.image.topics["orders"].partitions[0].replicas == (1, 2, 3)
        await asyncio.sleep(rest_s)
        await first.resign()
        assert first.image.topics["orders"].partitions[0].leader == leader

    run(scenario)


def test_a_second_process_with_the_same_id_takes_over_and_the_first_is_told() -> None:
    async def scenario(world: World) -> None:
        old, new = await world.open("old"), await world.open("new")
        first = await old.register(broker(1, port=9092))
        await create(old, "orders")
        second = await new.register(broker(1, port=9093))
        assert second > first
        await old.catch_up()
        assert [str(problem) for problem in world.lost["old"]] == [
            "another process registered as broker 1"
        ]
        await old.close()
        await new.catch_up()
        assert new.image.brokers[BrokerId(1)].endpoint.port == 9093
        assert new.image.topics["orders"].partitions[0].leader == 1
        assert new.image.topics["orders"].partitions[0].leader_epoch > 0

    run(scenario)


def test_a_broker_whose_lease_was_ended_is_told_once_and_may_register_again() -> None:
    async def scenario(world: World) -> None:
        state = await world.open("a")
        await state.register(broker(1))
        await world.store.commit([Delete("brokers/1")])
        await state.catch_up()
        await asyncio.sleep(60)
        assert [type(problem) for problem in world.lost["a"]] == [LeaseLost]
        assert not state.image.brokers
        assert not state.is_registered
        assert state.brokers_to_ask() == [broker(1)], "clients can ask it again"
        await state.register(broker(1))
        assert list(state.image.brokers) == [1]
        assert state.is_registered

    run(scenario)


def test_a_broker_stays_registered_while_the_store_is_away_and_its_key_is_there() -> None:
    async def scenario(world: World) -> None:
        state = await world.open("a")
        epoch = await state.register(broker(1), ttl_ms=3000)
        assert 0 < state.lease_left_s <= 3
        world.store.is_reachable = False
        await asyncio.sleep(1.5)
        with pytest.raises(StoreUnavailable, match="nothing can be changed while"):
            await create(state, "orders")
        world.store.is_reachable = True
        await asyncio.sleep(30)
        assert {type(problem) for problem in world.lost["a"]} == {StoreUnavailable}
        assert state.is_registered
        assert state.image.brokers[BrokerId(1)].epoch == epoch
        assert (await create(state, "orders")).partitions[0].leader == 1

    run(scenario)


def test_a_lease_that_ended_while_the_store_was_away_is_noticed_by_its_key() -> None:
    async def scenario(world: World) -> None:
        state = await world.open("a")
        await state.register(broker(1), ttl_ms=3000)
        world.store.is_reachable = False
        await asyncio.sleep(10)
        assert state.is_registered, "nothing says that it is not"
        assert state.lease_left_s == 0
        world.store.is_reachable = True
        await asyncio.sleep(3)
        assert [type(one) for one in world.lost["a"]].count(LeaseLost) == 1
        assert not state.is_registered
        await state.register(broker(1))
        assert (await create(state, "orders")).partitions[0].leader == 1

    run(scenario)


def test_following_goes_on_after_the_store_was_away() -> None:
    async def scenario(world: World) -> None:
        here, there = await world.open("here"), await world.open("there")
        await here.register(broker(1))
        world.store.is_reachable = False
        world.store.disconnect_watches()
        await asyncio.sleep(3)
        assert {type(problem) for problem in world.lost["there"]} == {StoreUnavailable}
        world.store.is_reachable = True
        topic = await create(here, "orders")
        await until(there, lambda image: image.topics.get("orders") == topic)

    run(scenario)


def test_a_broker_that_cannot_read_what_a_newer_one_wrote_says_so_and_leaves() -> None:
    async def scenario(world: World) -> None:
        state = await world.open("a")
        await state.register(broker(1), ttl_ms=1000)
        newer = json.dumps({"format": 99, "surprise": True}).encode()
        await world.store.commit([Put(topic_key("orders"), newer)])
        with pytest.raises(StoreUnavailable, match="no longer follows the cluster"):
            await state.catch_up()
        await asyncio.sleep(2)
        (problem,) = world.lost["a"]
        assert isinstance(problem, UsageRefused)
        assert "start it with the newer version" in str(problem)
        assert (await world.store.range("brokers/")).entries == ()

    run(scenario)


OTHER_PROCESS = """
import asyncio, random, sys
from pathlib import Path
from ottla.clock import SystemClock
from ottla.cluster.controller.topics import NewTopic, create_topic
from ottla.cluster.values import CLIENT_LISTENER, BrokerImage
from ottla.cluster.state import ClusterState
from ottla.cluster.store_sqlite import SqliteStore
from ottla.config import BrokerConfig
from ottla.model import BrokerId, Endpoint

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]), SystemClock())
    state = await ClusterState.open(store, random.Random(2), on_lost=print)
    asked = asyncio.Event()  # maybe before the registration has returned
    state.subscribe(lambda old, new: asked.set() if "question" in new.topics else None)
    listeners = {CLIENT_LISTENER: Endpoint("localhost", 9093)}
    await state.register(BrokerImage(BrokerId(2), listeners))
    await asyncio.wait_for(asked.wait(), 20)
    topic_id = state.draw_uuid()
    await state.commit(lambda image: create_topic(
        image, NewTopic(name="answer", replication_factor=2), BrokerConfig(),
        topic_id=topic_id, start=0))
    await state.close()
    await store.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_two_processes_on_one_file_see_each_others_brokers_and_topics(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def scenario() -> None:
        store = await SqliteStore.open(path, SystemClock(), poll_interval_s=0.005)
        state = await ClusterState.open(store, random.Random(1), on_lost=print)
        await state.register(broker(1))
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", OTHER_PROCESS, str(path))
        await until(state, lambda image: sorted(image.brokers) == [1, 2])
        await create(state, "question")
        await until(state, lambda image: "answer" in image.topics)
        await until(state, lambda image: sorted(image.brokers) == [1])
        await until(state, lambda image: image.topics["answer"].partitions[0].isr == (1,))
        assert await other.wait() == 0
        await state.close()
        await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


OLD_STORE = {
    "cluster": b'{"format":1,"id":"it"}',
    "catalog": b'{"format":1}',
    "producer-ids": b'{"format":1,"next":3000}',
    "brokers/1": b'{"format":1,"host":"h","port":1,"rack":null}',
    **{
        f"topics/t{number}": b'{"format":1,"id":"%s","internal":false,"config":{},"partitions":[]}'
        % format_uuid(Uuid(number.to_bytes(16))).encode()
        for number in range(1, 150)  # more than one commit takes
    },
}


async def put_all(store: MemoryStore, values: Mapping[str, bytes]) -> None:
    puts = [Put(key, value) for key, value in values.items()]
    for first in range(0, len(puts), store.limits.writes):
        await store.commit(puts[first : first + store.limits.writes])


def test_a_store_of_old_gets_checksums_once() -> None:
    async def scenario(world: World) -> None:
        await put_all(world.store, OLD_STORE)
        state = await world.open("a")
        assert state.image.cluster_id == "it"
        assert len(state.image.topics) == 149
        assert not state.image.brokers, "a registration of old ends: it is made anew"
        assert await state.allocate_producer_ids(10) == range(3000, 3010)
        snapshot = await world.store.range("")
        assert not layout.outdated_entries(snapshot)
        assert all(b'"crc32c"' in entry.value for entry in snapshot.entries)
        await world.store.commit([Put("topics/t1", OLD_STORE["topics/t1"])])
        with pytest.raises(UsageRefused, match="'topics/t1' has no checksum"):
            await world.open("b")

    run(scenario)


class DyingStore(MemoryStore):
    """Answers no commit after some."""

    commits_left = 1

    async def commit(self, writes: Sequence[Write], compares: Sequence[Compare] = ()) -> Revision:
        if not self.commits_left:
            raise StoreUnavailable("killed")
        self.commits_left -= 1
        return await super().commit(writes, compares)


@pytest.mark.parametrize("commits", range(1, 5))
def test_a_start_that_dies_while_checksums_are_added_is_repeated(commits: int) -> None:
    async def scenario(world: World) -> None:
        store = DyingStore(SystemClock())
        world.store = store
        store.commits_left = 100
        await put_all(store, OLD_STORE)
        store.commits_left = commits - 1
        if commits < 4:
            with pytest.raises(StoreUnavailable):
                await world.open("a")
        store.commits_left = 100
        state = await world.open("b")
        assert len(state.image.topics) == 149

    run(scenario)


def test_a_store_that_has_lost_its_name_is_not_given_another() -> None:
    async def scenario(world: World) -> None:
        value = layout.encode("catalog", Catalog())
        await world.store.commit([Put("catalog", value)])
        with pytest.raises(UsageRefused, match="'cluster' is missing"):
            await world.open("a")

    run(scenario)
