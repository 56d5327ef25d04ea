"""Settling the cluster: leaders elected when brokers come or go, drained brokers emptied,
leftovers swept.

Every broker runs it. The live broker with the lowest id, the controller, acts at once; the others
act on what is still unsettled a second later. So there is no election of a controller, and none is
missed: which of them commits a change first does not matter.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from ottla.cluster.controller.decision import Decision
from ottla.cluster.controller.internal_replicas import INTERNAL_FACTORS, add_internal_replicas
from ottla.cluster.controller.leaders import prefer_leaders
from ottla.cluster.controller.reassignment import drain
from ottla.cluster.controller.topics import sweep
from ottla.cluster.image import ClusterImage
from ottla.config import BrokerConfig
from ottla.errors import ApiError
from ottla.model import BrokerId, Uuid

Result = TypeVar("Result")

MAKING_S: Final = 60.0  # after that a creation that has not ended is given up
STAND_IN_S: Final = 1.0  # after that any broker does what the controller has not done
CALM_S: Final = 60.0  # without a broker coming or going, before preferred leaders lead again
_RETRY_PAUSE_S: Final = 1.0


class SettledState(Protocol):
    """The cluster's state, as far as settling uses it."""

    @property
    def image(self) -> ClusterImage: ...

    def decide_leaders(self, image: ClusterImage) -> Decision[None]: ...

    async def commit(self, decide: Callable[[ClusterImage], Decision[Result]]) -> Result: ...

    async def next_image(self) -> None: ...


class Settling:
    """The settling that one registered broker does."""

    def __init__(
        self,
        state: SettledState,
        broker: BrokerId,
        config: BrokerConfig,
        note_problem: Callable[[ApiError], None],
    ) -> None:
        self._state = state
        self._broker = broker
        self._config = config
        self._note_problem = note_problem
        self._loop = asyncio.get_running_loop()
        self._seen_s: dict[Uuid, float] = {}  # when each creation under way was first seen
        self._changed_s = self._loop.time()  # when brokers last came or went

    async def run(self) -> None:
        while True:
            before = self._state.image
            try:
                if before.controller_id != self._broker:
                    await asyncio.sleep(STAND_IN_S)
                await self._act()
            except ApiError as problem:
                self._note_problem(problem)
                await asyncio.sleep(_RETRY_PAUSE_S)
                continue
            await self._wait_changed(before)

    async def _act(self) -> None:
        await self._commit_if_needed(self._state.decide_leaders)
        if self._state.image.controller_id == self._broker:
            await self._sweep()
            await self._commit_if_needed(lambda image: drain(image, self._config))
            await self._commit_if_needed(lambda image: add_internal_replicas(image, self._config))
            if self._loop.time() - self._changed_s >= CALM_S:
                await self._commit_if_needed(lambda image: prefer_leaders(image, self._config))

    async def _commit_if_needed(self, decide: Callable[[ClusterImage], Decision[None]]) -> None:
        """Commit a decision; the store is not bothered if there is nothing to do."""
        if decide(self._state.image).changes:
            await self._state.commit(decide)

    async def _wait_changed(self, before: ClusterImage) -> None:
        """Return when there may be something to do."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rest_s(before)):
                while _is_calm(before, self._state.image):
                    await self._state.next_image()
        if self._state.image.brokers is not before.brokers:
            self._changed_s = self._loop.time()

    def _rest_s(self, before: ClusterImage) -> float | None:
        """The seconds after which to look again though nothing has changed; None for never."""
        if before.making:
            return MAKING_S
        if len(before.brokers) < 2:
            return None
        left_s = self._changed_s + CALM_S - self._loop.time()
        return left_s if left_s > 0 else CALM_S

    async def _sweep(self) -> None:
        """Remove the partitions that deleted topics, and creations that have stopped, left."""
        now_s, seen_s = self._loop.time(), self._seen_s
        for topic_id in self._state.image.making:
            seen_s.setdefault(topic_id, now_s)
        given_up = {one for one, first_s in seen_s.items() if now_s - first_s >= MAKING_S}
        await self._commit_if_needed(lambda image: sweep(image, given_up & image.making.keys()))
        for topic_id in given_up:
            del seen_s[topic_id]


def _is_calm(old: ClusterImage, new: ClusterImage) -> bool:
    """True if nothing has changed that is acted upon."""
    return (
        old.registered is new.registered
        and old.brokers is new.brokers
        and old.detached is new.detached
        and old.making is new.making
        and all(old.topics.get(name) is new.topics.get(name) for name in INTERNAL_FACTORS)
        and old.members is new.members
        # A partition that has moved off a drained broker makes room for the next.
        and (old.topics is new.topics or not new.draining)
    )
