"""Disk space that is kept for a full disk.

On a full disk some small things must still be possible: to write down that records were deleted,
to end a segment so that retention can take it, to make a log. For these the reserve, a file of
zeros, is removed for a short time. No other code of this process can use the space meanwhile:
lending is one synchronous stretch of the owner's thread. The space that is left becomes the reserve
again, which grows back when there is room.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from ottla.errors import DiskFull
from ottla.storage.files import FULL_DISK_ERRNOS, Files

RESERVE_FILE: Final = ".reserve"
RESERVE_BYTES: Final = 1 << 20
_STEP_BYTES: Final = 64 << 10  # in such steps it grows, so that a nearly full disk gives some

Result = TypeVar("Result")

_log = logging.getLogger("ottla.storage")


class Reserve:
    """A file of a data directory. Owned, like the directory, by one thread."""

    def __init__(self, files: Files, directory: Path) -> None:
        self.size_bytes = 0
        self._files = files
        self._path = directory / RESERVE_FILE

    def refill(self) -> None:
        """Make the reserve as large as it should be, or as there is room for."""
        if self.size_bytes == RESERVE_BYTES:
            return
        try:
            file = self._files.create(self._path)
            self.size_bytes = 0
            while self.size_bytes < RESERVE_BYTES:
                file.append(bytes(_STEP_BYTES))
                self.size_bytes += _STEP_BYTES
        except OSError as error:
            if error.errno not in FULL_DISK_ERRNOS:
                raise

    def lend(self, work: Callable[[], Result]) -> Result:
        """Do `work`, if need be with the reserve's room. It is done twice if the disk is full."""
        try:
            return work()
        except OSError as error:
            if error.errno not in FULL_DISK_ERRNOS or not self.size_bytes:
                raise
        except DiskFull:
            if not self.size_bytes:
                raise
        _log.warning("disk full: reserve used", extra={"path": str(self._path)})
        self._files.unlink(self._path)
        self.size_bytes = 0
        try:
            return work()
        finally:
            self.refill()
