"""Room that is kept for the moment when there is none."""

import errno
from pathlib import Path

import pytest

from fakes.memory_files import MemoryFiles
from ottla.errors import DiskFull
from ottla.storage.reserve import RESERVE_BYTES, RESERVE_FILE, Reserve

ROOT = Path("/data")


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    files.make_dir(ROOT)
    return files


@pytest.fixture
def reserve(files: MemoryFiles) -> Reserve:
    reserve = Reserve(files, ROOT)
    reserve.refill()
    return reserve


def names(files: MemoryFiles) -> list[str]:
    return [entry.name for entry in files.list(ROOT)]


@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, "full"), DiskFull("full")])
def test_work_that_finds_the_disk_full_is_done_again_without_the_reserve(
    files: MemoryFiles, reserve: Reserve, problem: Exception
) -> None:
    seen: list[list[str]] = []

    def work() -> int:
        seen.append(names(files))
        if len(seen) == 1:
            raise problem
        return 7

    assert reserve.lend(work) == 7
    assert seen == [[RESERVE_FILE], []]
    assert reserve.size_bytes == len(files.read_whole(ROOT / RESERVE_FILE)) == RESERVE_BYTES


def test_work_that_fails_twice_fails_and_the_reserve_is_there_again(
    files: MemoryFiles, reserve: Reserve
) -> None:
    def work() -> None:
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        reserve.lend(work)
    assert names(files) == [RESERVE_FILE]


def test_another_error_is_no_reason_to_use_it(files: MemoryFiles, reserve: Reserve) -> None:
    calls: list[None] = []

    def work() -> None:
        calls.append(None)
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        reserve.lend(work)
    assert len(calls) == 1


def test_a_reserve_that_does_not_fit_is_as_large_as_there_is_room_and_grows_back(
    files: MemoryFiles, reserve: Reserve
) -> None:
    def work() -> None:
        if RESERVE_FILE in names(files):
            raise OSError(errno.ENOSPC, "full")
        files.fail_next("append", errno.ENOSPC, suffix=RESERVE_FILE)

    reserve.lend(work)
    assert reserve.size_bytes < RESERVE_BYTES
    reserve.refill()
    assert reserve.size_bytes == RESERVE_BYTES
