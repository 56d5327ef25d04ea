"""Reading a log: which bytes of which segment hold the batches that a reader may see."""

from typing import Final, NamedTuple

from ottla.errors import ApiError
from ottla.model import Offset, Position
from ottla.records.batch import HEADER_BYTES
from ottla.records.record_slices import are_empty_batches
from ottla.storage.files import CopiedFile, Sendable
from ottla.storage.log_core import LogCore
from ottla.storage.log_repair import LogRepair
from ottla.storage.segment import CheckedPart, FoundBatch, Segment

# How far a reader is taken over batches without records in one call: about a millisecond of bytes,
# and about ten milliseconds of segments that have to be opened.
_EMPTY_BYTES_MAX: Final = 1 << 20
_EMPTY_RANGES_MAX: Final = 100


class FileRange(NamedTuple):
    """Whole batches, still in their file: send them, or read them with `Log.read_bytes`."""

    file: Sendable
    position: Position
    size_bytes: int
    end_offset: Offset  # where to read on
    start_offset: Offset  # that was asked for: the first batch may begin before, or behind


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
        return FileRange(copy, Position(0), limit - position, end_offset, start)
    return FileRange(segment.file, position, limit - position, end_offset, start)


def read_on(
    core: LogCore,
    repair: LogRepair,
    found: FileRange,
    end: Offset,
    bytes_max: int,
    at_least_one: bool,
) -> FileRange:
    """The first range from `found` on that has a record, not too far behind; see `Log.read_on`."""
    left_bytes = _EMPTY_BYTES_MAX
    for _ in range(_EMPTY_RANGES_MAX):
        if found.size_bytes > left_bytes or found.end_offset >= end or not is_empty(found):
            break
        left_bytes -= found.size_bytes
        try:
            following = read_range(core, repair, found.end_offset, end, bytes_max, at_least_one)
        except ApiError:
            break  # of damage: it is for the reader who asks for what is behind
        if following is None:
            break
        found = following
    return found


def is_empty(found: FileRange) -> bool:
    """True if no batch of the range has a record, as compaction leaves them."""
    if found.size_bytes % HEADER_BYTES:
        return False
    first = found.file.read(found.position, HEADER_BYTES)
    return are_empty_batches(first) and are_empty_batches(
        found.file.read(found.position, found.size_bytes)
    )


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
