"""How a process follows the cluster, changes it, and stays or falls as one of its brokers."""

import asyncio
import contextlib
import json
import random
import selectors
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from fakes.memory_store import MemoryStore
from ottla.clock import SystemClock
from ottla.cluster import controller, layout
from ottla.cluster.controller import Decision, NewTopic
from ottla.cluster.image import (
    CLUSTER_KEY,
    BrokerImage,
    Change,
    ClusterImage,
    TopicImage,
    topic_key,
)
from ottla.cluster.state import ClusterState
from ottla.cluster.store import Delete, LeaseLost, Put, StoreUnavailable
from ottla.cluster.store_sqlite import SqliteStore
from ottla.config import BrokerConfig
from ottla.errors import RequestTimedOut, TopicAlreadyExists, UsageRefused
from ottla.model import BrokerId, Endpoint, TimestampMs

CONFIG = BrokerConfig()
WAIT_S = 1000.0  # virtual, mostly


class _JumpingSelector(selectors.SelectSelector):
    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        assert ready or timeout is not None, "deadlock: every task waits and no timer is set"
        if not ready and timeout:
            self.loop.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer, and which is also the stores' clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s

    def now_ms(self) -> TimestampMs:
        return TimestampMs(int(self.now_s * 1000))


class World:
    """One store in memory, and the states that were opened on it."""

    def __init__(self, loop: VirtualLoop, *, revisions_kept: int = 1000) -> None:
        self.store = MemoryStore(loop, revisions_kept=revisions_kept)
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
    return BrokerImage(BrokerId(broker_id), Endpoint("localhost", port))


async def create(state: ClusterState, name: str, **wanted: int) -> TopicImage:
    def decide(image: ClusterImage) -> Decision[TopicImage]:
        topic = NewTopic(name=name, **wanted)  # type: ignore[arg-type]
        return controller.create_topic(image, topic, CONFIG, new_id=state.draw_uuid, start=0)

    return await state.commit(decide)


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


def test_a_decision_that_can_never_be_made_gives_up_with_advice() -> None:
    async def scenario(world: World) -> None:
        state = await world.open("a")

        def disturbed(image: ClusterImage) -> Decision[None]:
            disturbances.append(asyncio.ensure_future(world.store.commit([Put(CLUSTER_KEY, name)])))
            return Decision((Change(CLUSTER_KEY, layout.decode(CLUSTER_KEY, name)),), None)

        disturbances: list[asyncio.Future[int]] = []
        (entry,) = (await world.store.get(CLUSTER_KEY)).entries
        name = entry.value
        slow = world.store.commit

        async def commit_after_others(*args: object) -> int:
            await asyncio.sleep(0.01)
            return await slow(*args)  # type: ignore[arg-type]

        state._store = _Slowed(world.store)  # type: ignore[assignment]
        with pytest.raises(RequestTimedOut, match="look whether it was made, then try again"):
            await state.commit(disturbed)
        await asyncio.gather(*disturbances)
        state._store = world.store

    run(scenario)
