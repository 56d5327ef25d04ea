"""Reading the leader epochs of a whole log off its batches, because what is noted is wrong.

Begun and ended by `LogRepair`, on the owner's thread. A log may have a hundred gigabytes, so any
thread reads it, in steps; the log is appended to meanwhile.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from ottla.model import LeaderEpoch, Offset, Position
from ottla.records.batch import BatchHeader
from ottla.storage.disk_worker import Pause
from ottla.storage.epochs import Epochs
from ottla.storage.files import Files
from ottla.storage.segment import LOG, file_path, walk

_BATCHES_PER_TURN: Final = 256  # before other threads have their turn
_TURNS_PER_STEP: Final = 64  # before other work of the thread has its turn


class EpochScan:
    """A reading of the log as it was when this was made. `epochs` are those read so far."""

    def __init__(
        self,
        directory: Path,
        segments: Sequence[tuple[Offset, int]],
        end_offset: Offset,
        timeline: int,
    ) -> None:
        """`segments` are base offsets and sizes in bytes."""
        self.end_offset = end_offset
        self.timeline = timeline
        self.epochs = Epochs()
        self._directory = directory
        self._segments = segments
        self._headers: Iterator[BatchHeader] | None = None

    def run_next(self, files: Files, pause: Pause) -> bool:
        """Read on for a while, on any thread; True when all has been read.

        `FileNotFoundError` when a segment has gone meanwhile, CorruptBatch where there is none.
        """
        if self._headers is None:
            self._headers = self._walk_all(files)
        for _ in range(_TURNS_PER_STEP):
            headers = list(islice(self._headers, _BATCHES_PER_TURN))
            for header in headers:
                self.epochs.note(LeaderEpoch(header.leader_epoch), Offset(header.base_offset))
            if len(headers) < _BATCHES_PER_TURN:
                return True
            pause()
        return False

    def _walk_all(self, files: Files) -> Iterator[BatchHeader]:
        for base_offset, size_bytes in self._segments:
            file = files.open(file_path(self._directory, base_offset, LOG))
            for _, header in walk(file, Position(0), size_bytes):
                yield header
