"""Reading a log: which bytes of which segment hold the batches that a reader may see."""

from typing import NamedTuple

from ottla.model import Offset, Position
from ottla.storage.files import CopiedFile, Sendable
from ottla.storage.log_core import LogCore
from ottla.storage.log_repair import LogRepair
from ottla.storage.segment import CheckedPart, FoundBatch, Segment


class FileRange(NamedTuple):
    """Whole batches, still in their file: send them, or read them with `Log.read_bytes`."""

    file: Sendable
    position: Position
    size_bytes: int
    end_offset: Offset  # where to read on


def read_range(
    core: LogCore,
    repair: LogRepair,
    start: Offset,
    end: Offset,
    bytes_max: int,
    at_least_one: bool,
) -> FileRange | None:
    """Whole batches of the segment that holds `start`, all below `end`; see `Log.read`."""
    segments = core.segments
    if core.damages.ranges:
        core.damages.refuse(start)
    hint = core.hints.get(start)
    first: FoundBatch | None = None
    checked: CheckedPart | None = None
    if hint is not None:
        segment, position = hint
        segments.open(segment)
        if position < segment.unchecked.end:
            checked = repair.check_ahead(segment, start, position, bytes_max)
    else:
        segment = segments.of(start)
        if segment.unchecked.end:
            checked = repair.check_ahead(segment, start, None, bytes_max)
        first = segments.find(segment, start)
        position = first.position
    limit, end_offset = _limit(core, segment, start, end, checked)
    if limit - position > bytes_max:
        cut, cut_offset = segments.boundary(segment, position, position + bytes_max)
        if cut == position and at_least_one:
            first = first or segments.find(segment, start)
            cut = Position(position + first.size_bytes)
            cut_offset = Offset(first.last_offset + 1)
        limit, end_offset = cut, cut_offset
    if limit <= position:
        return None
    core.remember(end_offset, segment, limit)
    if core.open_files.is_full:
        copy = CopiedFile(segment.file.read(position, limit - position))
        return FileRange(copy, Position(0), limit - position, end_offset)
    return FileRange(segment.file, position, limit - position, end_offset)


def _limit(
    core: LogCore, segment: Segment, start: Offset, end: Offset, checked: CheckedPart | None
) -> tuple[Position, Offset]:
    """The end of the last batch of `segment` that a reader up to `end` may see."""
    limit, end_offset = Position(segment.size_bytes), segment.end_offset
    if checked is not None:
        limit, end_offset = checked.end, checked.end_offset
    if core.damages.ranges:
        damage = core.damages.next_in(segment.base_offset, start)
        if damage is not None and damage.start_offset < end_offset:
            limit, end_offset = damage.position, damage.start_offset
    if end >= end_offset:
        return limit, end_offset
    hint = core.hints.get(end)
    if hint is not None and hint[0] is segment:
        return hint[1], end
    found = core.segments.find(segment, end)
    return found.position, found.base_offset
