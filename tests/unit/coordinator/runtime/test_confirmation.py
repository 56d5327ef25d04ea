"""Responses without a record: held until the store, or every follower, shows that we lead."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

from fakes import build
from fakes.cluster_images import cluster
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from fakes.virtual_loop import VirtualLoop
from ottla.cluster.image import ClusterImage
from ottla.cluster.state import ClusterState
from ottla.cluster.store import StoreUnavailable
from ottla.cluster.values import PartitionImage
from ottla.config import Durability, TopicConfig
from ottla.coordinator.runtime.confirmation import Confirmations, Held
from ottla.coordinator.runtime.decision import Response
from ottla.coordinator.runtime.shard import FutureTicket
from ottla.model import BrokerId, LeaderEpoch, TopicPartition
from ottla.storage.log import Log

HERE, THERE = BrokerId(1), BrokerId(2)
CONFIG = TopicConfig(durability=Durability.REPLICATED)


class NoFlusher:
    def request(self, log: Log) -> None:
        return


class FakeState:
    """The store's view of the partition: another than ours, or none in time."""

    def __init__(self, image: ClusterImage, stored: PartitionImage) -> None:
        self.image = image
        self.stored = stored
        self.is_away = False
        self.is_silent = False
        self.reads = 0
        self.may_respond = asyncio.Event()
        self.may_respond.set()

    async def stored_partition(self, tp: TopicPartition) -> PartitionImage:
        self.reads += 1
        if self.is_away:
            raise StoreUnavailable("it is away")
        if self.is_silent:
            await asyncio.sleep(3600)
        stored = self.stored  # as it was when the read was made
        await self.may_respond.wait()
        return stored


class Bench:
    def __init__(self, *replicas: BrokerId) -> None:
        self.partition = led_partition(
            build.TP,
            build.log(MemoryFiles(), CONFIG),
            broker_id=HERE,
            leader_epoch=LeaderEpoch(3),
            replicas=replicas,
            isr=replicas,
            flusher=NoFlusher(),
            soon=lambda callback: callback(),
        )
        self.state = FakeState(cluster(*replicas), self.partition.image)
        self.confirmations = Confirmations(
            self.partition, cast("ClusterState", self.state), self._spawn
        )
        self.tasks: list[asyncio.Task[None]] = []
        self.confirmed: list[Any] = []
        self.refused: list[Any] = []

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def hold(self, *values: str) -> None:
        ticket: FutureTicket[str] = FutureTicket(asyncio.get_running_loop())

        def note(found: list[Any]) -> Callable[[Held], None]:
            return lambda held: found.extend(response.value for response in held)

        responses: list[Response[str]] = [ticket.respond(value) for value in values]
        self.confirmations.hold(responses, note(self.confirmed), note(self.refused))

    async def wait(self) -> None:
        await asyncio.gather(*self.tasks)

    async def fetch(self, session_epoch: int, broker: BrokerId = THERE) -> None:
        """A fetch of a follower arrives, after a while."""
        await asyncio.sleep(0.01)
        assert self.partition.contacts is not None
        self.partition.contacts.note(broker, 5, session_epoch)


def run(scenario: Callable[[Bench], Awaitable[None]], *replicas: BrokerId) -> None:
    async def main() -> None:
        await scenario(Bench(*(replicas or (HERE, THERE))))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_a_broker_without_peers_needs_no_confirmation() -> None:
    async def scenario(bench: Bench) -> None:
        assert not bench.confirmations.is_needed

    run(scenario, HERE)

    async def with_peers(bench: Bench) -> None:
        assert bench.confirmations.is_needed

    run(with_peers)


def test_a_broker_with_peers_confirms_also_what_it_alone_has() -> None:
    async def scenario(bench: Bench) -> None:
        bench.state.image = cluster(HERE, THERE)
        assert bench.confirmations.is_needed

    run(scenario, HERE)


def test_the_store_confirms_all_that_wait_with_one_read() -> None:
    async def scenario(bench: Bench) -> None:
        bench.hold("a", "b")
        bench.hold("c")
        await bench.wait()
        assert bench.confirmed == ["a", "b", "c"]
        assert bench.state.reads == 1
        assert bench.partition.contacts is None

    run(scenario)


def test_a_read_that_was_sent_before_a_request_came_does_not_confirm_it() -> None:
    async def scenario(bench: Bench) -> None:
        bench.state.may_respond.clear()
        bench.hold("before")
        await asyncio.sleep(0)
        bench.hold("after")
        stored = bench.state.stored
        bench.state.stored = PartitionImage(
            THERE, LeaderEpoch(4), stored.replicas, stored.isr, stored.partition_epoch + 1
        )
        bench.state.may_respond.set()
        await bench.wait()
        assert (bench.confirmed, bench.refused) == (["before"], ["after"])
        assert bench.state.reads == 2

    run(scenario)


def test_a_broker_that_leads_in_another_epoch_is_not_the_leader_of_this_one() -> None:
    async def scenario(bench: Bench) -> None:
        stored = bench.state.stored
        bench.state.stored = PartitionImage(
            HERE, LeaderEpoch(4), stored.replicas, stored.isr, stored.partition_epoch + 1
        )
        bench.hold("a")
        await bench.wait()
        assert bench.refused == ["a"]

    run(scenario)


def test_without_the_store_followers_confirm_that_they_follow() -> None:
    async def scenario(bench: Bench) -> None:
        for is_away, is_silent in ((True, False), (False, True)):
            bench.state.is_away, bench.state.is_silent = is_away, is_silent
            bench.hold("a")
            await bench.fetch(1)
            await asyncio.sleep(1.5)
            assert bench.confirmed == [], "one fetch may have waited in a socket"
            await bench.fetch(2)
            await bench.wait()
            assert bench.confirmed == ["a"]
            bench.confirmed.clear()

    run(scenario)


def test_followers_that_are_silent_refuse_it_in_time() -> None:
    async def scenario(bench: Bench) -> None:
        bench.state.is_away = True
        begun_s = asyncio.get_running_loop().time()
        bench.hold("a")
        await bench.wait()
        assert bench.refused == ["a"]
        assert asyncio.get_running_loop().time() - begun_s < 4

    run(scenario)


def test_eligible_leader_replicas_are_asked_too() -> None:
    async def scenario(bench: Bench) -> None:
        bench.state.is_away = True
        third = BrokerId(3)
        image = bench.partition.image
        bench.partition.image = PartitionImage(
            HERE, image.leader_epoch, image.replicas, (HERE, THERE), 1, elr=(third,)
        )
        bench.hold("a")
        for epoch in (1, 2):
            await bench.fetch(epoch)
        await asyncio.sleep(0.5)
        assert bench.confirmed == []
        for epoch in (1, 2):
            await bench.fetch(epoch, third)
        await bench.wait()
        assert bench.confirmed == ["a"]

    run(scenario, HERE, THERE, BrokerId(3))


def test_alone_in_sync_nobody_can_have_taken_over() -> None:
    async def scenario(bench: Bench) -> None:
        bench.state.is_away = True
        image = bench.partition.image
        bench.partition.image = PartitionImage(HERE, image.leader_epoch, image.replicas, (HERE,), 1)
        bench.hold("a")
        await bench.wait()
        assert bench.confirmed == ["a"]

    run(scenario)
