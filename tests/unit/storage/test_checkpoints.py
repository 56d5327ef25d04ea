"""Checkpoint files: whole, or not believed."""

from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from fakes.memory_files import MemoryFiles
from ottla.storage.checkpoints import (
    CheckpointDamaged,
    decode_checkpoint,
    encode_checkpoint,
    read_checkpoint,
    write_checkpoint,
)

LINES = ["orders 0 17", "orders 1 40000"]
PATH = Path("/data/points")


def test_lines_come_back() -> None:
    assert decode_checkpoint(encode_checkpoint(LINES)) == LINES
    assert decode_checkpoint(encode_checkpoint([])) == []


def test_the_format_is_plain_text() -> None:
    text = encode_checkpoint(LINES).decode()
    assert text.splitlines()[:4] == ["1", "2", "orders 0 17", "orders 1 40000"]
    assert text.splitlines()[4].startswith("crc32c ")


def test_a_missing_file_is_no_damage() -> None:
    assert read_checkpoint(MemoryFiles(), PATH) is None


def test_a_written_file_survives_a_power_cut() -> None:
    files = MemoryFiles()
    files.make_dir(PATH.parent)
    write_checkpoint(files, PATH, LINES)
    assert read_checkpoint(files.cut_power(Random(1)), PATH) == LINES


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    whole = encode_checkpoint(LINES)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        with pytest.raises(CheckpointDamaged):
            decode_checkpoint(bytes(damaged))
        with pytest.raises(CheckpointDamaged):
            decode_checkpoint(whole[:position])


def test_a_version_of_tomorrow_is_not_guessed_at() -> None:
    body = b"2\n0\n"
    with pytest.raises(CheckpointDamaged, match="version 2"):
        decode_checkpoint(body + b"crc32c %08x\n" % crc32c(body))
