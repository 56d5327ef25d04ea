"""When a broker settles the cluster, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from fakes.cluster_images import CONFIG, ORDERS_0, after, back, gone, ids, orders_0, with_topic
from fakes.cluster_images import cluster as cluster_of
from fakes.virtual_loop import VirtualLoop
from ottla.cluster.controller.configs import replace_broker_config
from ottla.cluster.controller.decision import Decision
from ottla.cluster.controller.leaders import IsrChange, alter_isrs, prefer_leaders, settle_leaders
from ottla.cluster.image import ClusterImage
from ottla.cluster.settling import CALM_S, Settling
from ottla.errors import ApiError
from ottla.model import BrokerId

HERE, OTHER = BrokerId(1), BrokerId(2)


class State:
    """The state of a cluster whose commits all succeed."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self._changed = asyncio.Event()

    def decide_leaders(self, image: ClusterImage) -> Decision[None]:
        return settle_leaders(image, CONFIG)

    async def commit(self, decide: Callable[[ClusterImage], Decision[Any]]) -> Any:
        decision = decide(self.image)
        self.show(after(self.image, decision))
        return decision.result

    async def next_image(self) -> None:
        await self._changed.wait()

    def show(self, image: ClusterImage) -> None:
        self.image = image
        self._changed.set()
        self._changed = asyncio.Event()


def settle(image: ClusterImage, scenario: Callable[[State], Awaitable[None]]) -> None:
    async def main() -> None:
        state = State(image)
        settling = Settling(state, HERE, CONFIG, _raise)
        task = asyncio.create_task(settling.run())
        await scenario(state)
        assert not task.done(), "a task that ends is a defect"
        task.cancel()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def _raise(problem: ApiError) -> None:
    raise problem


def returned(*brokers: int) -> ClusterImage:
    """A cluster in which the first replica of a partition was away, and is in sync again."""
    image = back(gone(with_topic(cluster_of(*brokers), brokers), HERE), HERE)
    partition = orders_0(image)
    assert partition.leader == OTHER
    change = IsrChange(
        tp=ORDERS_0,
        isr=ids(*brokers),
        leader=OTHER,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
    )
    return after(image, alter_isrs(image, [change], CONFIG))


def test_preferred_leaders_lead_again_once_brokers_have_stayed_for_a_while() -> None:
    for brokers in ((1, 2), (1, 2, 3)):

        async def scenario(state: State) -> None:
            await asyncio.sleep(CALM_S - 1)
            assert orders_0(state.image).leader == OTHER
            await asyncio.sleep(2)
            assert orders_0(state.image).leader == HERE

        settle(returned(*brokers), scenario)


def test_leaders_stay_where_they_are_if_the_cluster_says_so_until_it_says_otherwise() -> None:
    async def scenario(state: State) -> None:
        await asyncio.sleep(10 * CALM_S)
        assert orders_0(state.image).leader == OTHER
        state.show(after(state.image, replace_broker_config(state.image, {}, CONFIG)))
        await asyncio.sleep(CALM_S + 1)
        assert orders_0(state.image).leader == HERE

    image = returned(1, 2)
    setting = {"auto.leader.rebalance.enable": "false"}
    settle(after(image, replace_broker_config(image, setting, CONFIG)), scenario)


def test_a_broker_of_which_the_file_says_so_restores_no_leaders_either() -> None:
    image = returned(1, 2)
    assert prefer_leaders(image, CONFIG).changes
    stays = replace(CONFIG, auto_leader_rebalance_enable=False)
    assert not prefer_leaders(image, stays).changes
    setting = {"auto.leader.rebalance.enable": "TRUE"}
    said = after(image, replace_broker_config(image, setting, CONFIG))
    assert prefer_leaders(said, stays).changes, "the cluster's setting wins"


def test_a_broker_that_comes_begins_the_while_anew() -> None:
    async def scenario(state: State) -> None:
        await asyncio.sleep(CALM_S - 1)
        state.show(back(state.image, 3))
        await asyncio.sleep(CALM_S - 1)
        assert orders_0(state.image).leader == OTHER
        await asyncio.sleep(2)
        assert orders_0(state.image).leader == HERE

    settle(returned(1, 2), scenario)
