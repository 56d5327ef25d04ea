"""The coordinator of a transactional id, on this broker or another, for partitions that ask it."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from ottla.cluster.image import ClusterImage
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.runtime.routing import coordinated_elsewhere
from ottla.coordinator.transactions.coordinator import TransactionCoordinator
from ottla.errors import ErrorCode
from ottla.model import BrokerId, TopicPartition

if TYPE_CHECKING:  # a broker without peers does not need what a client needs
    from ottla.coordinator.transactions.peer_verification import PeerVerification

_END_S: Final = 1.0  # timeout of a first write that waits for the end of the last transaction
_PAUSE_MIN_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.1


class TransactionRouter:
    """The transaction coordinators of the cluster, as far as partitions need them.

    `peers` asks those of other brokers.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        coordinator: TransactionCoordinator,
        image: Callable[[], ClusterImage],
        peers: Callable[[], "PeerVerification"],
    ) -> None:
        self._broker_id = broker_id
        self._here = coordinator
        self._image = image
        self._peers = peers

    async def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        version: int,
    ) -> ErrorCode:
        """Add partitions, all or none; while the last transaction ends, wait a little."""
        peer = self._peer_of(transactional_id)
        if peer is None:
            return await self._here.add(transactional_id, producer, partitions, version)
        loop, pause_s = asyncio.get_running_loop(), _PAUSE_MIN_S
        deadline_s = loop.time() + _END_S
        while True:
            error = await self._peers().add(peer, transactional_id, producer, partitions)
            is_ending = error is ErrorCode.CONCURRENT_TRANSACTIONS
            if not is_ending or loop.time() + pause_s > deadline_s:
                return error
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
    ) -> list[ErrorCode]:
        """An error for each partition that is not part of the producer's open transaction."""
        peer = self._peer_of(transactional_id)
        if peer is None:
            return await self._here.verify(transactional_id, producer, partitions)
        return await self._peers().verify(peer, transactional_id, producer, partitions)

    def _peer_of(self, transactional_id: str) -> BrokerId | None:
        """The broker that coordinates this id; None if it is this one."""
        found = coordinated_elsewhere(self._here, transactional_id, self._image(), self._broker_id)
        return None if found is None else found[0]
