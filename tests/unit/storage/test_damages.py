"""Corrupt ranges: in order, refused, and remembered."""

from pathlib import Path

import pytest

from fakes.memory_files import MemoryFiles
from ottla.errors import CorruptBatch
from ottla.model import Offset, Position
from ottla.storage.damages import CORRUPT_FILE, CorruptRange, Damages, load_ranges, merged

DIRECTORY = Path("/data/orders-0")


def range_of(start: int, end: int, base: int = 0, position: int = 0) -> CorruptRange:
    return CorruptRange(Offset(start), Offset(end), Offset(base), Position(position))


@pytest.fixture
def damages(files: MemoryFiles) -> Damages:
    files.make_dir(DIRECTORY)
    return Damages(files, DIRECTORY, [])


def test_ranges_are_merged_when_one_lies_inside_another() -> None:
    inside, outside, apart = range_of(3, 4), range_of(2, 6), range_of(8, 9)
    assert merged([apart, inside, outside, inside]) == [outside, apart]


def test_only_offsets_in_a_range_are_refused(damages: Damages) -> None:
    damages.add([range_of(3, 5)])
    for offset in (2, 5):
        damages.refuse(Offset(offset))
    for offset in (3, 4):
        with pytest.raises(CorruptBatch, match="from offset 5 on"):
            damages.refuse(Offset(offset))


def test_the_next_range_is_one_of_the_same_segment(damages: Damages) -> None:
    here, there = range_of(3, 5, base=0), range_of(12, 13, base=10)
    damages.add([here, there])
    assert damages.next_in(Offset(0), Offset(2)) == here
    assert damages.next_in(Offset(0), Offset(3)) is None
    assert damages.next_in(Offset(10), Offset(0)) == there


def test_only_what_was_not_known_is_returned(damages: Damages) -> None:
    assert damages.add([range_of(3, 5)]) == [range_of(3, 5)]
    assert damages.add([range_of(3, 5), range_of(7, 8)]) == [range_of(7, 8)]


def test_ranges_are_remembered_until_the_log_starts_behind_them(
    files: MemoryFiles, damages: Damages
) -> None:
    damages.add([range_of(3, 5, 0, 70), range_of(7, 8)])
    assert load_ranges(files, DIRECTORY) == [range_of(3, 5, 0, 70), range_of(7, 8)]
    damages.forget_below(Offset(5))
    assert load_ranges(files, DIRECTORY) == damages.ranges == [range_of(7, 8)]


def test_what_has_not_changed_is_not_written(files: MemoryFiles, damages: Damages) -> None:
    damages.add([range_of(3, 5)])
    before = files.counts.copy()
    damages.add([range_of(3, 5)])
    damages.forget_below(Offset(1))
    assert files.counts == before


def test_a_damaged_file_of_ranges_counts_as_none(files: MemoryFiles, damages: Damages) -> None:
    damages.add([range_of(3, 5)])
    files.flip(DIRECTORY / CORRUPT_FILE, 4)
    assert load_ranges(files, DIRECTORY) == []
