"""Damaged or lost ranges of a log: remembered across restarts, and never served."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from ottla.errors import CorruptBatch
from ottla.model import Offset, Position
from ottla.storage.checkpoints import CheckpointDamaged, read_checkpoint, write_checkpoint
from ottla.storage.files import Files, within

CORRUPT_FILE: Final = "corrupt-ranges"


class CorruptRange(NamedTuple):
    """Offsets that are not on disk as they were written, and where in which segment they begin."""

    start_offset: Offset
    end_offset: Offset
    segment_base: Offset
    position: Position

    @classmethod
    def parse(cls, line: str) -> "CorruptRange":
        start, end, base, position = map(int, line.split(" "))
        return cls(Offset(start), Offset(end), Offset(base), Position(position))

    def __str__(self) -> str:
        return " ".join(map(str, self))


class Damage(NamedTuple):
    """Offsets of one segment that are not what was written, and where intact ones follow."""

    start_offset: Offset
    end_offset: Offset
    position: Position
    resumed: Position | None


def load_ranges(files: Files, directory: Path) -> list[CorruptRange]:
    """The ranges that were known when the log was last open."""
    try:
        lines = read_checkpoint(files, within(directory, CORRUPT_FILE)) or []
    except CheckpointDamaged:
        lines = []
    return list(map(CorruptRange.parse, lines))


def merged(ranges: Iterable[CorruptRange]) -> list[CorruptRange]:
    """The ranges in order, without those that lie inside another."""
    kept = list[CorruptRange]()
    for one in sorted(set(ranges), key=lambda one: (one.start_offset, -one.end_offset)):
        if not kept or one.end_offset > kept[-1].end_offset:
            kept.append(one)
    return kept


class Damages:
    """The corrupt ranges of one log. Owned by it; `ranges` is only read by others."""

    def __init__(self, files: Files, directory: Path, stored: list[CorruptRange]) -> None:
        self.ranges = stored
        self._files = files
        self._directory = directory

    def refuse(self, offset: Offset) -> None:
        """`CorruptBatch` if this offset lies in a damaged range."""
        for one in self.ranges:
            if one.start_offset <= offset < one.end_offset:
                raise CorruptBatch(
                    f"offset {offset} is damaged on this broker's disk: intact records follow"
                    f" from offset {one.end_offset} on"
                )

    def next_in(self, segment_base: Offset, offset: Offset) -> CorruptRange | None:
        """The first range of a segment behind `offset`."""
        for one in self.ranges:
            if one.segment_base == segment_base and one.start_offset > offset:
                return one
        return None

    def add(self, found: Iterable[CorruptRange]) -> list[CorruptRange]:
        """Remember these as well; returned are those that nothing was known of."""
        before = self.ranges
        self.keep(merged([*before, *found]))
        return [one for one in self.ranges if one not in before]

    def forget_below(self, offset: Offset) -> None:
        """Ranges below the start of the log no longer matter."""
        self.keep([one for one in self.ranges if one.end_offset > offset])

    def keep(self, ranges: list[CorruptRange]) -> None:
        """Remember these ranges and no others, also on disk."""
        if ranges != self.ranges:
            self.ranges = ranges
            write_checkpoint(self._files, self._directory / CORRUPT_FILE, map(str, ranges))
