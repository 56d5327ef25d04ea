"""A small file beside every sealed segment: it was whole and on disk, up to this offset and byte.

It also has the checksum of the segment's aborted transactions, whose file has none of its own.

Written when a segment is sealed, after the segment itself has been synced, and replaced together
with it by compaction. So a seal distinguishes a loss from an interrupted write: a segment that
ends before its seal says, or is missing while its seal is there, has been acknowledged and lost; a
segment without a seal may have been cut short by a power cut, and nothing behind it has been
acknowledged as durable. Like a checkpoint it carries a checksum; a damaged one says nothing.
"""

from pathlib import Path
from typing import NamedTuple

from ottla.model import Offset
from ottla.storage.checkpoints import (
    CheckpointDamaged,
    decode_checkpoint,
    encode_checkpoint,
)
from ottla.storage.files import File, Files, replace_file
from ottla.storage.index import aborted_crc
from ottla.storage.segment import (
    SEAL,
    Indexes,
    UnsyncedFile,
    begin_file,
    file_path,
    store_indexes,
    write_cleaned,
)


class Seal(NamedTuple):
    """The end of a sealed segment."""

    end_offset: Offset
    size_bytes: int
    aborted_crc: int | None = None  # None in a seal of an older Ottla

    @classmethod
    def of(cls, end_offset: Offset, size_bytes: int, indexes: Indexes) -> "Seal":
        """The seal of a segment that ends here and has these indexes."""
        return cls(end_offset, size_bytes, aborted_crc(indexes.aborted))

    def encode(self) -> bytes:
        numbers = self if self.aborted_crc is not None else self[:2]
        return encode_checkpoint([" ".join(map(str, numbers))])

    @classmethod
    def decode(cls, data: bytes) -> "Seal":
        """The inverse of `encode`, or `CheckpointDamaged`."""
        lines = decode_checkpoint(data)
        try:
            end_offset, size_bytes, *crc = map(int, lines[0].split(" "))
        except (ValueError, IndexError):
            raise CheckpointDamaged("a seal has two or three numbers") from None
        return cls(Offset(end_offset), size_bytes, crc[0] if crc else None)


def begin_seal(files: Files, directory: Path, base_offset: Offset, seal: Seal) -> UnsyncedFile:
    """Write a seal that counts once `store_sealed` has given it its name."""
    return begin_file(files, file_path(directory, base_offset, SEAL), seal.encode())


def store_sealed(files: Files, directory: Path, log_file: File, begun: list[UnsyncedFile]) -> None:
    """Sync a segment and its name, then give indexes and seal their names. On any thread."""
    log_file.sync()
    files.sync_dir(directory)
    store_indexes(files, begun)


def write_seal(files: Files, directory: Path, base_offset: Offset, seal: Seal) -> None:
    """Seal a segment that is on disk."""
    replace_file(files, file_path(directory, base_offset, SEAL), seal.encode())


def write_cleaned_seal(files: Files, directory: Path, base_offset: Offset, seal: Seal) -> None:
    """Write the seal of a segment that is to replace others."""
    write_cleaned(files, directory, base_offset, SEAL, seal.encode())


def read_seal(files: Files, directory: Path, base_offset: Offset) -> Seal | None:
    """A segment's seal; None when it has none, or one that cannot be believed."""
    try:
        return Seal.decode(files.read_whole(file_path(directory, base_offset, SEAL)))
    except (FileNotFoundError, CheckpointDamaged):
        return None
