"""Awaiting work that reports its end by a callback."""

import asyncio
from collections.abc import Callable

from ottla.storage.disk_worker import Worker

Done = Callable[[Exception | None], None]


async def wait_called(begin: Callable[[Done], object]) -> None:
    """Return when the callback that `begin` is given is called, or raise what it is called with."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(problem: Exception | None) -> None:
        if done.done():
            return  # cancelled
        if problem is None:
            done.set_result(None)
        else:
            done.set_exception(problem)

    begin(settle)
    await done


async def do_work(worker: Worker, work: Callable[[], None]) -> None:
    """Have the worker do something, and wait for it."""
    await wait_called(lambda done: worker.run(lambda _: work(), done))
