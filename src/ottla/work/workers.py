"""Handling messages, several at a time, until someone says stop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ottla.work.core import QueueCore
from ottla.work.leases import Lease

_WAIT_S: Final = 1.0  # for messages, between two looks at whether to stop

Handle = Callable[[Lease], Coroutine[Any, Any, None]]


class Workers:
    """The handlers of one call of `work`.

    `handle` settles its message; what it raises ends the work. What is held when it is to stop is
    finished. `is_stopped` is asked before a message is handled; `stop` ends a wait.
    """

    def __init__(
        self,
        core: QueueCore,
        handle: Handle,
        concurrency: int,
        stop: asyncio.Event,
        is_stopped: Callable[[], bool] | None = None,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency: at least one message at a time, not {concurrency}")
        self._core = core
        self._handle = handle
        self._concurrency = concurrency
        self._stop = stop
        self._is_stopped = is_stopped or stop.is_set
        self._running: dict[asyncio.Task[None], None] = {}
        self._total = 0

    async def run(self) -> int:
        """How many messages were handled."""
        try:
            while not self._is_stopped():
                await self._wait_free()
                await self._begin()
        except asyncio.CancelledError:
            for task in self._running:
                task.cancel()
            raise
        finally:
            if self._running:
                await asyncio.wait(self._running)
        self._collect()
        return self._total

    async def _wait_free(self) -> None:
        """Return when another message may be handled, or the work is to stop."""
        if len(self._running) >= self._concurrency:
            stopping = asyncio.create_task(self._stop.wait())
            awaited: list[asyncio.Task[Any]] = [*self._running, stopping]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
        self._collect()

    async def _begin(self) -> None:
        """Receive and begin as many messages as may be handled now."""
        free = self._concurrency - len(self._running)
        if not free or self._is_stopped():
            return
        for lease in await self._core.get(free, _WAIT_S):
            if self._is_stopped():
                await self._core.give_back(lease, counts=False)
            else:
                self._total += 1
                self._running[asyncio.create_task(self._handle(lease))] = None

    def _collect(self) -> None:
        """Forget handlers that are done; raises what one of them raised."""
        for task in [task for task in self._running if task.done()]:
            del self._running[task]
            task.result()
