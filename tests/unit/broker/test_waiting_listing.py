"""Pages of what waits: whole and in order, also while turns of the loop lie between."""

import asyncio
from typing import cast

import pytest

from fakes import build
from fakes.waiting_log import WaitingLog, record
from ottla.broker.services import Services
from ottla.broker.waiting_listing import list_waiting
from ottla.broker.waiting_partition import WaitingPartition
from ottla.errors import NotLeader
from ottla.protocol.messages.admin import Json
from ottla.replication.partition import LeaderPartition


class OneReplica:
    """The services of a broker that leads one partition: all that a listing asks for."""

    def __init__(self, partition: LeaderPartition) -> None:
        self._partition = partition
        self.replicas = self

    def locate(self, topic: str, partition: int) -> LeaderPartition:
        assert (topic, partition) == (build.TP.topic, build.TP.partition)
        return self._partition


async def ask(log: WaitingLog, **more: Json) -> dict[str, Json]:
    body: dict[str, Json] = {"topic": build.TP.topic, "partition": build.TP.partition, **more}
    return await list_waiting(cast("Services", OneReplica(log.partition)), body)


def tickets(found: dict[str, Json]) -> list[int]:
    return [row["ticket"] for row in cast("list[dict[str, int]]", found["rows"])]


def filled(batches: int, size: int) -> WaitingLog:
    """Batches of records; those that were sent first are due last."""
    log = WaitingLog()
    count = batches * size
    for first in range(0, count, size):
        log.send(
            [record(bytes(40), delay_ms=60_000 + count - at) for at in range(first, first + size)]
        )
    return log


def test_pages_are_all_that_waits_in_order() -> None:
    log = filled(7, 300)

    async def pages() -> list[int]:
        found, after = list[int](), None
        for _ in range(9):
            page = await ask(log, limit=250, after=after)
            found += tickets(page)
            after = page["after"]
        assert after is None
        return found

    assert asyncio.run(pages()) == list(range(2099, -1, -1))


def test_a_record_that_cannot_be_read_when_it_is_due_is_listed() -> None:
    log = filled(1, 5)
    due, _ = log.waiting.pending.take_due(log.now_ms + 60_002, 100)
    log.waiting.stuck += due  # as a release leaves them
    assert [one.ticket for one in due] == [4, 3]
    assert tickets(asyncio.run(ask(log))) == [4, 3, 2, 1, 0]


def test_a_page_ends_with_the_leadership() -> None:
    log = filled(3, 300)

    async def scenario() -> None:
        page = asyncio.create_task(ask(log))
        await asyncio.sleep(0)
        assert not page.done(), "it has given way"
        waiting = log.partition.waiting
        assert isinstance(waiting, WaitingPartition)
        waiting.close()
        with pytest.raises(NotLeader):
            await page

    asyncio.run(scenario())
