"""Replacing segments by the compacted one made from them, whenever a crash happens.

Names change in an order that a crash may interrupt anywhere: the compacted segment is written
under names of its own (`.cleaned`), committed by one rename (`.swap`), and only then are old files
removed and their names taken. What was committed is completed by the next start, everything else
undone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ottla.model import Offset
from ottla.storage.disk_worker import Errand
from ottla.storage.files import Files
from ottla.storage.names import is_log_file
from ottla.storage.segment import (
    CLEANED,
    LOG,
    SEGMENT_SUFFIXES,
    SIDE_SUFFIXES,
    SWAP,
    SealedSegment,
    file_name,
)


@dataclass(frozen=True, slots=True)
class Swap:
    """A swap. Prepared by a log's owner, carried out by a worker, which waits for the disk."""

    old: Sequence[SealedSegment]
    new: SealedSegment
    errand: Errand


def carry_out(files: Files, directory: Path, replaced: Sequence[Offset]) -> None:
    """Replace the segments that began at these offsets by the cleaned one."""
    base_offset, *merged = replaced
    assert list(replaced) == sorted(replaced), f"out of order: {replaced}"
    commit_swap(files, directory, base_offset)
    complete_swap(files, directory, base_offset, merged)


def commit_swap(files: Files, directory: Path, base_offset: Offset) -> None:
    """Decide for the cleaned segment: from here on a crash is followed by `complete_swap`."""
    cleaned = directory / file_name(base_offset, LOG + CLEANED)
    files.rename(cleaned, directory / file_name(base_offset, LOG + SWAP))
    files.sync_dir(directory)


def complete_swap(
    files: Files, directory: Path, base_offset: Offset, also_replaced: Iterable[Offset]
) -> None:
    """Replace the old segment, and those merged into it, by the committed one.

    May be interrupted anywhere and begun again. The old segment's log is the last to go: as long
    as the swap file has its name, everything before can be done once more.
    """
    for old in also_replaced:
        for suffix in SEGMENT_SUFFIXES:
            files.unlink(directory / file_name(old, suffix))
    there = {entry.name for entry in files.list(directory)}
    for suffix in SIDE_SUFFIXES:
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
    """Remove every file of a segment that has this suffix."""
    for entry in files.list(directory):
        if entry.name.endswith(suffix) and is_log_file(entry.name):
            files.unlink(directory / entry.name)
