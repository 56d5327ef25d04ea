"""Moves of partitions that a command carries out: a few at a time, and followed to their end."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.cli import terminal
from ottla.client.client import Client
from ottla.client.configs import ALL_BROKERS, Resource, ResourceKind, settings_of
from ottla.client.errors import Refused
from ottla.client.placement import list_moves, move_partitions
from ottla.clock import SystemClock
from ottla.model import BrokerId, TopicPartition

_LIMIT: Final = "reassignment.concurrent.max"
_LIMIT_DEFAULT: Final = 10  # where brokers do not have the setting
_LOOK_S: Final = 0.3  # between two looks at the moves under way

Targets = Mapping[TopicPartition, Sequence[BrokerId]]
Refusals = dict[TopicPartition, Refused]


async def carry_out(client: Client, targets: Targets, *, is_followed: bool) -> Refusals:
    """Move partitions, so many at a time as the cluster allows; returns when all have moved.

    Moves of others count too. With `is_followed` each partition that has moved is named. Returns
    the moves that were refused.
    """
    limit = await _limit(client)
    left, under_way = list(targets), set[TopicPartition]()
    refused = Refusals()
    progress = terminal.Progress(SystemClock())
    while left or under_way:
        moving = await client.retry(lambda: list_moves(client))
        for tp in sorted(under_way - moving.keys()):
            if is_followed:
                progress.clear()
                terminal.print_note(f"{tp} has moved to {_numbers(targets[tp])}")
        under_way &= moving.keys()
        room = max(0, limit - len(moving))
        some, left = left[:room], left[room:]
        if some:
            refused |= await move_partitions(client, {tp: targets[tp] for tp in some})
            under_way |= set(some) - refused.keys()
        progress.show(f"{len(left) + len(under_way)} of {len(targets)} partitions to move")
        if left or under_way:
            await asyncio.sleep(_LOOK_S)
    progress.clear()
    return refused


def print_refusals(refused: Refusals) -> None:
    """Print the reason of every move or election that was refused."""
    for _, problem in sorted(refused.items()):
        terminal.print_error(str(problem))


async def _limit(client: Client) -> int:
    every = Resource(ResourceKind.BROKER, ALL_BROKERS)
    for setting in (await settings_of(client, [every]))[every]:
        if setting.name == _LIMIT and setting.value is not None:
            return int(setting.value)
    live = min((await client.describe(None)).brokers, default=None)
    if live is None:
        return _LIMIT_DEFAULT
    one = Resource(ResourceKind.BROKER, str(live))
    values = {item.name: item.value for item in (await settings_of(client, [one]))[one]}
    return int(values.get(_LIMIT) or _LIMIT_DEFAULT)


def _numbers(brokers: Sequence[BrokerId]) -> str:
    return ",".join(map(str, brokers))
