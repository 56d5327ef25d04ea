"""Reads records of partitions, from given offsets to given ends or without end."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import TRANSPORT_ERRORS, Unreadable
from ottla.client.isolation import readable
from ottla.client.partitions import DEFAULT_LIMITS, Fetched, FetchLimits, Isolation, fetch
from ottla.errors import ApiError
from ottla.model import Offset, TopicPartition
from ottla.records.batch import (
    BatchHeader,
    Buffer,
    Record,
    check_stored,
    open_payload,
    records,
)

DECOMPRESSED_BYTES_MAX: Final = 256 << 20  # of one batch; refuses decompression bombs
FIRST_FETCH_BYTES: Final = 64 << 10  # of each partition


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The offsets from `start` to `end`, exclusive; None means without end."""

    start: Offset
    end: Offset | None = None

    def is_done(self) -> bool:
        return self.end is not None and self.start >= self.end


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """A batch, and the range of offsets that is wanted of it; its CRC is not checked yet."""

    tp: TopicPartition
    header: BatchHeader
    data: memoryview
    part: ReadRange

    def payload(self) -> Buffer:
        """The encoded records of the batch, decompressed, after its CRC was checked."""
        with self._explained():
            check_stored(self.data)
            return open_payload(self.data, self.header, DECOMPRESSED_BYTES_MAX)

    def records(self) -> list[Record]:
        """The wanted records, after the CRC was checked."""
        part = self.part
        with self._explained():
            check_stored(self.data)
            return [
                record
                for record in records(self.data, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
                if record.offset >= part.start and (part.end is None or record.offset < part.end)
            ]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ApiError as problem:
            start = max(self.part.start, self.header.base_offset)
            raise Unreadable(f"{self.tp} from offset {start} on: {problem}") from None


async def read(
    client: Client,
    ranges: Mapping[TopicPartition, ReadRange],
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    limits: FetchLimits = DEFAULT_LIMITS,
) -> AsyncIterator[list[FetchedBatch]]:
    """Batches of one partition at a time, in its order; ends when every range is read.

    Follows partitions to new leaders. An offset out of range is `Refused`. The first fetch is
    small, so that the first records need not wait for megabytes of others.
    """
    left = {tp: part for tp, part in ranges.items() if not part.is_done()}
    round_limits = replace(
        limits, partition_bytes_max=min(FIRST_FETCH_BYTES, limits.partition_bytes_max)
    )
    while left:
        for tp, fetched in (await fetch_round(client, left, isolation, round_limits)).items():
            found, left[tp] = take_batches(tp, fetched, left[tp])
            if found:
                yield found
        left = {tp: part for tp, part in left.items() if not part.is_done()}
        round_limits = limits


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
    found, rest = take_batches(tp, fetched, part)
    return [record for batch in found for record in batch.records()], rest


def take_batches(
    tp: TopicPartition, fetched: Fetched, part: ReadRange
) -> tuple[list[FetchedBatch], ReadRange]:
    """The fetched batches that are visible, and the rest of the range."""
    found = list[FetchedBatch]()
    position = part.start
    try:
        for header, batch in readable(fetched.batches, fetched.aborted):
            if batch is not None and header.record_count:
                found.append(FetchedBatch(tp, header, batch, part))
            position = max(position, header.next_offset)
    except ApiError as problem:
        raise Unreadable(f"{tp} from offset {position} on: {problem}") from None
    assert position >= part.start, f"{tp}: a read went back from {part.start} to {position}"
    return found, ReadRange(position, part.end)
