"""Looking after what lies on disk for a long time: is it still what was written?

A log trusts what was once known to be on disk, so a bit that flips there would be sent to whoever
asks. Therefore every sealed segment is read again from time to time, slowly, on a worker's thread:
header chain and CRC of every batch. What is not as it was is told to its log, which never serves
it again, and to the operator.
"""

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from ottla.model import Offset, Position, TimestampMs
from ottla.records.batch import HEADER_BYTES, LENGTH_END, read_header
from ottla.storage.checkpoints import CheckpointDamaged, read_checkpoint, write_checkpoint
from ottla.storage.files import FULL_DISK_ERRNOS, File, Files
from ottla.storage.log import Damage, Log
from ottla.storage.recovery import find_intact, intact_batches
from ottla.storage.segment import LOG, SealedSegment, file_name
from ottla.storage.worker import Pause, Worker

SCRUB_FILE: Final = "scrub-checkpoint"
STEP_BYTES: Final = 256 << 10
_IDLE_S_MIN: Final = 0.1
_IDLE_S_MAX: Final = 1.0

_log = logging.getLogger("ottla.storage")


class Progress(NamedTuple):
    """What one step did."""

    read_bytes: int
    is_done: bool


@dataclass(slots=True)
class SegmentCheck:
    """One reading of one segment, in steps; handed back and forth between owner and worker.

    The file stays open from the first step to the last: compaction may put another in its place.
    """

    directory: Path
    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    damages: list[Damage] = field(default_factory=list)
    _file: File | None = None
    _position: int = 0
    _next_offset: int = 0

    @classmethod
    def of(cls, segment: SealedSegment) -> "SegmentCheck":
        return cls(
            segment.directory,
            segment.base_offset,
            segment.end_offset,
            segment.size_bytes,
            _next_offset=segment.base_offset,
        )

    def run_next(self, files: Files, _: Pause) -> Progress:
        """Read on for a while. `FileNotFoundError` when the segment has been deleted."""
        if self._file is None:
            self._file = files.open(self.directory / file_name(self.base_offset, LOG))
        before = self._position
        try:
            self._advance(self._file)
        except OSError:  # the disk cannot read what it should have kept
            self._give_up()
        return Progress(self._position - before, self._position >= self.size_bytes)

    def _advance(self, file: File) -> None:
        start = Position(self._position)
        batches = intact_batches(file, start, self.size_bytes, self._next_offset, STEP_BYTES)
        for at, fields in batches:
            self._position = at + fields[1] + LENGTH_END
            self._next_offset = fields[0] + fields[6] + 1
            if self._position - start >= STEP_BYTES:
                return
        if self._position < self.size_bytes:
            self._step_over(file)

    def _step_over(self, file: File) -> None:
        """Here is something that is no intact batch: go on behind it, if anything is."""
        next_offset = Offset(self._next_offset)
        resumed = find_intact(file, self._position + 1, self.size_bytes, next_offset)
        if resumed is None:
            self._give_up()
            return
        until = Offset(read_header(file.read(resumed, HEADER_BYTES)).base_offset)
        self.damages.append(Damage(next_offset, until, Position(self._position), resumed))
        self._position, self._next_offset = resumed, until

    def _give_up(self) -> None:
        start = Offset(min(self._next_offset, self.end_offset))
        self.damages.append(Damage(start, self.end_offset, Position(self._position), None))
        self._position = self.size_bytes


class Scrubber:
    """Owner of the one check that is under way. Every method belongs to the owner's thread."""

    def __init__(self, files: Files, worker: Worker, directory: Path) -> None:
        self.read_bytes = 0
        self.segment_count = 0
        self.round_count = 0
        self.damage_count = 0
        self.failure_count = 0
        self._files = files
        self._worker = worker
        self._checkpoint = directory / SCRUB_FILE
        self._queue: deque[tuple[Log, SealedSegment]] = deque()
        self._is_round_open = False
        self._is_busy = False
        self._check: tuple[Log, SealedSegment, SegmentCheck] | None = None
        self._finished_ms: TimestampMs | None = None  # when the last round was over

    def rest_s(self, interval_ms: int, bytes_per_s: int) -> float:
        """How long to wait before the next step, so that others have the disk as well."""
        if self._is_round_open:
            return STEP_BYTES / bytes_per_s
        return min(_IDLE_S_MAX, max(_IDLE_S_MIN, interval_ms / 1000))

    def advance(self, logs: Iterable[Log], now_ms: TimestampMs, interval_ms: int) -> None:
        """Take one step, or begin a round if the last one is `interval_ms` ago."""
        if self._is_busy:
            return
        if interval_ms < 0:
            self._queue.clear()
            self._is_round_open, self._check = False, None
            return
        if not self._is_round_open:
            if now_ms - self._last_finished_ms() < interval_ms:
                return
            self._is_round_open = True
            self._queue.extend((log, one) for log in logs for one in log.sealed_segments)
        if self._check is None and not self._begin_next():
            self._end_round(now_ms)
            return
        assert self._check is not None
        self._is_busy = True
        step = partial(self._check[2].run_next, self._files)
        self._worker.run(step, self._note)

    def _begin_next(self) -> bool:
        while self._queue:
            log, segment = self._queue.popleft()
            if log.offline_reason is None and segment in log.sealed_segments:
                self._check = (log, segment, SegmentCheck.of(segment))
                return True
        return False

    def _note(self, outcome: Progress | Exception) -> None:
        self._is_busy = False
        if self._check is None:
            return
        log, segment, check = self._check
        if isinstance(outcome, Exception):
            self._check = None
            self._note_failure(log, outcome)
            return
        self.read_bytes += outcome.read_bytes
        if not outcome.is_done:
            return
        self._check = None
        self.segment_count += 1
        if check.damages:
            news = log.note_damages(segment, check.damages)
            self.damage_count += len(news)
            for damage in news:
                _log.error("a log is damaged", extra={"tp": str(log.tp), "range": damage})

    def _note_failure(self, log: Log, problem: Exception) -> None:
        """A segment cannot be checked: the others are, unless an assertion of ours is broken."""
        if isinstance(problem, AssertionError):
            raise problem
        if isinstance(problem, FileNotFoundError):
            return  # retention was faster
        self.failure_count += 1
        _log.error("cannot scrub", extra={"tp": str(log.tp)}, exc_info=problem)

    def _end_round(self, now_ms: TimestampMs) -> None:
        self._is_round_open = False
        self.round_count += 1
        self._finished_ms = now_ms
        try:
            write_checkpoint(self._files, self._checkpoint, [str(now_ms)])
        except OSError as error:
            if error.errno not in FULL_DISK_ERRNOS:
                raise

    def _last_finished_ms(self) -> TimestampMs:
        """Also before the broker was last started: a restart is no reason to read everything."""
        if self._finished_ms is None:
            try:
                lines = read_checkpoint(self._files, self._checkpoint)
            except CheckpointDamaged:
                lines = None
            self._finished_ms = TimestampMs(int(lines[0]) if lines else 0)
        return self._finished_ms
