"""Snapshot files: which are kept, and which go."""

from pathlib import Path

import pytest

from fakes.memory_files import MemoryFiles
from ottla.model import Offset
from ottla.storage.snapshots import Snapshots

DIRECTORY = Path("/data/orders-0")


@pytest.fixture
def snapshots(files: MemoryFiles) -> Snapshots:
    files.make_dir(DIRECTORY)
    return Snapshots(files, DIRECTORY, [])


def write(snapshots: Snapshots, *offsets: int, bases: tuple[int, ...] = ()) -> None:
    for offset in offsets:
        snapshots.write(Offset(offset), b"content", map(Offset, bases))


def offsets(files: MemoryFiles) -> list[int]:
    return [int(name.removesuffix(".snapshot")) for name in files.names(DIRECTORY)]


def test_two_are_kept_besides_those_at_the_start_of_segments(
    files: MemoryFiles, snapshots: Snapshots
) -> None:
    write(snapshots, 10, 12, 20, 25, 27, 29, bases=(0, 10, 20))
    assert offsets(files) == [10, 20, 27, 29]


def test_a_snapshot_is_written_again_in_its_place(files: MemoryFiles, snapshots: Snapshots) -> None:
    write(snapshots, 5)
    snapshots.write(Offset(5), b"new", [])
    assert files.read_whole(DIRECTORY / f"{5:020d}.snapshot") == b"new"
    assert offsets(files) == [5]


def test_those_before_the_log_go(files: MemoryFiles, snapshots: Snapshots) -> None:
    bases = (10, 20, 30, 40)
    write(snapshots, *bases, bases=bases)
    snapshots.remove_below(Offset(20))
    assert offsets(files) == [20, 30, 40]
    assert snapshots.above(Offset(20)) == [30, 40]


def test_those_that_a_start_found_are_known(files: MemoryFiles, snapshots: Snapshots) -> None:
    write(snapshots, 3, 4)
    again = Snapshots(files, DIRECTORY, map(Offset, offsets(files)))
    write(again, 5)
    assert offsets(files) == [4, 5]
