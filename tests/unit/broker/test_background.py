"""Chores: repeated at an interval that may change; one that fails ends all."""

import asyncio

import pytest

from ottla.broker import background
from ottla.broker.background import Chore


def test_a_chore_is_repeated_at_the_interval_of_that_time() -> None:
    async def scenario() -> None:
        intervals = iter([0.0, 0.0, 3600.0])
        done = asyncio.Event()
        calls = []

        def work() -> None:
            calls.append(1)
            if len(calls) == 2:
                done.set()

        task = asyncio.ensure_future(
            background.run([Chore("count", lambda: next(intervals), work)])
        )
        async with asyncio.timeout(30):
            await done.wait()
        await asyncio.sleep(0)
        assert len(calls) == 2, "the third waits for an hour"
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(scenario())


def test_a_chore_that_fails_ends_the_others_and_is_raised() -> None:
    async def scenario() -> None:
        cancelled = asyncio.Event()

        async def wait() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                cancelled.set()

        async def fail() -> None:
            await asyncio.sleep(0)
            raise KeyError("planted")

        chores = [Chore("wait", lambda: 0.0, wait), Chore("fail", lambda: 0.01, fail)]
        with pytest.raises(ExceptionGroup) as raised:
            await background.run(chores)
        assert isinstance(raised.value.exceptions[0], KeyError)
        assert cancelled.is_set()

    asyncio.run(scenario())
