"""Changes of in-sync replicas: what the partitions of a leader want, committed together."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ottla.clock import Clock
from ottla.cluster.controller.leaders import IsrChange, alter_isrs
from ottla.cluster.state import ClusterState
from ottla.config import BrokerConfig
from ottla.errors import ApiError
from ottla.replication.partition import LeaderPartition

log = logging.getLogger("ottla.replication")

_PAUSE_S: Final = 0.1  # between two commits: what changes meanwhile shares the next one


class IsrChanges:
    """Commits the changes of the ISRs of all partitions that this broker leads."""

    def __init__(
        self,
        state: ClusterState,
        leaders: Mapping[tuple[str, int], LeaderPartition],
        clock: Clock,
        config: Callable[[], BrokerConfig],
        wanted: asyncio.Event,
    ) -> None:
        """`wanted` is set when a partition may want another ISR."""
        self._state = state
        self._leaders = leaders
        self._clock = clock
        self._config = config
        self._wanted = wanted

    async def run(self) -> None:
        """Look whenever that is wanted, and now and then for followers that lag."""
        while True:
            rest_s = self._config().replica_lag_time_max_ms / 2000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._wanted.wait()
            self._wanted.clear()
            await self._change()
            await asyncio.sleep(_PAUSE_S)

    async def _change(self) -> None:
        begun = self._begin()
        if not begun:
            return
        changes = list(begun.values())
        defaults = self._config()
        try:
            await self._state.commit_surely(lambda image: alter_isrs(image, changes, defaults))
        except ApiError as problem:  # decided again with the next look
            log.warning("in-sync replicas not changed", extra={"reason": problem})
        for partition in begun:
            partition.end_isr_change()

    def _begin(self) -> dict[LeaderPartition, IsrChange]:
        live = self._state.image.brokers
        lag_s = self._config().replica_lag_time_max_ms / 1000
        caught_up_s_min = self._clock.monotonic_s() - lag_s
        begun: dict[LeaderPartition, IsrChange] = {}
        for partition in _replicated(self._leaders.values()):
            change = partition.begin_isr_change(live, caught_up_s_min)
            if change is not None:
                begun[partition] = change
        return begun


def _replicated(partitions: Iterable[LeaderPartition]) -> Iterable[LeaderPartition]:
    return [one for one in partitions if len(one.replicas) > 1]
