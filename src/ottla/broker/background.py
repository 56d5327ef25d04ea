"""All of the broker's background life, in one readable list."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chore:
    """Something done again and again; `interval_s` is asked each time, for settings may change."""

    name: str
    interval_s: Callable[[], float]
    work: Callable[[], Awaitable[None] | None]


async def run(chores: Sequence[Chore]) -> None:
    """One failing chore stops them all, and the broker with them: that is the point."""
    async with asyncio.TaskGroup() as tasks:
        for chore in chores:
            tasks.create_task(_repeat(chore), name=f"ottla-{chore.name}")


async def _repeat(chore: Chore) -> None:
    while True:
        await asyncio.sleep(chore.interval_s())
        done = chore.work()
        if done is not None:
            await done
