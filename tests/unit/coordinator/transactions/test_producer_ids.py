"""Producer ids: each is given once, also by a store that goes back."""

import asyncio
from typing import cast

from ottla.cluster.state import ClusterState
from ottla.cluster.store import Revision
from ottla.coordinator.transactions.producer_ids import ProducerIds


class FakeImage:
    revision = Revision(0)


class FakeState:
    """A store that gives out blocks of ids, one revision each."""

    def __init__(self) -> None:
        self.image = FakeImage()
        self.sizes: list[int] = []
        self._next = 0

    async def allocate_producer_ids(self, size: int) -> range:
        self.sizes.append(size)
        first, self._next = self._next, self._next + size
        return range(first, first + 2)  # the rest of the block is not looked at here

    async def catch_up(self) -> None:
        self.image.revision = Revision(self.image.revision + 1)


def test_ids_are_unique_and_a_block_is_remembered_before_its_first_id_is_used() -> None:
    async def scenario() -> None:
        state = FakeState()
        remembered: list[Revision] = []

        async def remember(revision: Revision) -> None:
            remembered.append(revision)

        ids = ProducerIds(cast("ClusterState", state), remember)
        seen = [await ids.next() for _ in range(5)]
        assert len(set(seen)) == 5
        assert len(state.sizes) == 3
        assert remembered == [Revision(1), Revision(2), Revision(3)]

    asyncio.run(scenario())


def test_an_id_of_a_block_that_cannot_be_remembered_is_not_given_out() -> None:
    async def scenario() -> None:
        async def fail(revision: Revision) -> None:
            raise OSError("the disk is full")

        ids = ProducerIds(cast("ClusterState", FakeState()), fail)
        for _ in range(2):
            try:
                await ids.next()
            except OSError:
                continue
            raise AssertionError("an id that a store which went back would give out again")

    asyncio.run(scenario())
