"""Files of one log when it is opened: interrupted work is finished, then they are listed."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from ottla.model import Offset, Position
from ottla.records.batch import (
    BASE_OFFSET_FIELD,
    LAST_DELTA_FIELD,
    LENGTH_END,
    LENGTH_FIELD,
)
from ottla.storage.batch_scan import intact_batches
from ottla.storage.checkpoints import write_checkpoint
from ottla.storage.compaction import CLEAN_OFFSET_FILE
from ottla.storage.damages import CORRUPT_FILE, CorruptRange, load_ranges, merged
from ottla.storage.files import Entry, File, Files
from ottla.storage.names import OFFSET_DIGITS, is_offset
from ottla.storage.segment import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SEAL,
    SIDE_SUFFIXES,
    SNAPSHOT,
    SWAP,
    file_name,
    file_path,
)
from ottla.storage.swap import complete_swap, remove_all, remove_cleaned

STRAY: Final = ".stray"  # a segment that nothing connects with the log before it


class LogFiles(NamedTuple):
    """The content of a log's directory: all names, and the offsets in them by kind."""

    names: set[str]
    sizes: dict[Offset, int]
    seals: list[Offset]
    lost: list[Offset]  # seals without their segments
    indexes: list[Offset]  # of a log that has no segment at all
    snapshots: list[Offset]
    is_compacted: bool  # a pass has come to its end here


def list_files(files: Files, directory: Path, names: Sequence[str] | None) -> LogFiles:
    """Finish or undo what was interrupted, then list the directory."""
    if names is None:
        names = files.names(directory)
    if any(name.endswith((CLEANED, SWAP, DELETED)) for name in names):
        finish_swaps(files, directory)
        finish_deletions(files, directory)
        names = files.names(directory)
    offsets: dict[str, list[Offset]] = {LOG: [], SEAL: [], INDEX: [], SNAPSHOT: []}
    for name in names:
        digits, suffix = name[:OFFSET_DIGITS], name[OFFSET_DIGITS:]
        if suffix in offsets and is_offset(digits):
            offsets[suffix].append(Offset(int(digits)))
    sizes = {base: files.size_bytes(file_path(directory, base, LOG)) for base in offsets[LOG]}
    return LogFiles(
        names=set(names),
        sizes=sizes,
        seals=offsets[SEAL],
        lost=[base for base in offsets[SEAL] if base not in sizes],
        indexes=offsets[INDEX] if not sizes else [],
        snapshots=offsets[SNAPSHOT],
        is_compacted=CLEAN_OFFSET_FILE in names,
    )


def usable_snapshots(found: LogFiles) -> list[Offset]:
    """The snapshots of producers before which every aborted transaction is on disk.

    When a segment ends, its aborted transactions are on disk with its seal, and the snapshot at
    the start of the next one may be there before: then the segment has to be read again.
    """
    sealed = set(found.seals)
    unsealed = {
        following for base, following in pairwise(sorted(found.sizes)) if base not in sealed
    }
    return [offset for offset in found.snapshots if offset not in unsealed]


def first_offset_of(
    found: LogFiles, start_offset: Offset, first_base: Offset, known_corrupt: list[CorruptRange]
) -> Offset:
    """The log's first offset by its files: perhaps that of a segment that is lost."""
    before = [one.start_offset for one in known_corrupt if one.end_offset == first_base]
    return max(start_offset, min([first_base, *before, *found.lost, *found.indexes]))


def begin_behind_loss(
    files: Files, directory: Path, found: LogFiles, start_offset: Offset, known_end: Offset
) -> None:
    """Begin a log without segments behind `known_end`; what it held before is lost.

    The loss is noted first: once a segment is there, nothing else shows it.
    """
    base = max(start_offset, known_end)
    if not found.indexes:
        found.indexes.append(start_offset)  # the log's start is unknown
    first = first_offset_of(found, start_offset, base, [])
    if first < base:
        lost = CorruptRange(first, base, first, Position(0))
        ranges = merged([*load_ranges(files, directory), lost])
        write_checkpoint(files, directory / CORRUPT_FILE, map(str, ranges))
    files.create(directory / file_name(base, LOG))
    files.sync_dir(directory)
    found.sizes[base] = 0
    found.names.add(CORRUPT_FILE)


def finish_deletions(files: Files, directory: Path) -> None:
    """Remove what is left of segments that retention has let go of."""
    found = files.list(directory)
    there = {entry.name for entry in found}
    for entry in found:
        if _is_a(entry, LOG + DELETED) and entry.name.removesuffix(DELETED) not in there:
            for suffix in SIDE_SUFFIXES:
                files.unlink(directory / file_name(_offset_of(entry), suffix))
    files.sync_dir(directory)
    remove_all(files, directory, DELETED)


def finish_swaps(files: Files, directory: Path) -> None:
    """Bring the compaction that was interrupted here to its end, or undo it.

    A segment that compaction had committed replaces those it was made from; whatever
    was not committed goes.
    """
    found = files.list(directory)
    bases = {_offset_of(entry) for entry in found if _is_a(entry, LOG) or _is_a(entry, SEAL)}
    for entry in found:
        if not _is_a(entry, LOG + SWAP):
            continue
        base = _offset_of(entry)
        end_offset = _end_of_whole(files.open(directory / entry.name), base)
        if end_offset is None:
            _keep_aside(files, directory / entry.name)
        else:
            replaced = [other for other in sorted(bases) if base < other < end_offset]
            complete_swap(files, directory, base, replaced)
    remove_cleaned(files, directory)


def _end_of_whole(file: File, base: Offset) -> Offset | None:
    """The end offset of a file's batches; None unless all of it is intact, as when synced."""
    size_bytes = file.size_bytes()
    behind, end_offset = 0, base
    for at, fields in intact_batches(file, Position(0), size_bytes, base):
        behind = at + fields[LENGTH_FIELD] + LENGTH_END
        end_offset = Offset(fields[BASE_OFFSET_FIELD] + fields[LAST_DELTA_FIELD] + 1)
    return end_offset if behind == size_bytes else None


def _keep_aside(files: Files, path: Path) -> None:
    """The disk has lost what it promised to keep: go on with what the file was made from."""
    files.rename(path, path.with_name(path.name + STRAY))
    files.sync_dir(path.parent)


def snapshot_offsets(files: Files, directory: Path) -> list[Offset]:
    """The offsets of the snapshots of producers that lie in a log's directory."""
    return [_offset_of(entry) for entry in files.list(directory) if _is_a(entry, SNAPSHOT)]


def _is_a(entry: Entry, suffix: str) -> bool:
    return entry.name.endswith(suffix) and is_offset(entry.name[: -len(suffix)])


def _offset_of(entry: Entry) -> Offset:
    return Offset(int(entry.name.partition(".")[0]))
