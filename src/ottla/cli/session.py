"""From a command to a client: opens one, lets the command ask, closes it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ottla.cli.options import parse_brokers
from ottla.client.client import Client

Result = TypeVar("Result")


def ask(broker: str, question: Callable[[Client], Awaitable[Result]]) -> Result:
    """Run `question` with a client of the cluster that `broker` belongs to."""

    async def session() -> Result:
        async with Client(parse_brokers(broker), client_id="ottla-cli") as client:
            return await question(client)

    return asyncio.run(session())
