"""An event loop in a thread of its own, for programs without one."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from ottla.work.errors import QueueClosed

Result = TypeVar("Result")


class LoopThread:
    """Owner of a thread that runs an event loop until it is closed."""

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self._name = name
        self._is_closed = False
        # A daemon: a program that does not close it can end.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Start a coroutine; returns a future of its result."""
        if self._is_closed:
            work.close()
            raise QueueClosed(f"{self._name} was closed")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of a coroutine; it is cancelled if the calling thread is interrupted."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run a last coroutine and end the thread; later calls do nothing."""
        if self._is_closed:
            last.close()
            return
        future = self.submit(last)
        self._is_closed = True
        try:
            future.result()
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()
