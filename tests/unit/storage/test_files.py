"""The operating system's files, as the log uses them."""

import errno
import os
from pathlib import Path

import pytest

from ottla.errors import UsageRefused
from ottla.storage.files import Entry, OsFiles, replace_file


def test_what_is_appended_is_read_at_its_position(tmp_path: Path) -> None:
    file = OsFiles().create(tmp_path / "a")
    file.append(b"hello ")
    file.append(memoryview(bytearray(b"world")))
    assert file.size_bytes() == 11
    assert file.read(6, 100) == b"world"
    assert file.read(20, 5) == b""
    file.sync()


def test_appending_goes_on_where_a_truncated_file_ends(tmp_path: Path) -> None:
    file = OsFiles().create(tmp_path / "a")
    file.append(b"hello")
    file.truncate(2)
    file.append(b"!")
    assert OsFiles().open(tmp_path / "a").read(0, 10) == b"he!"


def test_creating_a_file_forgets_the_one_before(tmp_path: Path) -> None:
    OsFiles().create(tmp_path / "a").append(b"old")
    assert OsFiles().create(tmp_path / "a").size_bytes() == 0


def test_opening_what_is_not_there_fails(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OsFiles().open(tmp_path / "a")


def test_short_writes_are_continued(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    file = OsFiles().create(tmp_path / "a")
    os.dup2(writing, file.fileno())
    with pytest.raises(OSError, match="unavailable") as full:
        file.append(bytes(1 << 20))
    assert full.value.errno == errno.EAGAIN, "it went on until the pipe was full"
    os.close(reading)
    os.close(writing)


def test_a_file_outlives_its_name_and_closes_with_its_last_reference(tmp_path: Path) -> None:
    file = OsFiles().create(tmp_path / "a")
    file.append(b"still here")
    descriptor = file.fileno()
    OsFiles().unlink(tmp_path / "a")
    assert file.read(0, 5) == b"still"
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_directory_is_listed_in_order(tmp_path: Path) -> None:
    files = OsFiles()
    files.make_dir(tmp_path / "b" / "c")
    files.make_dir(tmp_path / "b")
    files.create(tmp_path / "a").append(b"xyz")
    files.sync_dir(tmp_path)
    listed = files.list(tmp_path)
    assert [(entry.name, entry.is_dir) for entry in listed] == [("a", False), ("b", True)]
    assert listed[0] == Entry("a", False, 3)
    files.remove_dir(tmp_path / "b" / "c")
    assert files.list(tmp_path / "b") == []


def test_removing_what_is_not_there_is_fine(tmp_path: Path) -> None:
    OsFiles().unlink(tmp_path / "a")


def test_a_replaced_file_leaves_no_temporary_one(tmp_path: Path) -> None:
    files = OsFiles()
    replace_file(files, tmp_path / "a", b"one")
    replace_file(files, tmp_path / "a", b"two")
    assert files.read_whole(tmp_path / "a") == b"two"
    assert [entry.name for entry in files.list(tmp_path)] == ["a"]


def test_a_lock_is_held_until_it_is_dropped(tmp_path: Path) -> None:
    held: object | None = OsFiles().lock(tmp_path / ".lock")
    with pytest.raises(UsageRefused, match="in use by another broker"):
        OsFiles().lock(tmp_path / ".lock")
    assert held is not None
    held = None
    OsFiles().lock(tmp_path / ".lock")


def test_what_vanishes_while_a_directory_is_listed_is_not_listed(tmp_path: Path) -> None:
    """Flusher and worker rename files while the other looks. A name without a file is the same."""
    (tmp_path / "b").write_bytes(b"12")
    (tmp_path / "a").symlink_to(tmp_path / "gone")
    assert OsFiles().list(tmp_path) == [Entry("b", False, 2)]
