"""A small file is what its owner decided last, whoever writes it and whenever."""

import errno
from pathlib import Path

import pytest

from fakes.memory_files import MemoryFiles
from ottla.storage.small_file import SmallFile

PATH = Path("/data/file")


@pytest.fixture
def files() -> MemoryFiles:
    found = MemoryFiles()
    found.make_dir(PATH.parent)
    return found


def test_content_is_on_disk_once_it_is_replaced(files: MemoryFiles) -> None:
    SmallFile(files, PATH, bytes).replace(b"one")
    assert files.read_whole(PATH) == b"one"


def test_content_that_is_on_disk_is_not_written_again(files: MemoryFiles) -> None:
    file = SmallFile(files, PATH, bytes)
    file.replace(b"one")
    before = files.counts["sync"]
    file.replace(b"one")
    assert file.begin(b"one") is None
    assert files.counts["sync"] == before


def test_what_was_begun_is_written_by_whoever_runs_it(files: MemoryFiles) -> None:
    file = SmallFile(files, PATH, bytes)
    replacement = file.begin(b"one")
    assert replacement is not None
    assert not files.list(PATH.parent)
    replacement.run()
    assert files.read_whole(PATH) == b"one"
    replacement.end()
    assert file.begin(b"one") is None


@pytest.mark.parametrize("is_run_before", [False, True])
def test_of_two_decisions_the_later_one_counts(is_run_before: bool, files: MemoryFiles) -> None:
    file = SmallFile(files, PATH, bytes)
    file.replace(b"first")
    older = file.begin(b"older")
    assert older is not None
    if is_run_before:
        older.run()
    file.replace(b"first")  # as it was: but who knows what is on disk by now
    older.run()
    older.end()
    assert files.read_whole(PATH) == b"first"
    file.replace(b"older")
    assert files.read_whole(PATH) == b"older"


def test_a_replacement_that_failed_is_made_again(files: MemoryFiles) -> None:
    file = SmallFile(files, PATH, bytes)
    files.fail_next("sync", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        file.replace(b"one")
    file.replace(b"one")
    assert files.read_whole(PATH) == b"one"


def test_nobody_writes_a_file_that_its_owner_has_given_up(files: MemoryFiles) -> None:
    file = SmallFile(files, PATH, bytes)
    replacement = file.begin(b"one")
    assert replacement is not None
    file.give_up()
    replacement.run()
    replacement.end()
    assert not files.list(PATH.parent)
    file.replace(b"one")
    assert files.read_whole(PATH) == b"one"
