"""The operating system's files, until they are told to fail.

Like a real disk after a failed sync, they do not promise that what was written since the last good
one is still there: `forget_unsynced` takes it away.
"""

import errno
import os
import threading
from pathlib import Path

from ottla.storage.files import Buffer, OsFile, OsFiles, StrPath


class FaultyFiles(OsFiles):
    """Operations fail from `fail` on until `heal`; the thread that syncs sees it too."""

    def __init__(self) -> None:
        self._faults: dict[str, tuple[int, str]] = {}
        self._synced: dict[Path, int] = {}
        self._failures = threading.Semaphore(0)
        self._passing = threading.Event()  # cleared while syncs have to wait
        self._passing.set()

    def fail(self, operation: str, number: int = errno.EIO, *, suffix: str = "") -> None:
        """Let `append`, `sync`, `create` or `truncate` fail on files whose names end so."""
        self._faults[operation] = (number, suffix)

    def heal(self) -> None:
        self._faults.clear()

    def hold_syncs(self) -> None:
        """Let every sync wait, from the next one on, until `release_syncs`."""
        self._passing.clear()

    def release_syncs(self) -> None:
        self._passing.set()

    def wait_passing(self) -> None:
        self._passing.wait()

    def wait_failed(self, count: int, timeout_s: float) -> None:
        """Return when this many operations have failed since the last wait."""
        for _ in range(count):
            assert self._failures.acquire(timeout=timeout_s), "nothing failed"

    def forget_unsynced(self) -> int:
        """Cut every segment to what was synced; return how many bytes went."""
        gone_bytes = 0
        for path, synced_bytes in self._synced.items():
            if path.exists() and path.suffix == ".log":
                gone_bytes += path.stat().st_size - synced_bytes
                os.truncate(path, synced_bytes)
        return gone_bytes

    def check(self, operation: str, path: Path) -> None:
        number, suffix = self._faults.get(operation, (0, ""))
        if number and path.name.endswith(suffix):
            self._failures.release()
            raise OSError(number, os.strerror(number), str(path))

    def note_synced(self, path: Path, size_bytes: int) -> None:
        self._synced[path] = size_bytes

    def open(self, path: StrPath) -> "FaultyFile":
        return FaultyFile(self, Path(path), os.O_RDWR | os.O_APPEND)

    def create(self, path: StrPath) -> "FaultyFile":
        path = Path(path)
        self.check("create", path)
        self.note_synced(path, 0)
        return FaultyFile(self, path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC)


class FaultyFile(OsFile):
    __slots__ = ("_files", "_path")

    def __init__(self, files: FaultyFiles, path: Path, flags: int) -> None:
        super().__init__(path, flags)
        self._files = files
        self._path = path

    def append(self, data: Buffer) -> None:
        self._files.check("append", self._path)
        super().append(data)

    def truncate(self, size_bytes: int) -> None:
        self._files.check("truncate", self._path)
        super().truncate(size_bytes)

    def sync(self) -> None:
        size_bytes = self.size_bytes()
        self._files.wait_passing()
        self._files.check("sync", self._path)
        super().sync()
        self._files.note_synced(self._path, size_bytes)
