"""Staying in the cluster: registered again when the lease has ended, and with a good disk only."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ottla.broker.registration import Registration
from ottla.cluster.store import LeaseLost
from ottla.config import BrokerConfig
from ottla.errors import ApiError
from ottla.storage.flusher import Flusher
from ottla.storage.log_dir import LogDir

log = logging.getLogger("ottla.broker")

_REGISTER_S: Final = 1.0  # between two attempts to register again


class Disk:
    """The disk of a broker, as far as others are to lead while it fails or hangs."""

    def __init__(
        self, log_dir: LogDir, flusher: Flusher, config: Callable[[], BrokerConfig]
    ) -> None:
        self._log_dir = log_dir
        self._flusher = flusher
        self._config = config

    @property
    def problem(self) -> str | None:
        """The reason why the disk cannot be relied on; None as long as it can."""
        if self._log_dir.offline_reason is not None:
            return self._log_dir.offline_reason
        syncing_s = self._flusher.unfinished_s
        if syncing_s * 1000 > self._config().replica_lag_time_max_ms:
            return f"the disk has been syncing for {syncing_s:.1f} s"
        return None


class Membership:
    """Keeps a broker registered, unless its disk says that others should lead.

    `disk` is None for a broker without peers: no other could lead instead.
    """

    def __init__(
        self,
        registration: Registration,
        disk: Disk | None,
        *,
        register: Callable[[], Awaitable[None]],
        note_lost: Callable[[BaseException], None],
    ) -> None:
        self._registration = registration
        self._disk = disk
        self._register = register
        self._note_lost = note_lost

    async def run(self) -> None:
        """Register again as soon as the lease has ended: paused, or cut off from the store."""
        while True:
            try:
                await self._registration.wait_lost()
                if self._problem is None:
                    await self._register()
                    log.warning("broker registered again")
            except (ApiError, LeaseLost) as problem:
                self._note_lost(problem)
            await asyncio.sleep(_REGISTER_S)

    async def check_disk(self) -> None:
        """Let other brokers lead while the disk fails or hangs."""
        if (problem := self._problem) is not None:
            await self._registration.step_down(problem)

    @property
    def _problem(self) -> str | None:
        return None if self._disk is None else self._disk.problem
