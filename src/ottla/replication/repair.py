"""Repair of damaged replicas: each gets from its leader again what its disk has lost.

A replica with damage is not followed. It leaves the ISR and the eligible replicas, in a new leader
epoch: so no fetch that is still on its way brings it back. Then its log is cut before the damage,
what is cut off is kept aside, and it fetches the rest like any other replica that is behind. The
only replica that has everything stays what it is: others cannot have more.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from ottla.clock import Clock
from ottla.cluster.controller.leaders import forfeit_damaged
from ottla.cluster.state import ClusterState
from ottla.errors import ApiError
from ottla.model import BrokerId, TopicPartition
from ottla.replication.cutting import BegunCut
from ottla.replication.following import Following
from ottla.storage.damages import CorruptRange
from ottla.storage.log import Log
from ottla.storage.log_cut import Cut
from ottla.storage.log_dir import LogDir

log = logging.getLogger("ottla.replication")

_RETRY_S: Final = 1.0  # while a damaged replica cannot be given up, or its leader is away


class Repairs:
    """Repairs the damaged replicas of one broker."""

    def __init__(
        self,
        state: ClusterState,
        following: Following,
        log_dir: LogDir,
        clock: Clock,
        broker_id: BrokerId,
        wanted: asyncio.Event,
    ) -> None:
        """`wanted` is set when damage was found."""
        self._state = state
        self._following = following
        self._log_dir = log_dir
        self._clock = clock
        self._broker_id = broker_id
        self._wanted = wanted

    def note_opened(self) -> None:
        """The logs have been opened: those that are damaged must not be followed."""
        for tp, replica in self._log_dir.logs.items():
            if replica.corrupt:
                self._following.hold(tp)

    async def run(self) -> None:
        while True:
            retry_s = _RETRY_S if self._shared() else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(retry_s):
                    await self._wanted.wait()
            self._wanted.clear()
            await self._repair()

    def _shared(self) -> list[TopicPartition]:
        """The damaged replicas of partitions that have others."""
        image = self._state.image
        found = ((tp, image.partition(tp)) for tp in self._following.held)
        return [tp for tp, one in found if one is not None and len(one.replicas) > 1]

    async def _repair(self) -> None:
        for tp in list(self._following.held):
            replica = self._log_dir.logs.get(tp)
            if replica is not None and replica.truncation.is_under_way:
                continue
            if replica is None or not replica.corrupt:  # retention has passed the damage
                self._following.release(tp, replica)
        damaged = self._shared()
        if not damaged or self._log_dir.offline_reason is not None:
            return
        try:
            if forfeit_damaged(self._state.image, self._broker_id, damaged).changes:
                await self._state.commit(
                    lambda image: forfeit_damaged(image, self._broker_id, damaged)
                )
        except ApiError as problem:  # tried again
            log.warning("damaged replicas not given up", extra={"reason": problem})
        begun = [one for one in map(self._begin_again, damaged) if one is not None]
        if begun:
            self._following.cutting.run(begun)

    def _begin_again(self, tp: TopicPartition) -> BegunCut | None:
        """Begin to cut a replica before its damage; None if that has to wait."""
        replica, partition = self._log_dir.logs.get(tp), self._state.image.partition(tp)
        if replica is None or replica.truncation.is_under_way or not replica.corrupt:
            return None
        if partition is None or partition.leader in {None, self._broker_id}:
            return None
        if self._broker_id in (*partition.isr, *partition.elr):
            return None
        damaged = list(replica.corrupt)
        try:
            cut = replica.truncation.begin_setting_aside(self._clock.now_ms())
        except ApiError as problem:  # tried again
            log.info("damaged replica not cut", extra={"tp": tp, "reason": problem})
            return None
        return BegunCut(replica, cut, partial(self._end, replica, cut, damaged))

    def _end(self, replica: Log, cut: Cut, damaged: Sequence[CorruptRange]) -> None:
        """Have a replica follow that has been cut."""
        tp = replica.tp
        is_here = self._log_dir.logs.get(tp) is replica and replica.offline_reason is None
        if not is_here or cut.recovered is None:
            return
        assert not replica.corrupt, f"{tp}: still damaged at {replica.corrupt}"
        self._following.counts.repairs += 1
        log.error(
            "damaged replica cut: it fetches the rest from its leader",
            extra={
                "tp": tp,
                "damaged": ", ".join(map(str, damaged)),
                "end": cut.end_before,
                "cut_at": replica.end_offset,
                "kept": ", ".join(cut.kept_names),
                "directory": str(replica.directory),
            },
        )
        if tp in self._following.held:
            self._following.release(tp, replica)
