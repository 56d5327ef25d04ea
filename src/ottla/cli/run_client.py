"""Runs a command's coroutine with a client of the cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ottla.cli.options import BROKER_VARIABLE, is_from_environment, parse_brokers
from ottla.client.client import Client
from ottla.client.errors import ClientError, ClusterUnreachable, NoSuchTopic
from ottla.errors import did_you_mean

Result = TypeVar("Result")


def run_with_client(broker: str, work: Callable[[Client], Awaitable[Result]]) -> Result:
    """Run `work` with a client of the cluster that `broker` belongs to, and close the client.

    Errors say what to do: which setting names the broker, which topic was meant.
    """

    async def run() -> Result:
        async with Client(parse_brokers(broker), client_id="ottla-cli") as client:
            try:
                return await work(client)
            except NoSuchTopic as problem:
                raise await with_hint(client, problem) from None

    try:
        return asyncio.run(run())
    except ClusterUnreachable as problem:
        raise ClusterUnreachable(f"{problem}; {_advice(broker)}") from None


async def with_hint(client: Client, problem: NoSuchTopic) -> NoSuchTopic:
    """The error with the topic that was meant, if there is one with a similar name."""
    try:
        topics = (await client.describe(None)).topics
    except ClientError:
        topics = {}
    hint = "" if problem.topic in topics else did_you_mean(problem.topic, topics)
    others = "; `ottla topic list` shows the topics, `ottla topic create` creates one"
    return NoSuchTopic(problem.topic, problem.partition, hint or others)


def _advice(broker: str) -> str:
    if is_from_environment(broker):
        return (
            f"{BROKER_VARIABLE}={broker} names it: change or unset it, or give --broker;"
            " `ottla serve` starts a broker"
        )
    return "`ottla serve` starts a broker, --broker names another"
