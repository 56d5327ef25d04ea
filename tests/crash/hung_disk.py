"""`ottla` whose disk hangs while a file exists, or fails if `fail` is written in that file.

Run as a program: FILE ARGUMENTS, for example `/tmp/hang serve --data DIRECTORY`.
"""

import errno
import os
import sys
import time
from pathlib import Path
from typing import Final

from ottla.cli import main
from ottla.storage.files import OsFile

FAIL: Final = "fail"
HANG: Final = "hang"


def plant(marker: Path) -> None:
    """Let no file be synced while the marker exists."""
    real = OsFile.sync

    def sync(self: OsFile) -> None:
        while marker.exists():
            if marker.read_text() == FAIL:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            time.sleep(0.01)
        real(self)

    setattr(OsFile, "sync", sync)  # noqa: B010  # mypy refuses to assign to a method


if __name__ == "__main__":
    plant(Path(sys.argv[1]))
    sys.exit(main.run(sys.argv[2:]))
