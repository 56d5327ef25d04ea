"""A topic of one partition that every process reads for itself, record by record."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from ottla.client.admin import create_topic
from ottla.client.client import Client
from ottla.client.errors import ClientError, Refused
from ottla.client.partitions import FetchLimits, Isolation, list_offsets
from ottla.client.reader import ReadRange, fetch_round, take
from ottla.errors import ErrorCode
from ottla.model import Offset, TopicPartition
from ottla.protocol.messages.offsets import EARLIEST, LATEST
from ottla.records.batch import Record

log = logging.getLogger("ottla.kombu")

_LIMITS: Final = FetchLimits(wait_ms_max=500)
_PAUSE_S: Final = 0.5


async def ensure_topic(
    client: Client, name: str, partitions: int, settings: Mapping[str, str]
) -> None:
    """Create a topic, unless there is one of that name."""

    async def attempt() -> None:
        with_known: Mapping[str, str] = settings
        while True:
            try:
                await create_topic(client, name, partitions=partitions, settings=with_known)
            except Refused as problem:
                if problem.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                    return
                if problem.code is not ErrorCode.INVALID_CONFIG or not with_known:
                    raise
                with_known = {}  # a broker that does not know them
                continue
            return

    await client.retry(attempt)
    await client.describe_or_create(name)


class FollowedTopic:
    """A reader from one end of the topic; `take` is called with every record, on the loop.

    `reader` is a client of its own: a fetch that waits holds up other requests.
    """

    def __init__(
        self,
        client: Client,
        reader: Client,
        topic: str,
        take_record: Callable[[Record], None],
    ) -> None:
        self._client = client
        self._reader = reader
        self._tp = TopicPartition(topic, 0)
        self._take = take_record
        self._position = Offset(0)
        self._following: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._moved = asyncio.Event()

    async def start(self, *, from_beginning: bool) -> None:
        """Return when the topic is read from one end on; from the beginning, when all is read."""
        async with self._starting:
            if self._following is not None:
                return
            side = EARLIEST if from_beginning else LATEST
            found = await list_offsets(self._client, {self._tp: side})
            self._position = found[self._tp] or Offset(0)
            self._following = asyncio.create_task(self._follow())
        await self.catch_up()

    async def catch_up(self) -> None:
        """Return when what is in the topic now was read."""
        end = (await list_offsets(self._client, {self._tp: LATEST}))[self._tp] or Offset(0)
        while self._position < end:
            self._moved.clear()
            await self._moved.wait()

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
        await self._reader.close()

    async def _follow(self) -> None:
        while True:
            part = ReadRange(self._position)
            try:
                fetched = await fetch_round(
                    self._reader, {self._tp: part}, Isolation.READ_UNCOMMITTED, _LIMITS
                )
            except ClientError as problem:
                await self._recover(problem)
                continue
            records, rest = take(self._tp, fetched[self._tp], part)
            for record in records:
                self._take(record)
            self._position = rest.start
            self._moved.set()

    async def _recover(self, problem: ClientError) -> None:
        log.warning("topic not read", extra={"topic": self._tp.topic, "reason": problem})
        await asyncio.sleep(_PAUSE_S)
        if isinstance(problem, Refused) and problem.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            with suppress(ClientError):  # what was not read is deleted
                found = await list_offsets(self._client, {self._tp: EARLIEST})
                self._position = found[self._tp] or self._position
