"""`ottla` whose disk hangs while a file is locked, and fails while the file is not empty.

Run as a program: FILE ARGUMENTS, for example `/tmp/disk serve --data DIRECTORY`.
"""

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ottla.cli import main
from ottla.storage.files import OsFile


@contextmanager
def hanging(control: Path) -> Iterator[None]:
    """Let syncs of a program that is controlled by this file wait for the end of the block."""
    with control.open() as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        yield


@contextmanager
def failing(control: Path) -> Iterator[None]:
    """Let syncs of a program that is controlled by this file fail until the end of the block."""
    control.write_text("fail")
    yield
    control.write_text("")


def plant(control: Path) -> None:
    """Let every sync of this process look at the file first."""
    real = OsFile.sync

    def sync(self: OsFile) -> None:
        with control.open() as shared:
            fcntl.flock(shared, fcntl.LOCK_SH)
            if shared.read():
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(self)

    setattr(OsFile, "sync", sync)  # noqa: B010  # mypy refuses to assign to a method


if __name__ == "__main__":
    plant(Path(sys.argv[1]))
    sys.exit(main.run(sys.argv[2:]))
