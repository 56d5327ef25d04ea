"""The file system, as little of it as the log needs: everything durable goes through here.

Two implementations exist: `OsFiles` below, and the tests' memory files, which forget what was
never synced, tear the last write and fail on request.
"""

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from os import PathLike
from os.path import dirname
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from ottla.errors import UsageRefused

Buffer = bytes | bytearray | memoryview
StrPath = str | PathLike[str]

# The disk is full: an operator's problem, and no sign that what is on it has gone bad.
FULL_DISK_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# There are no descriptors left: that passes.
CROWDED_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE})
# The system does not let us: an operator's problem as well.
REFUSAL_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM}) | CROWDED_ERRNOS


class Entry(NamedTuple):
    """A name in a directory."""

    name: str
    is_dir: bool
    size_bytes: int


class DiskSpace(NamedTuple):
    """Bytes of a file system: in all, and left for us."""

    total_bytes: int
    usable_bytes: int


class Readable(Protocol):
    """A file, or bytes, that can be read from any position."""

    def read(self, position: int, size_bytes: int) -> bytes:
        """Up to `size_bytes` from `position` on; fewer only where the file ends."""
        ...


class Sendable(Readable, Protocol):
    """A file, or bytes, that can be sent to a socket."""

    def fileno(self) -> int:
        """The descriptor, for sendfile; -1 when there is none."""
        ...


class File(Sendable, Protocol):
    """An open file. It stays readable, even unlinked, until the last reference to it goes."""

    def append(self, data: Buffer) -> None:
        """Add all of `data` at the end, or raise with an unknown part of it added."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Forget everything behind the first `size_bytes`."""
        ...

    def sync(self) -> None:
        """Return once content and size are on disk. The one method other threads may call."""
        ...

    def size_bytes(self) -> int: ...

    def modified_ms(self) -> int:
        """The wall clock time when the content was last changed."""
        ...


class Lock(Protocol):
    """The lock of a directory, released with the last reference."""

    def fileno(self) -> int: ...


class Files(Protocol):
    """The directories of one machine's disk."""

    def open(self, path: StrPath) -> File:
        """A file that exists, for reading and appending."""
        ...

    def create(self, path: StrPath) -> File:
        """A new and empty file; whatever had the name before is gone."""
        ...

    def read_whole(self, path: StrPath) -> bytes: ...

    def list(self, directory: StrPath) -> list[Entry]:
        """The entries of a directory, by name. Other threads may be changing it."""
        ...

    def names(self, directory: StrPath) -> Sequence[str]:
        """The names in a directory, which take less to find out than everything about them."""
        ...

    def size_bytes(self, path: StrPath) -> int: ...

    def make_dir(self, path: StrPath) -> None:
        """Make a directory and those above it; it may exist."""
        ...

    def rename(self, old: StrPath, new: StrPath) -> None: ...

    def unlink(self, path: StrPath) -> None:
        """Remove a file; it may be missing."""
        ...

    def remove_dir(self, path: StrPath) -> None:
        """Remove an empty directory."""
        ...

    def sync_dir(self, path: StrPath) -> None:
        """Return once the names in a directory are on disk."""
        ...

    def sync_all(self, lock: "Lock") -> None:
        """Return once everything written so far is on disk, of the whole disk that a lock is on.

        For very many files: it takes one wait where `sync` takes one for each. A write that failed
        since the lock was taken is reported, once.
        """
        ...

    def disk_space(self, path: StrPath) -> "DiskSpace":
        """The file system that a path is on."""
        ...

    def lock(self, path: Path) -> "Lock":
        """Hold `path` alone for as long as the returned object lives, or `UsageRefused`."""
        ...


def within(directory: StrPath, name: str) -> str:
    """The path of a name in a directory: to make a `Path` takes ten times as long."""
    return f"{directory}/{name}"


def replace_file(files: Files, path: StrPath, content: Buffer, *, is_syncing: bool = True) -> None:
    """Write a small file so that after a crash it is whole: either the old one or the new one.

    Without `is_syncing` that is so once everything has been synced; until then it may be empty.
    """
    temporary = f"{path}.tmp"
    file = files.create(temporary)
    file.append(content)
    if is_syncing:
        file.sync()
    files.rename(temporary, path)
    if is_syncing:
        files.sync_dir(dirname(path))


