"""A work queue for programs with an event loop."""

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, Self

from ottla.work.core import LEASE_MAX_S, QueueCore
from ottla.work.errors import LeaseLost, QueueEmpty
from ottla.work.leases import Lease
from ottla.work.message import Delivered
from ottla.work.puts import Headers, Receipt, Value
from ottla.work.settlement import DONE, given_back, rejected
from ottla.work.workers import Workers

log = logging.getLogger("ottla.queue")

SERVERS: Final = "127.0.0.1:9092"
TIMEOUT_S: Final = 30.0


class AsyncMessage(Delivered):
    """A message of an `AsyncQueue`; its lease is renewed while the object is alive."""

    __slots__ = ("_core",)

    def __init__(self, core: QueueCore, lease: Lease) -> None:
        super().__init__(lease)
        self._core = core

    async def ack(self) -> None:
        """The work is done; returns when that is durable."""
        await self._core.settle(self._lease, DONE)

    async def nack(self, delay: float | None = None) -> None:
        """Give it back: it is delivered again after `delay` seconds, or the group's backoff."""
        await self._core.settle(self._lease, given_back(delay))

    async def reject(self, reason: str = "") -> None:
        """Deliver it no more; the reason is in its dead letter, if the group has those."""
        await self._core.settle(self._lease, rejected(reason))

    async def extend(self) -> None:
        """Hold it for another lock duration, and for another `lease_max` at most."""
        await self._core.extend(self._lease)


Handler = Callable[[AsyncMessage], Awaitable[object]]


class AsyncQueue:
    """A topic as a work queue, read by a share group; belongs to one event loop.

    Its consumers are the members of `group`, which is named as the topic by default. Connections
    and brokers may come and go: `get` waits for them, a message stays held, and `ack` is repeated.
    `put` gives up after `timeout` seconds.
    """

    def __init__(
        self,
        topic: str,
        *,
        servers: str = SERVERS,
        group: str | None = None,
        timeout: float = TIMEOUT_S,
        lease_max: float = LEASE_MAX_S,
    ) -> None:
        self._core = QueueCore(
            topic,
            servers=servers,
            group=group or topic,
            timeout_s=timeout,
            lease_max_s=lease_max,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give back what is held, as if it had not been delivered, and leave the group."""
        await self._core.close()

    async def put(
        self,
        value: Value,
        *,
        key: Value = None,
        headers: Headers = (),
        delay: float | None = None,
        at: datetime | None = None,
        ttl: float | None = None,
    ) -> Receipt:
        """Send a message; returns when it is durable.

        It is delivered after `delay` seconds, or `at` a time, which the topic must allow; and not
        later than `ttl` seconds after that.
        """
        self._core.check_open()
        return await self._core.puts.put(
            value, key=key, headers=headers, delay_s=delay, at=at, ttl_s=ttl
        )

    async def get(self, max: int = 1, wait: float | None = None) -> list[AsyncMessage]:  # noqa: A002
        """Up to `max` messages; none if there are none within `wait` seconds."""
        return [self._held(lease) for lease in await self._core.get(max, wait)]

    @asynccontextmanager
    async def take(self, wait: float | None = None) -> AsyncIterator[AsyncMessage]:
        """A message: leaving the block acknowledges it, an exception gives it back.

        Raises `QueueEmpty` if there is none within `wait` seconds.
        """
        leases = await self._core.get(1, wait)
        if not leases:
            raise QueueEmpty(f"no message of {self._core.topic} within {wait} s")
        message = self._held(leases[0], asyncio.current_task())
        try:
            yield message
        except BaseException:
            if message.is_held:
                await self._core.give_back(leases[0])
            raise
        if not message.is_settled:
            await message.ack()

    async def work(
        self, handler: Handler, *, concurrency: int = 1, stop: asyncio.Event | None = None
    ) -> int:
        """Have `handler` called with messages, so many at a time, until `stop` is set.

        A message is acknowledged when the handler returns and given back when it raises, unless it
        has settled it. What is held when `stop` is set is finished. Returns how many there were.
        """

        async def handle(lease: Lease) -> None:
            message = self._held(lease, asyncio.current_task())
            try:
                await handler(message)
                if not message.is_settled:
                    await message.ack()
            except LeaseLost as problem:
                log.warning("message is delivered again", extra={"reason": problem})
            except Exception as problem:  # noqa: BLE001  # whatever a handler raises
                log_failed(lease, problem)
                if message.is_held:
                    await self._core.give_back(lease)
            except BaseException:
                if message.is_held:
                    await self._core.give_back(lease)
                raise

        return await Workers(self._core, handle, concurrency, stop or asyncio.Event()).run()

    def _held(self, lease: Lease, owner: "asyncio.Task[Any] | None" = None) -> AsyncMessage:
        """The message of a lease, which is kept while the message and its owner are alive."""
        message = AsyncMessage(self._core, lease)
        alive = weakref.ref(message)
        lease.is_wanted = lambda: alive() is not None and not (owner is not None and owner.done())
        return message


def log_failed(lease: Lease, problem: Exception) -> None:
    log.warning(
        "handler failed: its message is given back",
        extra={"lease": lease.name},
        exc_info=problem,
    )
