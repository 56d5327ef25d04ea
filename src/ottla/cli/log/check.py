"""Damaged and missing offsets of a partition's directory, found read-only without a broker.

By the same rules as a broker that opens and reads the log: see `storage.recovery` and
`storage.verification`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType

from ottla.config import INT64_MAX
from ottla.model import Offset, Position, Uuid
from ottla.storage.batch_scan import Placement, misplaced_end
from ottla.storage.checkpoints import CheckpointDamaged, decode_checkpoint
from ottla.storage.compaction import CLEAN_OFFSET_FILE
from ottla.storage.damages import CORRUPT_FILE, CorruptRange, Damage, merged
from ottla.storage.dir_checkpoints import CLEAN_FILE, RECOVERY_POINTS_FILE, START_OFFSETS_FILE
from ottla.storage.names import METADATA_FILE, parse_log_dir
from ottla.storage.offset_checkpoint import decode_offsets, noted_offset
from ottla.storage.partition_metadata import MetadataDamaged, decode_metadata
from ottla.storage.seals import Seal
from ottla.storage.segment import INDEX, LOG, SEAL
from ottla.storage.verification import ChainCheck


class ReadOnlyFile:
    """A file opened read-only, also without permission to write."""

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def read(self, position: int, size_bytes: int) -> bytes:
        return os.pread(self._descriptor, size_bytes, position)


def find_partitions(path: Path) -> list[Path]:
    """The directories at or below `path` with files of a log, even if its segments are gone.

    Includes missing directories that a clean stop has recorded.
    """
    suffixes = (LOG, SEAL, INDEX)
    found = {
        file.parent
        for suffix in suffixes
        for file in path.rglob(f"*{suffix}")
        if file.stem.isdigit()
    }
    noted = decode_offsets(_lines(path / RECOVERY_POINTS_FILE)) if _is_clean(path) else {}
    return sorted(found.union(path / str(tp) for tp in noted))


def damaged_ranges(
    directory: Path, sound: Mapping[Path, Offset] = MappingProxyType({})
) -> list[CorruptRange]:
    """The offsets of a partition that are damaged or missing, as far as its files show.

    `sound` has the segments without known problems, with the offset where their batches end.
    """
    segments = sorted(file for file in directory.glob(f"*{LOG}") if file.stem.isdigit())
    seals = sorted(file for file in directory.glob(f"*{SEAL}") if file.stem.isdigit())
    start, known_end, is_exact = _known_bounds(directory)
    there = {file.stem for file in segments}
    lost = [file for file in seals if file.stem not in there]
    if lost:
        known_end = max(known_end, _sealed_end(lost[-1]))
    known = _known_ranges(directory)
    found = list(known)
    first = _base(segments[0]) if segments else known_end
    first_known = max(start, min([first, *map(_base, lost or _beside(directory, segments, start))]))
    if first_known < first:
        found.append(CorruptRange(first_known, first, first_known, Position(0)))
    skips = frozenset(int(one.end_offset) for one in known)
    for file, following in zip_longest(segments, segments[1:]):
        if following is not None:
            if sound.get(file) != _base(following):
                placement = Placement(int(following.stem), skips)
                found += _damages_of(file, _base(following), placement)
        else:
            is_dense = not (directory / CLEAN_OFFSET_FILE).exists()
            placement = Placement(known_end if is_exact else INT64_MAX, skips, is_dense)
            found += _damages_of_last(file, known_end, placement)
    return merged(one for one in found if one.end_offset > start)


def _beside(directory: Path, segments: list[Path], start: Offset) -> list[Path]:
    """Files that show where a log without segments began; none if there are segments."""
    if segments:
        return []
    indexes = sorted(file for file in directory.glob(f"*{INDEX}") if file.stem.isdigit())
    return indexes or [directory / f"{start}{INDEX}"]


def _damages_of(file: Path, end_offset: Offset, placement: Placement) -> Iterator[CorruptRange]:
    for one in _check(file, end_offset, placement):
        yield CorruptRange(one.start_offset, one.end_offset, _base(file), one.position)


def _damages_of_last(file: Path, known_end: Offset, placement: Placement) -> Iterator[CorruptRange]:
    """The damage of the active segment; its end is a loss only if it was known to be longer."""
    open_end = Offset(INT64_MAX)
    for one in _check(file, open_end, placement):
        end_offset: Offset | None = one.end_offset
        if end_offset == open_end:
            end_offset = known_end if known_end > one.start_offset else None
            if end_offset is None and placement.is_dense:
                size_bytes = file.stat().st_size
                end_offset = misplaced_end(
                    ReadOnlyFile(file), one.position, size_bytes, one.start_offset
                )
        if end_offset is not None:
            yield CorruptRange(one.start_offset, end_offset, _base(file), one.position)


def _check(file: Path, end_offset: Offset, placement: Placement) -> Sequence[Damage]:
    size_bytes = file.stat().st_size
    check = ChainCheck(
        ReadOnlyFile(file),
        0,
        _base(file),
        size_bytes=size_bytes,
        end_offset=end_offset,
        placement=placement,
    )
    check.advance(size_bytes)
    return check.damages


def _base(file: Path) -> Offset:
    return Offset(int(file.stem))


def _sealed_end(file: Path) -> Offset:
    try:
        return Seal.decode(file.read_bytes()).end_offset
    except CheckpointDamaged:
        return _base(file)


def _known_ranges(directory: Path) -> list[CorruptRange]:
    return list(map(CorruptRange.parse, _lines(directory / CORRUPT_FILE)))


def _known_bounds(directory: Path) -> tuple[Offset, Offset, bool]:
    """The recorded start and end of the log, and whether the end is exact."""
    start = _noted(directory, START_OFFSETS_FILE)
    end = _noted(directory, RECOVERY_POINTS_FILE)
    return start or Offset(0), end or Offset(0), end is not None and _is_clean(directory.parent)


def _is_clean(data: Path) -> bool:
    return (data / CLEAN_FILE).exists()


def _noted(directory: Path, checkpoint: str) -> Offset | None:
    """The offset that a checkpoint has for the log in this directory."""
    tp = parse_log_dir(directory.name)
    if tp is None:
        return None
    noted = decode_offsets(_lines(directory.parent / checkpoint))
    return noted_offset(noted, tp, _topic_id(directory))


def _topic_id(directory: Path) -> Uuid | None:
    try:
        return decode_metadata((directory / METADATA_FILE).read_bytes(), is_checked=False)
    except (FileNotFoundError, MetadataDamaged):
        return None


def _lines(file: Path) -> list[str]:
    try:
        return decode_checkpoint(file.read_bytes())
    except (FileNotFoundError, CheckpointDamaged):
        return []
