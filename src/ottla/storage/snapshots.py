"""Snapshot files of one log: its producers as they were at some offsets."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ottla.model import Offset
from ottla.storage.files import Files
from ottla.storage.segment import SNAPSHOT, file_path

_SPARE_MAX: Final = 2  # snapshots kept besides those at the start of segments


class Snapshots:
    """The snapshots that a log has on disk, by their offsets. Owned by the log."""

    def __init__(self, files: Files, directory: Path, offsets: Iterable[Offset]) -> None:
        self._files = files
        self._directory = directory
        self._offsets = sorted(offsets)

    def write(self, offset: Offset, content: bytes, segment_bases: Iterable[Offset]) -> None:
        """Store a snapshot, and remove old ones that are not at the start of a segment."""
        self._files.create(file_path(self._directory, offset, SNAPSHOT)).append(content)
        if offset not in self._offsets:
            self._offsets.append(offset)
            self._offsets.sort()
        bases = set(segment_bases)
        spare = [one for one in self._offsets if one not in bases]
        for one in spare[:-_SPARE_MAX]:
            self._remove(one)

    def remove_below(self, offset: Offset) -> None:
        """Remove the snapshots of what lies before the log's first segment."""
        for one in [one for one in self._offsets if one < offset]:
            self._remove(one)

    def above(self, offset: Offset) -> list[Offset]:
        """The snapshots of what lies behind `offset`."""
        return [one for one in self._offsets if one > offset]

    def _remove(self, offset: Offset) -> None:
        self._offsets.remove(offset)
        self._files.unlink(file_path(self._directory, offset, SNAPSHOT))
