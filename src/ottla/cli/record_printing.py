"""Fetched batches as printed text, in pieces that are written when they are there."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Final

from ottla.cli.async_io import AsyncOutput
from ottla.cli.read_ranges import log_edges
from ottla.cli.record_columns import RecordColumns, decode_columns
from ottla.cli.record_output import Print
from ottla.client.client import Client
from ottla.client.errors import ClientError
from ottla.client.partitions import Isolation
from ottla.client.reader import FetchedBatch, ReadRange, read
from ottla.model import Offset, TimestampMs, TopicPartition

_PIECE_BYTES: Final = 64 << 10  # small batches are written together

_Located = tuple[TimestampMs, TopicPartition, RecordColumns, int]  # a record by its index


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of some records; `end` is the offset behind them."""

    text: bytes
    record_count: int
    end: Offset


def print_batches(
    batches: Iterable[FetchedBatch], printer: Print, count_max: int | None
) -> Iterator[Piece]:
    """The text of the batches of one partition, up to `count_max` records.

    Each batch is decoded only when the one before it can be written; text before a damaged batch
    comes before its error.
    """
    texts, size_bytes, count, end = list[bytes](), 0, 0, Offset(0)
    left = count_max
    for batch in batches:
        try:
            records = decode_columns(batch)
        except ClientError:
            if texts:
                yield Piece(b"".join(texts), count, end)
            raise
        end = batch.header.next_offset
        if left is not None:
            if left < len(records):
                end = Offset(records.offsets()[left])
                records = records.part(0, left)
            left -= len(records)
        texts.append(printer(batch.tp, records))
        size_bytes += len(texts[-1])
        count += len(records)
        if size_bytes >= _PIECE_BYTES or left == 0:
            yield Piece(b"".join(texts), count, end)
            texts, size_bytes, count = [], 0, 0
        if left == 0:
            return
    if texts:
        yield Piece(b"".join(texts), count, end)


async def print_ranges(
    client: Client,
    ranges: dict[TopicPartition, ReadRange],
    printer: Print,
    output: AsyncOutput,
    *,
    count_max: int | None,
    isolation: Isolation,
) -> None:
    """Print the records of ranges as they come, up to `count_max`."""
    left = count_max
    async for batches in read(client, ranges, isolation=isolation):
        for piece in print_batches(batches, printer, left):
            await output.write(piece.text)
            if left is not None:
                left -= piece.record_count
        if left == 0:
            return


async def print_tail(
    client: Client,
    tps: Sequence[TopicPartition],
    count: int,
    printer: Print,
    output: AsyncOutput,
    *,
    isolation: Isolation,
) -> dict[TopicPartition, Offset]:
    """Print the newest `count` records of all partitions together; returns where the logs ended.

    By time across partitions, in order within each. Markers, aborted and compacted records take
    offsets too: where a partition had too few records, its range is read again from twice as far.
    """
    starts, ends = await log_edges(client, tps, isolation)
    newest = dict[TopicPartition, deque[_Located]]()
    length = count
    missing = list(tps)
    while missing:
        ranges = {
            tp: ReadRange(Offset(max(starts[tp], ends[tp] - length)), ends[tp]) for tp in missing
        }
        newest |= {tp: deque(maxlen=count) for tp in missing}
        async for batches in read(client, ranges, isolation=isolation):
            for batch in batches:
                records = decode_columns(batch)
                newest[batch.tp].extend(
                    (time_ms, batch.tp, records, index)
                    for index, time_ms in enumerate(records.timestamps_ms())
                )
        missing = [
            tp for tp in missing if len(newest[tp]) < count and ranges[tp].start > starts[tp]
        ]
        length *= 2
    in_order = list(merge(*newest.values(), key=lambda located: located[0]))[-count:]
    for _, tp, records, index in in_order:
        await output.write(printer(tp, records.part(index, index + 1)))
    return ends
