"""Reads partitions record by record, from given offsets to given ends or for ever."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import ConnectionLost, DeadlineExceeded, Unreachable, Unreadable
from ottla.client.isolation import readable
from ottla.client.partitions import DEFAULT_LIMITS, Fetched, FetchLimits, Isolation, fetch
from ottla.errors import ApiError
from ottla.model import Offset, TopicPartition
from ottla.records.batch import Record, check_stored, records

DECOMPRESSED_BYTES_MAX: Final = 256 << 20  # of one batch; a larger one is an attack


@dataclass(frozen=True, slots=True)
class ReadRange:
    """From `start` on, up to but without `end`; without an end, for ever."""

    start: Offset
    end: Offset | None = None

    def is_done(self) -> bool:
        return self.end is not None and self.start >= self.end


async def read(
    client: Client,
    ranges: Mapping[TopicPartition, ReadRange],
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    limits: FetchLimits = DEFAULT_LIMITS,
) -> AsyncIterator[tuple[TopicPartition, list[Record]]]:
    """Records of one partition at a time, in its order; ends when every range is read.

    Follows partitions that change their leader. What cannot be read any more is `Refused`.
    """
    left = {tp: part for tp, part in ranges.items() if not part.is_done()}
    while left:
        for tp, fetched in (await fetch_round(client, left, isolation, limits)).items():
            found, left[tp] = take(tp, fetched, left[tp])
            if found:
                yield tp, found
        left = {tp: part for tp, part in left.items() if not part.is_done()}


async def fetch_round(
    client: Client,
    ranges: Mapping[TopicPartition, ReadRange],
    isolation: Isolation,
    limits: FetchLimits,
) -> dict[TopicPartition, Fetched]:
    """Ask every leader once, all at the same time."""

    async def attempt() -> dict[TopicPartition, Fetched]:
        asked = [
            fetch(
                client,
                leader,
                {tp: ranges[tp].start for tp in tps},
                limits=limits,
                isolation=isolation,
            )
            for leader, tps in (await client.by_leader(ranges)).items()
        ]
        together = dict[TopicPartition, Fetched]()
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer
            together |= answer
        return together

    return await client.retry(attempt, on=(Unreachable, ConnectionLost, DeadlineExceeded))


def take(tp: TopicPartition, fetched: Fetched, part: ReadRange) -> tuple[list[Record], ReadRange]:
    """The records of a range among what was fetched, and what is left of the range."""
    found = list[Record]()
    position = part.start
    try:
        for header, batch in readable(fetched.batches, fetched.aborted):
            if batch is not None:
                found += _open(batch, part)
            position = max(position, header.next_offset)
    except ApiError as problem:
        raise Unreadable(f"{tp} from offset {position} on: {problem}") from None
    return found, ReadRange(position, part.end)


def _open(batch: memoryview, part: ReadRange) -> list[Record]:
    """The records of a batch that belong to the range."""
    check_stored(batch)
    return [
        record
        for record in records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
        if record.offset >= part.start and (part.end is None or record.offset < part.end)
    ]
