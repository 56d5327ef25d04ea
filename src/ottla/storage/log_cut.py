"""Cutting the end of a log off: the part that waits for the disk.

`LogTruncation` begins a cut and ends it, on the owner's thread. In between the log's files are the
cut's: any thread may run it, for it touches files and nothing of the log in memory.

Whenever the power is cut, a start finds the log as it was or as it is to be, or as it was up to
somewhere behind the cut. For that the recovery point on disk has to be lowered before a cut is run:
what is about to go must not be promised.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from ottla.model import Offset
from ottla.storage.checkpoints import write_checkpoint
from ottla.storage.damages import CORRUPT_FILE
from ottla.storage.files import FULL_DISK_ERRNOS, File, Files
from ottla.storage.log_files import STRAY
from ottla.storage.recovery import Recovered
from ottla.storage.segment import (
    ABORTED_INDEX,
    LOG,
    SEAL,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    Indexes,
    file_path,
    write_indexes,
)
from ottla.storage.small_file import Replacement


@dataclass(slots=True, kw_only=True, eq=False)
class Cut:
    """A cut of one log. Begun and ended by its owner, run once, on any thread, or given up."""

    steps: Sequence[Callable[[], object]]  # changes of files, in this order
    reopen: Callable[[], Recovered]
    start_offset: Offset | None  # where the log begins again, empty; None if something is left
    end_offset: Offset  # of the log that is left
    end_before: Offset
    truncated_count: int  # offsets of records that the log had behind its new end
    durable_before: Offset
    clean_offset: Replacement[bytes] | None
    needs_checkpoint: bool  # before it is run: the one on disk promises what is about to go
    kept_names: list[str] = field(default_factory=list)  # of what was set aside
    is_given_up: bool = False
    has_begun: bool = False
    problem: OSError | None = None
    recovered: Recovered | None = None  # once it has been run
    leftover: list[File] = field(default_factory=list)  # to be closed where that may take long

    def run(self) -> None:
        """Change the files, and open what is left of the log."""
        if self.is_given_up:
            return
        assert not self.has_begun, "a cut is run once"
        self.has_begun = True
        try:
            for step in self.steps:
                step()
            self.recovered = self.reopen()
        except OSError as problem:
            self.problem = problem
            raise
        self.steps = ()  # and so the files that they hold


class KeptEnd(NamedTuple):
    """The segment that a log ends in once it is cut, and its size then."""

    base_offset: Offset
    size_bytes: int
    file: File | None  # None if all of it is on disk: another descriptor reports no lost write


class Removed(NamedTuple):
    """The files that go, by the offsets in their names; of segments the last one first."""

    segments: Sequence[Offset]
    seals: Sequence[Offset]
    snapshots: Sequence[Offset]  # of producers, behind what is left


def cut_end(
    files: Files,
    directory: Path,
    kept: KeptEnd,
    removed: Removed,
    active: tuple[Offset, Indexes],
) -> None:
    """Cut a segment, and remove those behind it.

    The indexes of the `active` segment are stored: with them less has to be read afterwards.
    """
    _remove_claims(files, directory, removed)
    try:
        write_indexes(files, directory, *active)
    except OSError as error:
        if error.errno not in FULL_DISK_ERRNOS:
            raise
    _remove_segments(files, directory, removed.segments)
    files.sync_dir(directory)  # or a seal would call a loss what is cut now
    file = kept.file or files.open(file_path(directory, kept.base_offset, LOG))
    file.truncate(kept.size_bytes)
    file.sync()


def cut_all(files: Files, directory: Path, removed: Removed) -> None:
    """Remove every segment, and what is known of damage."""
    _remove_claims(files, directory, removed)
    _remove_segments(files, directory, removed.segments)
    files.unlink(f"{directory}/{CORRUPT_FILE}")


def _remove_segments(files: Files, directory: Path, bases: Iterable[Offset]) -> None:
    for base_offset in bases:
        for suffix in SEGMENT_SUFFIXES:
            files.unlink(file_path(directory, base_offset, suffix))


def _remove_claims(files: Files, directory: Path, removed: Removed) -> None:
    """Remove what would pass for true of the records that are left, or that come next."""
    _remove_seals(files, directory, removed.seals)
    for offset in removed.snapshots:
        files.unlink(file_path(directory, offset, SNAPSHOT))


def _remove_seals(files: Files, directory: Path, bases: Iterable[Offset]) -> None:
    for base_offset in bases:
        files.unlink(file_path(directory, base_offset, SEAL))


def keep_aside(files: Files, directory: Path, bases: Iterable[Offset], kept: list[str]) -> None:
    """Give segments names that no start reads, and add these to `kept`."""
    _remove_seals(files, directory, bases)
    files.sync_dir(directory)  # or a seal would call a loss what is set aside now
    taken = set(files.names(directory))
    for base_offset in bases:
        path = file_path(directory, base_offset, LOG)
        stray = path.rpartition("/")[2] + STRAY
        names = chain([stray], (f"{stray}.{number}" for number in count(1)))
        kept.append(next(one for one in names if one not in taken))
        files.rename(path, f"{directory}/{kept[-1]}")
    files.sync_dir(directory)


def reopen(
    files: Files, directory: Path, recover: Callable[[], Recovered], start_offset: Offset
) -> Recovered:
    """Open what is left of a log that has been cut. No file stays open."""
    files.sync_dir(directory)
    found = recover()
    active = found.active
    if not active.indexes.aborted:  # the file may hold some that were cut off as well
        files.unlink(file_path(directory, active.base_offset, ABORTED_INDEX))
    corrupt = found.corrupt_from(start_offset)
    if corrupt != found.known_corrupt:
        write_checkpoint(files, directory / CORRUPT_FILE, map(str, corrupt))
    found.known_corrupt = found.corrupt = corrupt
    active.release()
    return found
