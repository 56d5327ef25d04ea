"""Batches of a segment file: which are intact, and where the next one is."""

import pytest

from fakes import build
from fakes.memory_files import MemoryFile, MemoryFiles
from ottla.model import Offset, Position
from ottla.storage.batch_scan import (
    Placement,
    fills,
    find_intact,
    intact_batches,
    misplaced_end,
)

PATH = build.DIRECTORY / f"{0:020d}.log"
SIZE = len(build.batch())


@pytest.fixture
def file(files: MemoryFiles) -> MemoryFile:
    """Ten batches of one record each."""
    files.make_dir(build.DIRECTORY)
    file = files.create(PATH)
    for offset in range(10):
        file.append(build.batch(base_offset=offset))
    return file


def intact(file: MemoryFile, placement: Placement | None = None) -> list[int]:
    found = intact_batches(
        file, Position(0), file.size_bytes(), 0, placement=placement or Placement()
    )
    return [position // SIZE for position, _ in found]


def test_all_batches_of_a_whole_file_are_intact(file: MemoryFile) -> None:
    assert intact(file) == list(range(10))


def test_reads_that_end_inside_a_batch_find_the_same(file: MemoryFile) -> None:
    for read_bytes in (1, 61, SIZE - 1, SIZE + 1, 3 * SIZE + 7):
        found = intact_batches(file, Position(0), file.size_bytes(), 0, read_bytes)
        assert [position for position, _ in found] == [SIZE * number for number in range(10)]


@pytest.mark.parametrize("position", [0, 8, 16, 17, 21, 60, SIZE - 1])
def test_nothing_behind_a_flipped_bit_is_reported(
    files: MemoryFiles, file: MemoryFile, position: int
) -> None:
    files.content(PATH)[4 * SIZE + position] ^= 0x80
    assert intact(file) == [0, 1, 2, 3]


def test_half_a_batch_is_none(file: MemoryFile) -> None:
    file.truncate(3 * SIZE + 30)
    assert intact(file) == [0, 1, 2]


@pytest.mark.parametrize("cut", [0, 1, 30, 3 * SIZE, 3 * SIZE + 30, 9 * SIZE + 70])
def test_a_file_that_became_shorter_ends_where_it_ends(file: MemoryFile, cut: int) -> None:
    """The size was looked at before compaction put another file in its place."""
    size_bytes = file.size_bytes()
    file.truncate(cut)
    for read_bytes in (61, SIZE, 1 << 20):
        found = list(intact_batches(file, Position(0), size_bytes, 0, read_bytes))
        assert [position // SIZE for position, _ in found] == list(range(cut // SIZE))
    behind = cut // SIZE * SIZE + 1
    assert find_intact(file, behind, size_bytes, Offset(0)) is None


def test_the_next_intact_batch_is_found_behind_damage(files: MemoryFiles, file: MemoryFile) -> None:
    files.flip(PATH, 4 * SIZE + 30)
    files.flip(PATH, 5 * SIZE + 30)
    found = find_intact(file, 4 * SIZE + 1, file.size_bytes(), Offset(4))
    assert found == 6 * SIZE
    assert find_intact(file, 4 * SIZE + 1, file.size_bytes(), Offset(4), end_max=6) is None
    assert find_intact(file, 9 * SIZE + 1, file.size_bytes(), Offset(10)) is None


def test_a_batch_behind_the_end_has_a_wrong_offset(files: MemoryFiles) -> None:
    files.make_dir(build.DIRECTORY)
    file = files.create(PATH)
    for offset in (0, 7):
        file.append(build.batch(base_offset=offset))
    assert intact(file) == [0, 1]
    assert intact(file, Placement(end_max=8)) == [0, 1]
    assert intact(file, Placement(end_max=7)) == [0]


def test_a_gap_before_the_last_batch_of_a_dense_log_is_a_wrong_offset(files: MemoryFiles) -> None:
    files.make_dir(build.DIRECTORY)
    file = files.create(PATH)
    for offset in (0, 7):
        file.append(build.batch(base_offset=offset))
    assert intact(file, Placement(is_dense=True)) == [0]
    assert intact(file, Placement(is_dense=True, skips=frozenset({7}))) == [0, 1]
    assert misplaced_end(file, SIZE, 2 * SIZE, Offset(1)) == 2
    assert misplaced_end(file, SIZE, 2 * SIZE - 1, Offset(1)) is None


def test_bytes_of_one_batch_fill_the_rest_or_not(file: MemoryFile) -> None:
    assert fills(file, 9 * SIZE, 10 * SIZE)
    assert not fills(file, 8 * SIZE, 10 * SIZE)
    assert not fills(file, 10 * SIZE - 5, 10 * SIZE)
