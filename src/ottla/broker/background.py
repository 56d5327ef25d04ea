"""Chores: background work that is repeated at intervals."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chore:
    """Work to repeat; `interval_s` is called each time, for settings may change."""

    name: str
    interval_s: Callable[[], float]
    work: Callable[[], Awaitable[None] | None]


async def run(chores: Sequence[Chore]) -> None:
    """Repeat all chores until one fails: then all are cancelled, and its exception is raised."""
    assert len({chore.name for chore in chores}) == len(chores), "every chore has its own name"
    async with asyncio.TaskGroup() as tasks:
        for chore in chores:
            tasks.create_task(_repeat(chore), name=f"ottla-{chore.name}")


async def _repeat(chore: Chore) -> None:
    while True:
        await asyncio.sleep(chore.interval_s())
        done = chore.work()
        if done is not None:
            await done
