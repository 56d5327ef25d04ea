"""Responses that rest on no record of their own: sent once it is certain that none is outdated.

A coordinator that was replaced may not know it yet, and would respond with what it knew. A response
with a record waits for the record's commit, which a replaced leader cannot reach. Any other waits
until the store still names this broker as the leader, read after the request came; or, if the store
does not respond, until every broker that could have taken over has shown that it follows.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from ottla.cluster.state import ClusterState
from ottla.coordinator.runtime.decision import Response
from ottla.errors import ApiError
from ottla.replication.partition import LeaderPartition

_STORE_S: Final = 1.0  # for the store to respond
_FOLLOWERS_S: Final = 2.0  # for followers after that

Held = list[Response[Any]]


class Confirmations:
    """The responses of one shard that wait to be confirmed; those that wait share a round."""

    def __init__(
        self,
        partition: LeaderPartition,
        state: ClusterState,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._partition = partition
        self._state = state
        self._spawn = spawn
        self._held: Held = []
        self._is_running = False

    @property
    def is_needed(self) -> bool:
        """False if there is no other broker that could lead the partition."""
        return len(self._partition.replicas) > 1 or len(self._state.image.registered) > 1

    def hold(
        self,
        responses: Iterable[Response[Any]],
        confirmed: Callable[[Held], None],
        refused: Callable[[Held], None],
    ) -> None:
        """Call `confirmed` or `refused` with the responses, and others, after the next round."""
        self._held += responses
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run(confirmed, refused))

    async def _run(
        self, confirmed: Callable[[Held], None], refused: Callable[[Held], None]
    ) -> None:
        try:
            while self._held:
                held, self._held = self._held, []
                deliver = confirmed if await self._is_leader() else refused
                deliver(held)
        finally:
            self._is_running = False

    async def _is_leader(self) -> bool:
        """True if no other broker led the partition when this was called."""
        partition, following = self._partition, asyncio.Event()
        partition.watch_contacts(following.set)
        try:
            with contextlib.suppress(TimeoutError, ApiError):
                async with asyncio.timeout(_STORE_S):
                    return await self._is_stored_leader()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FOLLOWERS_S):
                    await following.wait()
            return following.is_set()
        finally:
            partition.contacts = None

    async def _is_stored_leader(self) -> bool:
        partition = self._partition
        stored = await self._state.stored_partition(partition.tp)
        return (
            stored is not None
            and stored.leader == partition.image.leader
            and stored.leader_epoch == partition.leader_epoch
        )
