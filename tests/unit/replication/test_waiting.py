"""Callbacks that are awaited."""

import asyncio

import pytest

from fakes.workers import LaterWorker
from ottla.replication.waiting import Done, do_work, wait_called


def test_waiting_ends_with_the_callback() -> None:
    async def scenario() -> None:
        begun: list[Done] = []
        waiting = asyncio.create_task(wait_called(begun.append))
        await asyncio.sleep(0)
        assert not waiting.done()
        begun[0](None)
        await waiting

    asyncio.run(scenario())


def test_what_the_callback_is_given_is_raised() -> None:
    async def scenario() -> None:
        with pytest.raises(OSError, match="broken"):
            await wait_called(lambda done: done(OSError("broken")))

    asyncio.run(scenario())


def test_a_callback_after_a_cancellation_does_no_harm() -> None:
    async def scenario() -> None:
        begun: list[Done] = []
        waiting = asyncio.create_task(wait_called(begun.append))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        begun[0](None)
        begun[0](OSError("too late"))

    asyncio.run(scenario())


def test_work_is_done_by_the_worker() -> None:
    def fail() -> None:
        raise OSError("broken")

    async def scenario() -> None:
        worker, done = LaterWorker(), list[str]()
        first = asyncio.create_task(do_work(worker, lambda: done.append("done")))
        second = asyncio.create_task(do_work(worker, fail))
        await asyncio.sleep(0)
        assert (done, len(worker.steps)) == ([], 2)
        worker.work()
        await first
        assert done == ["done"]
        with pytest.raises(OSError, match="broken"):
            await second

    asyncio.run(scenario())
