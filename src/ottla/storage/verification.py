"""Reading a segment again: is every batch where it should be, and what it was?

Bytes that a start has found on disk are believed only when they have been read once: the chain of
headers, the CRC of every batch, and that the last batch ends where the next segment begins. The
scrubber does that for whole segments, a reader for what it is about to be sent, the first time.
"""

from collections.abc import Iterable
from typing import Final

from ottla.model import Offset, Position
from ottla.records.batch import (
    BASE_OFFSET_FIELD,
    HEADER_BYTES,
    LAST_DELTA_FIELD,
    LEADER_EPOCH_FIELD,
    LENGTH_END,
    LENGTH_FIELD,
    MAGIC,
    read_header,
)
from ottla.storage.batch_scan import Placement, find_intact, intact_batches
from ottla.storage.damages import Damage
from ottla.storage.epochs import EpochOrder
from ottla.storage.files import Readable
from ottla.storage.segment import CheckedPart, Segment

_READ_BYTES_MIN: Final = 64 << 10
_READ_BYTES_MAX: Final = 1 << 20


class ChainCheck:
    """A reading of a segment's batches from some batch on, in steps."""

    def __init__(
        self,
        file: Readable,
        position: int,
        next_offset: int,
        *,
        size_bytes: int,
        end_offset: Offset,
        placement: Placement | None = None,
        epochs: EpochOrder | None = None,
    ) -> None:
        """With `epochs` a batch whose epoch does not fit counts as damaged, though it is intact:
        only where it can be had again."""
        self.position = position
        self.next_offset = next_offset
        self.parts: list[CheckedPart] = []
        self.damages: list[Damage] = []
        self._file = file
        self._size_bytes = size_bytes
        self._end_offset = end_offset
        self._placement = placement or Placement(end_max=end_offset)
        self._epochs = epochs

    @property
    def is_done(self) -> bool:
        return self.position >= self._size_bytes

    def advance(self, until: int, offset: int = 0) -> None:
        """Read at least up to byte `until` and over the batch that holds `offset`."""
        while not self.is_done and (self.position < until or self.next_offset <= offset):
            start = self.position
            self._read_intact(until, offset)
            if self.position > start:
                self._note_part(start)
            else:
                self._step_over()
        if self.is_done:
            self._check_end()

    def give_up(self) -> None:
        """The disk cannot be read here: everything behind this position counts as damaged."""
        self._note_damage(self._end_offset, None)
        self.position, self.next_offset = self._size_bytes, self._end_offset

    def _read_intact(self, until: int, offset: int) -> None:
        wanted = min(max(until - self.position, _READ_BYTES_MIN), _READ_BYTES_MAX)
        epochs = self._epochs
        for at, fields in intact_batches(
            self._file,
            Position(self.position),
            self._size_bytes,
            self.next_offset,
            wanted,
            self._placement,
        ):
            if epochs is not None and not epochs.admits(
                fields[BASE_OFFSET_FIELD], fields[LEADER_EPOCH_FIELD]
            ):
                break
            self.position = at + fields[LENGTH_FIELD] + LENGTH_END
            self.next_offset = fields[BASE_OFFSET_FIELD] + fields[LAST_DELTA_FIELD] + 1
            if self.position >= until and self.next_offset > offset:
                break

    def _note_part(self, start: int) -> None:
        end_offset = Offset(self.next_offset)
        self.parts.append(CheckedPart(Position(start), Position(self.position), end_offset))

    def _step_over(self) -> None:
        """Here is something that is no intact batch: go on behind it, if anything is."""
        resumed = find_intact(
            self._file,
            self.position + 1,
            self._size_bytes,
            Offset(self.next_offset),
            self._end_offset,
        )
        if resumed is None:
            self.give_up()
            return
        until = Offset(read_header(self._file.read(resumed, HEADER_BYTES)).base_offset)
        self._note_damage(until, resumed)
        self.position, self.next_offset = resumed, until

    def _check_end(self) -> None:
        if self.next_offset < self._end_offset:  # its end is lost, at a batch or at a whole file
            self._note_damage(self._end_offset, None)
            self.next_offset = self._end_offset

    def _note_damage(self, until: Offset, resumed: Position | None) -> None:
        start = Offset(min(self.next_offset, until))
        self.damages.append(Damage(start, until, Position(self.position), resumed))


def check_ahead(
    segment: Segment,
    start: Offset,
    position: Position | None,
    size_bytes: int,
    stop: Position | None,
) -> tuple[CheckedPart | None, list[Damage]]:
    """Make sure that what a reader from `start` on is about to be sent is intact.

    `position` is where the batch with `start` lies, if that is known; from `stop` on a damage is
    known. Returned is the checked part that the batch lies in, None when everything behind it is
    intact as well, and the damages that were found.
    """
    unchecked = segment.unchecked
    begin, next_offset = (position, start) if position is not None else _anchor(segment, start)
    if begin >= unchecked.end:
        return None, []
    until = min(begin + size_bytes, unchecked.end)
    if stop is not None:
        until = min(until, stop)
    part = unchecked.part_at(begin)
    damages = list[Damage]()
    if part is None or part.end < until or part.end_offset <= start:
        if part is not None:
            begin, next_offset = part.end, part.end_offset
        check = ChainCheck(
            segment.file,
            begin,
            next_offset,
            size_bytes=segment.size_bytes,
            end_offset=segment.end_offset,
        )
        check.advance(until, start)
        for one in check.parts:
            unchecked.note(one)
        damages = check.damages
        part = unchecked.part_at(begin)
    if part is not None and part.end >= unchecked.end:
        part = None
    return part, damages


def lead_over(segment: Segment, damages: Iterable[Damage]) -> None:
    """Let no search in an open segment walk through what is damaged."""
    index = segment.indexes.by_offset
    for one in damages:
        if one.resumed is None:
            index.truncate(one.position)
        else:
            index.lead_over(one.position, one.end_offset - 1 - segment.base_offset, one.resumed)


def _anchor(segment: Segment, offset: Offset) -> tuple[Position, Offset]:
    """A batch at or before `offset` that the index has, or the segment's first."""
    index, base = segment.indexes.by_offset, segment.base_offset
    entry = index.at_or_below(offset - base)
    while entry is not None:
        relative_offset, position = entry
        head = segment.file.read(position, HEADER_BYTES)
        if len(head) == HEADER_BYTES:
            header = read_header(head)
            is_there = base + relative_offset in (header.base_offset - 1, header.last_offset)
            if header.magic == MAGIC and is_there:
                return position, Offset(header.base_offset)
        entry = index.at_or_below(relative_offset - 1)
    return Position(0), base
