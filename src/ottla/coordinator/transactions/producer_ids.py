"""Allocation of producer ids that were never used before."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from ottla.cluster.state import ClusterState
from ottla.cluster.store import Revision
from ottla.model import ProducerId

_BLOCK_SIZE: Final = 1000


class ProducerIds:
    """Owner of a block of ids that the coordination store gives out only once.

    The store's revision is also made durable outside the store, before the block's first id is
    used: a store that went back would give the block out again, and records of the second
    producer with an id would look like duplicates of the first.
    """

    def __init__(
        self, state: ClusterState, remember: Callable[[Revision], Awaitable[None]]
    ) -> None:
        self._state = state
        self._remember = remember
        self._block: Iterator[int] = iter(())

    async def next(self) -> ProducerId:
        """An id that no producer had before."""
        while (next_id := next(self._block, None)) is None:
            block = await self._state.allocate_producer_ids(_BLOCK_SIZE)
            await self._state.catch_up()
            await self._remember(self._state.image.revision)
            self._block = iter(block)
        return ProducerId(next_id)
