"""A work queue for programs with threads."""

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import datetime
from typing import Final, Self

from ottla.work.async_queue import SERVERS, TIMEOUT_S, log_failed
from ottla.work.core import LEASE_MAX_S, QueueCore
from ottla.work.errors import LeaseLost, QueueEmpty
from ottla.work.leases import Lease
from ottla.work.loop_thread import LoopThread
from ottla.work.message import Delivered
from ottla.work.puts import Headers, Receipt, Value
from ottla.work.settlement import DONE, Settlement, given_back, rejected
from ottla.work.workers import Workers

log = logging.getLogger("ottla.queue")

_LOOK_S: Final = 0.1  # how often it is looked whether to stop


class Message(Delivered):
    """A message of a `Queue`; its lease is renewed while the object is alive."""

    __slots__ = ("_queue",)

    def __init__(self, queue: "Queue", lease: Lease) -> None:
        super().__init__(lease)
        self._queue = queue

    def ack(self) -> None:
        """The work is done; returns when that is durable."""
        self._queue._settle(self._lease, DONE)

    def nack(self, delay: float | None = None) -> None:
        """Give it back: it is delivered again after `delay` seconds, or the group's backoff."""
        self._queue._settle(self._lease, given_back(delay))

    def reject(self, reason: str = "") -> None:
        """Deliver it no more; the reason is in its dead letter, if the group has those."""
        self._queue._settle(self._lease, rejected(reason))

    def extend(self) -> None:
        """Hold it for another lock duration, and for another `lease_max` at most."""
        self._queue._thread.call(self._queue._core.extend(self._lease))


class Queue:
    """A topic as a work queue, read by a share group; may be used by several threads.

    Its consumers are the members of `group`, which is named as the topic by default. Connections
    and brokers may come and go: `get` waits for them, a message stays held, and `ack` is repeated.
    `put` gives up after `timeout` seconds. Owns a thread with an event loop until it is closed.
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
        self._thread = LoopThread(f"the queue of {topic}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back what is held, as if it had not been delivered, and leave the group."""
        self._thread.close(self._core.close())

    def put(
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
        return self._thread.call(
            self._core.puts.put(value, key=key, headers=headers, delay_s=delay, at=at, ttl_s=ttl)
        )

    def get(self, max: int = 1, wait: float | None = None) -> list[Message]:  # noqa: A002
        """Up to `max` messages; none if there are none within `wait` seconds."""
        return [self._held(lease) for lease in self._thread.call(self._core.get(max, wait))]

    @contextmanager
    def take(self, wait: float | None = None) -> Iterator[Message]:
        """A message: leaving the block acknowledges it, an exception gives it back.

        Raises `QueueEmpty` if there is none within `wait` seconds.
        """
        leases = self._thread.call(self._core.get(1, wait))
        if not leases:
            raise QueueEmpty(f"no message of {self._core.topic} within {wait} s")
        message = self._held(leases[0], threading.current_thread())
        try:
            yield message
        except BaseException:
            if message.is_held:
                self._thread.call(self._core.give_back(leases[0]))
            raise
        if not message.is_settled:
            message.ack()

    def work(
        self,
        handler: Callable[[Message], object],
        *,
        concurrency: int = 1,
        stop: threading.Event | None = None,
    ) -> int:
        """Have `handler` called with messages in so many threads until `stop` is set.

        A message is acknowledged when the handler returns and given back when it raises, unless it
        has settled it. What is held when `stop` is set, or on Ctrl-C, is finished. Returns how many
        there were.
        """
        stop = stop or threading.Event()
        stopping = asyncio.Event()
        ended: list[BaseException] = []  # by a handler
        with ThreadPoolExecutor(max(concurrency, 1), "ottla-work") as threads:

            async def handle(lease: Lease) -> None:
                problem = await self._thread.loop.run_in_executor(
                    threads, self._handle, handler, lease
                )
                if problem is not None:
                    ended.append(problem)
                    stopping.set()

            workers = Workers(
                self._core,
                handle,
                concurrency,
                stopping,
                lambda: stop.is_set() or stopping.is_set(),
            )
            working = self._thread.submit(workers.run())
            try:
                while not stop.is_set() and not working.done():
                    wait([working], _LOOK_S)
            finally:
                self._thread.loop.call_soon_threadsafe(stopping.set)
                wait([working])
        if ended:
            raise ended[0]
        return working.result()

    def _handle(self, handler: Callable[[Message], object], lease: Lease) -> BaseException | None:
        """Call a handler, in its thread; returns what is to end the work, SystemExit for one."""
        message = self._held(lease)
        try:
            handler(message)
            if not message.is_settled:
                message.ack()
        except LeaseLost as problem:
            log.warning("message is delivered again", extra={"reason": problem})
        except Exception as problem:  # noqa: BLE001  # whatever a handler raises
            log_failed(lease, problem)
            if message.is_held:
                self._thread.call(self._core.give_back(lease))
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that works
            if message.is_held:
                self._thread.call(self._core.give_back(lease))
            return problem
        return None

    def _settle(self, lease: Lease, settlement: Settlement) -> None:
        self._thread.call(self._core.settle(lease, settlement))

    def _held(self, lease: Lease, owner: threading.Thread | None = None) -> Message:
        """The message of a lease, which is kept while the message and its owner are alive."""
        message = Message(self, lease)
        alive = weakref.ref(message)
        lease.is_wanted = lambda: alive() is not None and (owner is None or owner.is_alive())
        return message