_open_descriptors: Final[set[int]] = set()  # of every `OsFile`, on whatever thread


def open_file_count() -> int:
    """The number of files that this process has open through this module."""
    return len(_open_descriptors)


class CopiedFile:
    """A part of a file in memory, for a reader who is to keep no file open."""

    __slots__ = ("_content",)

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, position: int, size_bytes: int) -> bytes:
        return self._content[position : position + size_bytes]

    def fileno(self) -> int:
        return -1


class OsFile:
    """A file of the operating system; its descriptor closes with the last reference."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: StrPath, flags: int) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        _open_descriptors.add(self._descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            _open_descriptors.discard(self._descriptor)  # first: closed, its number is another's
            os.close(self._descriptor)

    def append(self, data: Buffer) -> None:
        written = os.write(self._descriptor, data)
        if written != len(data):
            self._append_rest(memoryview(data)[written:])

    def _append_rest(self, rest: memoryview) -> None:
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def read(self, position: int, size_bytes: int) -> bytes:
        data = os.pread(self._descriptor, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        return data + self.read(position + len(data), size_bytes - len(data))

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def size_bytes(self) -> int:
        return os.fstat(self._descriptor).st_size

    def modified_ms(self) -> int:
        return os.fstat(self._descriptor).st_mtime_ns // 1_000_000

    def fileno(self) -> int:
        return self._descriptor


class OsFiles:
    """The operating system's files."""

    def open(self, path: StrPath) -> OsFile:
        return OsFile(path, os.O_RDWR | os.O_APPEND)

    def create(self, path: StrPath) -> OsFile:
        return OsFile(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC)

    def read_whole(self, path: StrPath) -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.readall()

    def list(self, directory: StrPath) -> list[Entry]:
        with os.scandir(directory) as found:
            return sorted(_entries(found))

    def names(self, directory: StrPath) -> Sequence[str]:
        return sorted(os.listdir(directory))

    def size_bytes(self, path: StrPath) -> int:
        return os.stat(path).st_size

    def make_dir(self, path: StrPath) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: StrPath, new: StrPath) -> None:
        os.rename(old, new)

    def unlink(self, path: StrPath) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

    def remove_dir(self, path: StrPath) -> None:
        os.rmdir(path)

    def sync_dir(self, path: StrPath) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_all(self, lock: Lock) -> None:
        _sync_file_system(lock.fileno())

    def disk_space(self, path: StrPath) -> DiskSpace:
        found = os.statvfs(path)
        return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def lock(self, path: Path) -> OsFile:
        file = OsFile(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageRefused(
                f"{path.parent} is in use by another broker: stop it, or choose another"
                " data directory"
            ) from None
        return file


class VolatileFile(OsFile):
    """A file that is never needed after a power cut: no caller waits for the disk."""

    __slots__ = ()

    def sync(self) -> None:
        return


class VolatileFiles(OsFiles):
    """The operating system's files, for a directory that its user removes in the end."""

    def open(self, path: StrPath) -> VolatileFile:
        return VolatileFile(path, os.O_RDWR | os.O_APPEND)

    def create(self, path: StrPath) -> VolatileFile:
        return VolatileFile(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC)

    def sync_dir(self, path: StrPath) -> None:
        return

    def sync_all(self, lock: Lock) -> None:
        return


def _sync_file_system(descriptor: int) -> None:
    """Linux's `syncfs`, which reports writes that failed; elsewhere the whole machine's `sync`."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
    elif syncfs(descriptor):
        number = ctypes.get_errno()
        raise OSError(number, f"syncfs: {os.strerror(number)}")


def _entries(found: Iterable[os.DirEntry[str]]) -> Iterator[Entry]:
    for item in found:
        with suppress(FileNotFoundError):  # another thread has renamed or removed it meanwhile
            is_dir = item.is_dir()
            yield Entry(item.name, is_dir, 0 if is_dir else item.stat().st_size)
