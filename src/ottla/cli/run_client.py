"""Runs a command's coroutine with a client of the cluster."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from ottla.cli.options import BROKER_VARIABLE, is_from_environment, parse_brokers
from ottla.client.client import Client
from ottla.client.connection import CLOSED
from ottla.client.errors import ClientError, ClusterUnreachable, NoSuchGroup, NoSuchTopic
from ottla.errors import did_you_mean
from ottla.model import Endpoint

_PROBE_S: Final = 2.0

Result = TypeVar("Result")


def run_with_client(broker: str, work: Callable[[Client], Awaitable[Result]]) -> Result:
    """Run `work` with a client of the cluster that `broker` belongs to, and close the client.

    Errors say what to do: which setting names the broker, which topic was meant.
    """

    async def run() -> Result:
        async with Client(parse_brokers(broker), client_id="ottla-cli") as client:
            try:
                return await work(client)
            except (NoSuchTopic, NoSuchGroup) as problem:
                raise await with_hint(client, problem) from None

    try:
        return asyncio.run(run())
    except ClusterUnreachable as problem:
        advice = asyncio.run(_advise(broker, str(problem)))
        raise ClusterUnreachable(f"{problem}; {advice}") from None


async def with_hint(
    client: Client, problem: NoSuchTopic | NoSuchGroup
) -> NoSuchTopic | NoSuchGroup:
    """The error with the topic or group that was meant, if there is one with a similar name."""
    if isinstance(problem, NoSuchTopic):
        others = "; `ottla topic list` shows the topics, `ottla topic create` creates one"
        names = await _names(_topic_names(client))
        hint = "" if problem.topic in names else did_you_mean(problem.topic, names)
        return NoSuchTopic(problem.topic, problem.partition, hint or others)
    names = await _names(_group_names(client))
    hint = did_you_mean(problem.group_id, names)
    return NoSuchGroup(problem.group_id, hint or "; `ottla group list` shows the groups that exist")


async def _names(names: Awaitable[list[str]]) -> list[str]:
    try:
        return await names
    except ClientError:
        return []  # a hint is not worth an error of its own


async def _topic_names(client: Client) -> list[str]:
    return list((await client.describe(None)).topics)


async def _group_names(client: Client) -> list[str]:
    from ottla.client.groups import list_groups  # noqa: PLC0415  # only this mistake needs it

    return [group.group_id for group in await list_groups(client)]


async def _advise(broker: str, problem: str) -> str:
    """The next step after no broker could be reached."""
    silent = [endpoint for endpoint in parse_brokers(broker) if f"{endpoint}: {CLOSED}" in problem]
    for endpoint in silent:
        if await _speaks_tls(endpoint):
            return f"{endpoint} speaks TLS, which ottla does not: name a port without it"
    if is_from_environment(broker):
        return (
            f"{BROKER_VARIABLE}={broker} names it: change or unset it, or give --broker;"
            " `ottla serve` starts a broker"
        )
    return "`ottla serve` starts a broker, --broker names another"


async def _speaks_tls(endpoint: Endpoint) -> bool:
    """True if a TLS handshake succeeds. Many servers close a connection that begins otherwise."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only the protocol matters
    try:
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(*endpoint, ssl=context)
    except (OSError, TimeoutError):  # ssl.SSLError is one
        return False
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()
    return True
