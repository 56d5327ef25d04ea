"""The operating system's files, which kill their process at a chosen operation."""

import os
import signal

from ottla.storage.files import Buffer, OsFile, OsFiles, StrPath


class DoomedFiles(OsFiles):
    """Counts whatever changes the disk; instead of the `last`-th change comes SIGKILL.

    A killed append has written its first half, as a real one may have.
    """

    def __init__(self, last: int) -> None:
        self.count = 0
        self._last = last

    def count_down(self) -> bool:
        """Whether the process is to die now."""
        self.count += 1
        return self.count == self._last

    def _change(self) -> None:
        if self.count_down():
            die()

    def open(self, path: StrPath) -> "DoomedFile":
        return DoomedFile(self, path, os.O_RDWR | os.O_APPEND)

    def create(self, path: StrPath) -> "DoomedFile":
        self._change()
        return DoomedFile(self, path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC)

    def make_dir(self, path: StrPath) -> None:
        self._change()
        super().make_dir(path)

    def rename(self, old: StrPath, new: StrPath) -> None:
        self._change()
        super().rename(old, new)

    def unlink(self, path: StrPath) -> None:
        self._change()
        super().unlink(path)

    def remove_dir(self, path: StrPath) -> None:
        self._change()
        super().remove_dir(path)


class DoomedFile(OsFile):
    __slots__ = ("_files",)

    def __init__(self, files: DoomedFiles, path: StrPath, flags: int) -> None:
        super().__init__(path, flags)
        self._files = files

    def append(self, data: Buffer) -> None:
        if self._files.count_down():
            super().append(memoryview(data)[: len(data) // 2])
            die()
        super().append(data)

    def truncate(self, size_bytes: int) -> None:
        if self._files.count_down():
            die()
        super().truncate(size_bytes)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
