"""Reads records of partitions, from given offsets to given ends or without end."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import TRANSPORT_ERRORS, Unreadable
from ottla.client.isolation import readable
from ottla.client.partitions import DEFAULT_LIMITS, Fetched, FetchLimits, Isolation, fetch
from ottla.errors import ApiError
from ottla.model import Offset, TopicPartition
from ottla.records.batch import Record, check_stored, records

DECOMPRESSED_BYTES_MAX: Final = 256 << 20  # of one batch; refuses decompression bombs


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The offsets from `start` to `end`, exclusive; None means without end."""

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

    Follows partitions to new leaders. An offset out of range is `Refused`.
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
    """Send one Fetch to every leader, concurrently."""

    async def attempt() -> dict[TopicPartition, Fetched]:
        fetches = [
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
        for response in await asyncio.gather(*fetches, return_exceptions=True):
            if isinstance(response, BaseException):
                raise response
            together |= response
        return together

    return await client.retry(attempt, on=TRANSPORT_ERRORS)


def take(tp: TopicPartition, fetched: Fetched, part: ReadRange) -> tuple[list[Record], ReadRange]:
    """The fetched records inside a range, and the rest of the range."""
    found = list[Record]()
    position = part.start
    try:
        for header, batch in readable(fetched.batches, fetched.aborted):
            if batch is not None:
                found += _open(batch, part)
            position = max(position, header.next_offset)
    except ApiError as problem:
        raise Unreadable(f"{tp} from offset {position} on: {problem}") from None
    assert position >= part.start, f"{tp}: a read went back from {part.start} to {position}"
    return found, ReadRange(position, part.end)


def _open(batch: memoryview, part: ReadRange) -> list[Record]:
    """The records of a batch inside the range."""
    check_stored(batch)
    return [
        record
        for record in records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
        if record.offset >= part.start and (part.end is None or record.offset < part.end)
    ]
