"""A limit on what replicas copy while a command moves them, taken back when it ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ottla.cli import terminal
from ottla.client.client import Client
from ottla.client.configs import (
    ALL_BROKERS,
    Resource,
    ResourceKind,
    ShownSetting,
    Source,
    alter_settings,
    settings_of,
)
from ottla.client.errors import ClientError, Refused
from ottla.errors import ErrorCode

_SETTING: Final = "replication.catchup.bytes.per.s"
_EVERY: Final = Resource(ResourceKind.BROKER, ALL_BROKERS)
_TAKE_BACK_S: Final = 15.0


@asynccontextmanager
async def throttled(client: Client, bytes_per_s: int | None) -> AsyncIterator[None]:
    """Limit what each broker copies in a second to replicas that are not in sync; None: no limit.

    At the end the setting is what it was before, also after Ctrl-C; if that fails, an error says
    how to do it. What another user has set meanwhile stays.
    """
    if bytes_per_s is None:
        yield
        return
    before = await _of_all_brokers(client)
    await _check_no_own(client)
    try:
        await alter_settings(client, _EVERY, assign={_SETTING: str(bytes_per_s)}, remove=[])
        yield
    finally:
        try:
            async with asyncio.timeout(_TAKE_BACK_S):
                await _take_back(client, str(bytes_per_s), before)
        except (ClientError, TimeoutError) as problem:
            reason = str(problem) or "no broker responds"
            terminal.print_error(
                f"the limit of {bytes_per_s} bytes a second could not be taken back"
                f" ({reason}): {_advice(before)}"
            )


async def _take_back(client: Client, ours: str, before: str | None) -> None:
    now = await client.retry(lambda: _of_all_brokers(client))
    if now == before:
        return
    if now != ours:
        terminal.print_note(f"{_SETTING} was changed to {now or 'its default'} meanwhile: it stays")
        return
    assign, remove = ({}, [_SETTING]) if before is None else ({_SETTING: before}, [])
    await client.retry(lambda: alter_settings(client, _EVERY, assign=assign, remove=remove))


async def _of_all_brokers(client: Client) -> str | None:
    """The value that is set for all brokers; None if none is."""
    return _value((await settings_of(client, [_EVERY]))[_EVERY], Source.ALL_BROKERS)


async def _check_no_own(client: Client) -> None:
    """Refuse if a broker has a value of its own: the limit would not hold there."""
    for broker in sorted((await client.describe(None)).brokers):
        one = Resource(ResourceKind.BROKER, str(broker))
        own = _value((await settings_of(client, [one]))[one], Source.BROKER)
        if own is not None:
            raise Refused(
                ErrorCode.INVALID_CONFIG,
                str(one),
                f"it has {_SETTING}={own} of its own, which wins over --throttle:"
                f" `ottla config unset broker {broker} {_SETTING}`, or leave --throttle out",
            )


def _value(settings: list[ShownSetting], source: Source) -> str | None:
    for setting in settings:
        if setting.name == _SETTING and setting.source is source:
            return setting.value
    return None


def _advice(before: str | None) -> str:
    if before is None:
        return f"`ottla config unset broker all {_SETTING}` does it"
    return f"`ottla config set broker all {_SETTING}={before}` does it"
