"""A broker whose disk was replaced by an older copy of the same registration leads nothing."""

import asyncio
import copy
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import pytest

from ottla.client.admin import create_topic
from ottla.client.client import Client
from ottla.cluster.layout import read_image
from ottla.cluster.values import PartitionImage
from sim.child import run_in_child
from sim.cluster import Cluster
from sim.network import SimNetworkLoop

_SETTINGS: Final = {
    "default.replication.factor": "2",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
_LOOK_S: Final = 0.5
_PATIENCE_S: Final = 60.0
_GENERATION_S: Final = 601.0
_REAL_S: Final = 300.0


class Pair:
    """Two machines with a topic of one partition, under virtual time."""

    def __init__(self) -> None:
        self.loop = SimNetworkLoop(Random(7))
        self.loop.end_s = 3600.0
        self.cluster = Cluster(self.loop, Random(7), 2, _SETTINGS, lambda *_: None)
        self.first, self.second = self.cluster.machines

    @property
    def partition(self) -> PartitionImage | None:
        """The partition as the store has it."""
        topic = read_image(self.cluster.store.snapshot()).topics.get("orders")
        return None if topic is None else topic.partitions[0]

    async def wait(self, condition: Callable[[PartitionImage], bool]) -> None:
        until_s = self.loop.time() + _PATIENCE_S
        while (found := self.partition) is None or not condition(found):
            assert self.loop.time() < until_s, found
            await asyncio.sleep(_LOOK_S)

    async def begin(self) -> None:
        self.cluster.start()
        until_s = self.loop.time() + _PATIENCE_S
        while any(machine.broker is None for machine in self.cluster.machines):
            assert self.loop.time() < until_s, "a broker does not start"
            await asyncio.sleep(_LOOK_S)

        async def create() -> None:
            async with Client(self.cluster.bootstrap, client_id="admin") as client:
                await create_topic(client, "orders", partitions=1, settings={})

        await self.cluster.run_client(create(), "admin")
        await self.wait(lambda found: found.isr == found.replicas and not found.is_new)

    async def lose_both(self) -> None:
        """Kill the first machine, then the second, which is alone in sync."""
        self.first.kill()
        await self.wait(lambda found: found.isr == (self.second.id,))
        self.second.kill()


@pytest.mark.slow
@pytest.mark.parametrize("is_restored", [True, False], ids=["an older copy", "its own disk"])
def test_an_older_copy_of_the_disk_is_not_trusted(is_restored: bool) -> None:
    assert run_in_child(partial(_run, is_restored), _REAL_S), "the child says why not"


def _run(is_restored: bool) -> bool:
    pair = Pair()

    async def scenario() -> None:
        await pair.begin()
        older = copy.deepcopy(pair.second.disk.files.kill())
        await asyncio.sleep(_GENERATION_S)
        await pair.lose_both()
        if is_restored:
            pair.second.disk.files = older
        pair.second.start()
        if not is_restored:
            await pair.wait(lambda found: found.leader == pair.second.id and found.leader_epoch > 1)
            return
        await pair.wait(lambda found: pair.second.id not in (*found.isr, *found.elr))
        assert pair.partition is not None
        assert pair.partition.leader is None, "only the other one has everything"
        pair.first.start()
        await pair.wait(lambda found: found.leader == pair.first.id and len(found.isr) == 2)

    asyncio.set_event_loop(pair.loop)
    pair.loop.run_until_complete(scenario())
    return True
