"""A compacted segment takes the place of those it was made from, whatever happens meanwhile.

Names change in an order that a crash may interrupt anywhere: the compacted segment is written
under names of its own (`.cleaned`), committed by one rename (`.swap`), and only then are old files
removed and their names taken. What was committed is completed by the next start, everything else
undone.
"""

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from ottla.model import Offset
from ottla.storage.files import Files
from ottla.storage.segment import (
    CLEANED,
    INDEX_SUFFIXES,
    LOG,
    SEGMENT_SUFFIXES,
    SWAP,
    SealedSegment,
    file_name,
)


class Swap:
    """One swap. Prepared by a log's owner, carried out by a worker, which waits for the disk.

    The owner may be unable to wait for the worker: then it does the work itself.
    """

    def __init__(self, directory: Path, old: Sequence[SealedSegment], new: SealedSegment) -> None:
        self.old = old
        self.new = new
        self._directory = directory
        self._lock = threading.Lock()
        self._is_over = False

    def run(self, files: Files) -> None:
        """Carry it out, once: whoever comes second waits for the first."""
        with self._lock:
            if not self._is_over:
                base_offset, *merged = (segment.base_offset for segment in self.old)
                commit_swap(files, self._directory, base_offset)
                complete_swap(files, self._directory, base_offset, merged)
                self._is_over = True

    def give_up(self) -> None:
        """Return when nothing is being done, and let nothing be done from now on."""
        with self._lock:
            self._is_over = True


def commit_swap(files: Files, directory: Path, base_offset: Offset) -> None:
    """Decide for the cleaned segment: from here on a crash is followed by `complete_swap`."""
    cleaned = directory / file_name(base_offset, LOG + CLEANED)
    files.rename(cleaned, directory / file_name(base_offset, LOG + SWAP))
    files.sync_dir(directory)


def complete_swap(
    files: Files, directory: Path, base_offset: Offset, also_replaced: Iterable[Offset]
) -> None:
    """Put a committed segment in the place of the old one, and of those merged into it.

    May be interrupted anywhere and begun again. The old segment's log is the last to go: as long
    as the swap file has its name, everything before can be done once more.
    """
    for old in also_replaced:
        for suffix in SEGMENT_SUFFIXES:
            files.unlink(directory / file_name(old, suffix))
    there = {entry.name for entry in files.list(directory)}
    for suffix in INDEX_SUFFIXES:
        cleaned = file_name(base_offset, suffix + CLEANED)
        if cleaned in there:
            files.rename(directory / cleaned, directory / file_name(base_offset, suffix))
    files.sync_dir(directory)
    swap = directory / file_name(base_offset, LOG + SWAP)
    files.rename(swap, directory / file_name(base_offset, LOG))
    files.sync_dir(directory)


def remove_cleaned(files: Files, directory: Path) -> None:
    """Forget segments that compaction began to write and did not commit."""
    remove_all(files, directory, CLEANED)


def remove_all(files: Files, directory: Path, suffix: str) -> None:
    """Remove every file whose name ends so."""
    for entry in files.list(directory):
        if entry.name.endswith(suffix):
            files.unlink(directory / entry.name)
