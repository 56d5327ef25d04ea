"""Batches in a segment file, read one after the other: which of them are intact.

A batch is intact if its header follows the batch before it and its CRC matches. Between intact
batches there may be bytes that are none; behind the last there may be half a batch.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from ottla.config import INT32_MAX, INT64_MAX
from ottla.model import Offset, Position
from ottla.records.batch import (
    ATTRIBUTES_AT,
    BASE_OFFSET_FIELD,
    CRC_FIELD,
    HEADER,
    HEADER_BYTES,
    LAST_DELTA_FIELD,
    LENGTH_END,
    LENGTH_FIELD,
    MAGIC,
    MAGIC_AT,
    MAGIC_FIELD,
    BatchHeader,
    read_header,
)
from ottla.records.crc import crc32c
from ottla.storage.files import Readable

_SCAN_BYTES: Final = 4 << 20
_COPIED_BYTES: Final = 1024  # to copy so few bytes costs less than to make a view of them


class Placement(NamedTuple):
    """Bounds on a batch that does not follow the one before it at once.

    Compaction leaves gaps, and so does what was lost; but a batch that jumps over the one behind
    it, or over the end, has a wrong offset, which the CRC does not cover.
    """

    end_max: int = INT64_MAX  # no batch reaches behind this offset
    skips: frozenset[int] = frozenset()  # offsets behind what is known to be lost
    is_dense: bool = False  # there are no other gaps before the last batch


_ANYWHERE: Final = Placement()


def intact_batches(
    file: Readable,
    position: Position,
    size_bytes: int,
    next_offset: int,
    read_bytes: int = _SCAN_BYTES,
    placement: Placement = _ANYWHERE,
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Position and header fields of every batch up to the first that is not intact.

    This loop decides how long an unclean start takes, so it does nothing that can wait.
    """
    unpack = HEADER.unpack_from
    # In local names, which cost nothing in the loop.
    base_offset, length_, magic = BASE_OFFSET_FIELD, LENGTH_FIELD, MAGIC_FIELD
    crc, last_delta = CRC_FIELD, LAST_DELTA_FIELD
    start = int(position)
    chunk_bytes = read_bytes
    while size_bytes - start >= HEADER_BYTES:
        wanted = min(chunk_bytes, size_bytes - start)
        chunk = file.read(start, wanted)
        if len(chunk) < wanted:  # compaction has put a shorter file in this one's place
            size_bytes = start + len(chunk)
        view = memoryview(chunk)
        at, end = 0, len(chunk)
        behind = HEADER_BYTES
        while end - at >= HEADER_BYTES:
            fields = unpack(chunk, at)
            length = fields[length_]
            behind = at + length + LENGTH_END
            if (
                fields[magic] != MAGIC
                or length < HEADER_BYTES - LENGTH_END
                or fields[base_offset] < next_offset
                or fields[last_delta] < 0
            ):
                return
            if behind > end:
                break
            body = (chunk if length < _COPIED_BYTES else view)[at + ATTRIBUTES_AT : behind]
            if crc32c(body) != fields[crc]:
                return
            if fields[base_offset] != next_offset and not _is_placed(
                file, fields, next_offset, start + behind, size_bytes, placement
            ):
                return
            next_offset = fields[base_offset] + fields[last_delta] + 1
            yield start + at, fields
            at = behind
        else:
            behind = at + HEADER_BYTES
        if start + behind > size_bytes:
            return
        chunk_bytes = max(read_bytes, behind - at)
        start += at


def _is_placed(
    file: Readable,
    fields: tuple[int, ...],
    next_offset: int,
    behind: int,
    size_bytes: int,
    placement: Placement,
) -> bool:
    """True when an intact batch behind a gap can have the offset in its header."""
    end_offset = fields[BASE_OFFSET_FIELD] + fields[LAST_DELTA_FIELD] + 1
    if end_offset > placement.end_max:
        return False
    if size_bytes - behind < HEADER_BYTES:
        is_known = fields[BASE_OFFSET_FIELD] in placement.skips or end_offset == placement.end_max
        return is_known or not placement.is_dense
    follower = read_header(file.read(behind, HEADER_BYTES))
    return follower.magic != MAGIC or not next_offset <= follower.base_offset < end_offset


def misplaced_end(
    file: Readable, position: int, size_bytes: int, next_offset: Offset
) -> Offset | None:
    """The end offset of an intact last batch with a wrong base offset; None if there is none."""
    batch = file.read(position, size_bytes - position)
    if len(batch) < HEADER_BYTES:
        return None
    header = read_header(batch)
    is_intact = (
        header.magic == MAGIC
        and header.size_bytes == len(batch)
        and header.last_offset_delta >= 0
        and crc32c(memoryview(batch)[ATTRIBUTES_AT:]) == header.crc
    )
    return Offset(next_offset + header.last_offset_delta + 1) if is_intact else None


def _is_intact(file: Readable, position: Position, size_bytes: int) -> bool:
    return any(True for _ in intact_batches(file, position, size_bytes, 0))


def fills(file: Readable, position: int, size_bytes: int) -> bool:
    """True when the bytes from `position` on are as many as one batch has: some have changed."""
    rest_bytes = size_bytes - position
    if rest_bytes < HEADER_BYTES:
        return False
    return read_header(file.read(position, HEADER_BYTES)).size_bytes == rest_bytes


def find_intact(
    file: Readable,
    position: int,
    size_bytes: int,
    next_offset: Offset,
    end_max: int = INT64_MAX,
) -> Position | None:
    """The position of the next intact batch behind `position` that could be of this log."""
    overlap = HEADER_BYTES - 1
    start = position
    while size_bytes - start >= HEADER_BYTES:
        wanted = min(_SCAN_BYTES, size_bytes - start)
        chunk = file.read(start, wanted)
        if len(chunk) < wanted:
            size_bytes = start + len(chunk)
        at = chunk.find(MAGIC, MAGIC_AT)
        while 0 <= at <= len(chunk) - (HEADER_BYTES - MAGIC_AT):
            candidate = at - MAGIC_AT
            header = read_header(chunk, candidate)
            if (
                _is_plausible(header, size_bytes - start - candidate, next_offset)
                and header.base_offset < end_max
                and _is_intact(
                    file, Position(start + candidate), start + candidate + header.size_bytes
                )
            ):
                return Position(start + candidate)
            at = chunk.find(MAGIC, at + 1)
        if start + len(chunk) >= size_bytes:
            return None
        start += len(chunk) - overlap
    return None


def _is_plausible(header: BatchHeader, room_bytes: int, next_offset: Offset) -> bool:
    return (
        HEADER_BYTES <= header.size_bytes <= room_bytes
        and header.last_offset_delta >= 0
        and next_offset <= header.base_offset <= next_offset + INT32_MAX
    )
