"""Runs a command's coroutine with a client of the cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ottla.cli.options import parse_brokers
from ottla.client.client import Client

Result = TypeVar("Result")


def run_with_client(broker: str, work: Callable[[Client], Awaitable[Result]]) -> Result:
    """Run `work` with a client of the cluster that `broker` belongs to, and close the client."""

    async def run() -> Result:
        async with Client(parse_brokers(broker), client_id="ottla-cli") as client:
            return await work(client)

    return asyncio.run(run())
