"""Producer ids that nobody was given before."""

from collections.abc import Iterator
from typing import Final

from ottla.cluster.state import ClusterState
from ottla.model import ProducerId

_BLOCK_SIZE: Final = 1000


class ProducerIds:
    """Owner of a block that the coordination store gives away only once."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._block: Iterator[int] = iter(())

    async def next(self) -> ProducerId:
        while (next_id := next(self._block, None)) is None:
            self._block = iter(await self._state.allocate_producer_ids(_BLOCK_SIZE))
        return ProducerId(next_id)
