"""The offsets that `consume` reads, found from the positions of its command line."""

from collections.abc import Sequence
from typing import Final

from ottla.cli import terminal
from ottla.client.client import Client
from ottla.client.partitions import Isolation, list_offsets
from ottla.client.positions import AtOffset, AtTime, BeforeEnd, Edge, LogPosition
from ottla.client.reader import ReadRange
from ottla.errors import UsageRefused
from ottla.model import Offset, TopicPartition
from ottla.protocol.messages.offsets import EARLIEST, LATEST

EDGES: Final = {Edge.BEGINNING: EARLIEST, Edge.END: LATEST}

Offsets = dict[TopicPartition, Offset]


def check_order(first: LogPosition, last: LogPosition | None) -> None:
    """Refuse an end before the start, as far as the two can be compared."""
    match first, last:
        case (AtOffset(start), AtOffset(end)) if end < start:
            raise UsageRefused(f"--until {end} is before --from {start}: there is nothing between")
        case (AtTime(start_ms), AtTime(end_ms)) if end_ms < start_ms:
            raise UsageRefused("--until is a time before --from: there is nothing between")


async def resolve_ranges(
    client: Client,
    tps: Sequence[TopicPartition],
    first: LogPosition,
    last: LogPosition | None,
    isolation: Isolation,
) -> dict[TopicPartition, ReadRange]:
    """The offsets of each partition between two positions, at present; None is without end."""
    starts, ends = await log_edges(client, tps, isolation)
    chosen_starts = await locate(client, tps, first, ends, isolation)
    chosen_ends = ends if last is None else await locate(client, tps, last, ends, isolation)
    ranges = dict[TopicPartition, ReadRange]()
    for tp in tps:
        start, end = chosen_starts[tp], ends[tp]
        if start < starts[tp]:
            if isinstance(first, AtOffset):
                terminal.print_note(
                    f"{tp} begins at offset {starts[tp]}: earlier records were deleted"
                )
            start = starts[tp]
        if start > end:
            rest = "reading from there" if last is None else "nothing to read"
            terminal.print_note(f"{tp} ends at offset {end}, before --from {start}: {rest}")
            start = end
        ranges[tp] = ReadRange(start, None if last is None else min(chosen_ends[tp], end))
    return ranges


async def log_edges(
    client: Client, tps: Sequence[TopicPartition], isolation: Isolation
) -> tuple[Offsets, Offsets]:
    """Where each log begins, and where it ends for this isolation."""
    starts = await list_offsets(client, dict.fromkeys(tps, EARLIEST), isolation)
    ends = await list_offsets(client, dict.fromkeys(tps, LATEST), isolation)
    zero = Offset(0)
    return {tp: starts[tp] or zero for tp in tps}, {tp: ends[tp] or zero for tp in tps}


async def locate(
    client: Client,
    tps: Sequence[TopicPartition],
    position: LogPosition,
    ends: Offsets,
    isolation: Isolation,
) -> Offsets:
    """The offset of a position in each partition; a time after every record is the end."""
    if isinstance(position, AtOffset):
        return dict.fromkeys(tps, position.offset)
    if isinstance(position, BeforeEnd):
        return {tp: Offset(max(0, ends[tp] - position.count)) for tp in tps}
    wanted = position.timestamp_ms if isinstance(position, AtTime) else EDGES[position]
    found = await list_offsets(client, dict.fromkeys(tps, wanted), isolation)
    return {tp: ends[tp] if offset is None else offset for tp, offset in found.items()}
