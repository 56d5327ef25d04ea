"""Small text files of names and offsets, with a checksum: whole, or not believed.

Like Kafka's checkpoint files (version, count, one entry per line), but version 1 and with a last
line that holds the CRC-32C of all lines before it.
"""

from collections.abc import Iterable
from typing import Final

from ottla.records.crc import crc32c
from ottla.storage.files import Files, StrPath, replace_file

_VERSION: Final = "1"


class CheckpointDamaged(Exception):
    """A checkpoint file is not what was written: act as if it did not exist, and say so."""


def write_checkpoint(files: Files, path: StrPath, lines: Iterable[str]) -> None:
    """Replace a checkpoint; after a crash either the old or the new one is there, whole."""
    replace_file(files, path, encode_checkpoint(lines))


def read_checkpoint(files: Files, path: StrPath) -> list[str] | None:
    """The lines of a checkpoint; None when it has never been written."""
    try:
        data = files.read_whole(path)
    except FileNotFoundError:
        return None
    return decode_checkpoint(data)


def encode_checkpoint(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    body = "\n".join([_VERSION, str(len(entries)), *entries, ""]).encode()
    return body + f"crc32c {crc32c(body):08x}\n".encode()


def decode_checkpoint(data: bytes) -> list[str]:
    """The inverse of `encode_checkpoint`, or `CheckpointDamaged`."""
    body, mark, crc = data.rpartition(b"crc32c ")
    if not mark or crc != f"{crc32c(body):08x}\n".encode():
        raise CheckpointDamaged("the checkpoint's checksum does not match")
    version, count, *entries, _ = body.decode().split("\n")
    if version != _VERSION or count != str(len(entries)):
        raise CheckpointDamaged(f"version {version} of checkpoints is unknown")
    return entries
