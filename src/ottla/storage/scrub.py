"""Looking after what lies on disk for a long time: is it still what was written?

A log trusts what was once known to be on disk, so a bit that flips there would be sent to readers.
Therefore every sealed segment is read again from time to time, slowly, on a worker's thread:
header chain and CRC of every batch; so is an active segment that a start has found, as long as not
all of it has been read. Damage is reported to the log, which never serves
it again, and to the operator. Once after every start the sizes of segments are compared with their
seals, so that one that was cut short is known before it is read.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from ottla.model import Offset, TimestampMs
from ottla.storage.checkpoints import CheckpointDamaged, read_checkpoint, write_checkpoint
from ottla.storage.damages import Damage
from ottla.storage.disk_worker import Pause, Worker
from ottla.storage.epochs import EpochOrder
from ottla.storage.files import Files
from ottla.storage.log import Log
from ottla.storage.seals import read_seal
from ottla.storage.segment import LOG, SealedSegment, Segment, file_name
from ottla.storage.verification import ChainCheck

SCRUB_FILE: Final = "scrub-checkpoint"
STEP_BYTES: Final = 256 << 10
_IDLE_S_MIN: Final = 0.1
_IDLE_S_MAX: Final = 1.0
_SIZES_S: Final = 0.001  # between two logs whose sizes are looked at after a start

_log = logging.getLogger("ottla.storage")


class Progress(NamedTuple):
    """The progress of one step."""

    read_bytes: int
    is_done: bool


class SegmentCheck:
    """A reading of one segment, in steps; handed back and forth between owner and worker.

    The file stays open from the first step to the last: compaction may replace it.
    """

    def __init__(self, segment: Segment, directory: Path, epochs: EpochOrder | None = None) -> None:
        self.segment = segment
        self._epochs = epochs
        self._path = directory / file_name(segment.base_offset, LOG)
        self._size_bytes = segment.size_bytes
        self._end_offset = segment.end_offset
        self._chain: ChainCheck | None = None

    @property
    def damages(self) -> list[Damage]:
        return self._chain.damages if self._chain is not None else []

    def run_next(self, files: Files, _: Pause) -> Progress:
        """Read on for a while. `FileNotFoundError` when the segment has been deleted."""
        if self._chain is None:
            self._chain = ChainCheck(
                files.open(self._path),
                0,
                self.segment.base_offset,
                size_bytes=self._size_bytes,
                end_offset=self._end_offset,
                epochs=self._epochs,
            )
        chain = self._chain
        before = chain.position
        try:
            chain.advance(before + STEP_BYTES)
        except OSError:  # the disk cannot read what it should have kept
            chain.give_up()
        return Progress(chain.position - before, chain.is_done)


def _find_short(
    files: Files, segments: Sequence[SealedSegment], pause: Pause
) -> Sequence[SegmentCheck]:
    """The segments that are smaller than their seals say, each read to its end."""
    short = []
    for segment in segments:
        seal = read_seal(files, segment.directory, segment.base_offset)
        if seal is not None and segment.size_bytes < seal.size_bytes:
            check = SegmentCheck(segment, segment.directory)
            with suppress(FileNotFoundError):  # deleted, or compacted into another
                while not check.run_next(files, pause).is_done:
                    pass
                short.append(check)
    return short


class Scrubber:
    """Owner of the one check that is under way. Every method belongs to the owner's thread."""

    def __init__(
        self, files: Files, worker: Worker, directory: Path, *, has_peers: bool = False
    ) -> None:
        """With `has_peers` a first round begins at once, whenever the last one was, and the epochs
        of batches are compared: what is found then can be had again from peers.
        """
        self.read_bytes = 0
        self.segment_count = 0
        self.round_count = 0
        self.damage_count = 0
        self.failure_count = 0
        self._files = files
        self._worker = worker
        self._checkpoint = directory / SCRUB_FILE
        self._has_peers = has_peers
        self._queue: deque[tuple[Log, Offset]] = deque()  # the base offset of a segment
        self._is_round_open = False
        self._is_busy = False
        self._check: tuple[Log, SegmentCheck] | None = None
        self._unsized: deque[Log] | None = None  # logs whose sizes have not been looked at
        self._finished_ms: TimestampMs | None = None  # when the last round was over

    def rest_s(self, interval_ms: int, bytes_per_s: int) -> float:
        """Seconds to wait before the next step, so that the disk has time for other work."""
        if self._is_round_open:
            return STEP_BYTES / bytes_per_s
        if self._unsized is None or self._unsized:
            return _SIZES_S
        return min(_IDLE_S_MAX, max(_IDLE_S_MIN, interval_ms / 1000))

    def advance(self, logs: Iterable[Log], now_ms: TimestampMs, interval_ms: int) -> None:
        """Take one step, or begin a round if the last one is `interval_ms` ago."""
        if self._is_busy or self._look_at_sizes(logs):
            return
        if interval_ms < 0:
            self._queue.clear()
            self._is_round_open, self._check = False, None
            return
        if not self._is_round_open:
            if now_ms - self._last_finished_ms() < interval_ms:
                return
            self._is_round_open = True
            self._queue.extend((log, one) for log in logs for one in _checked_bases(log))
        if self._check is None and not self._begin_next():
            if not self._queue:
                self._end_round(now_ms)
            return
        assert self._check is not None
        self._is_busy = True
        step = partial(self._check[1].run_next, self._files)
        self._worker.run(step, self._note)

    def _look_at_sizes(self, logs: Iterable[Log]) -> bool:
        """Once after a start, log by log: has any segment lost its end? Whether there was work."""
        if self._unsized is None:
            self._unsized = deque(logs)
        for _ in range(len(self._unsized)):
            log = self._unsized.popleft()
            if log.truncation.is_under_way:
                self._unsized.append(log)
            elif log.offline_reason is None and log.sealed_segments:
                self._is_busy = True
                look = partial(_find_short, self._files, log.sealed_segments)
                self._worker.run(look, partial(self._note_short, log))
                return True
        return False

    def _note_short(self, log: Log, outcome: Sequence[SegmentCheck] | Exception) -> None:
        self._is_busy = False
        if log.truncation.is_under_way:
            assert self._unsized is not None, "looked at after a start"
            self._unsized.append(log)
        elif isinstance(outcome, OSError):
            _log.warning("scrub failed", extra={"tp": str(log.tp), "reason": outcome})
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            for check in outcome:
                self._note_damages(log, check)

    def _note_damages(self, log: Log, check: SegmentCheck) -> None:
        news = log.repair.note_damages(check.segment, check.damages)
        self.damage_count += len(news)

    def _begin_next(self) -> bool:
        """Begin to check the next segment, if there is one of a log that is not just being cut."""
        for _ in range(len(self._queue)):
            log, base = self._queue.popleft()
            if log.truncation.is_under_way:
                self._queue.append((log, base))
                continue
            segments: tuple[Segment, ...] = (*log.sealed_segments, log.active_segment)
            segment = next((one for one in segments if one.base_offset == base), None)
            if log.offline_reason is None and segment is not None and segment.size_bytes:
                epochs = EpochOrder(log.epochs.entries()) if self._has_peers else None
                self._check = (log, SegmentCheck(segment, log.directory, epochs))
                return True
        return False

    def _note(self, outcome: Progress | Exception) -> None:
        self._is_busy = False
        if self._check is None:
            return
        log, check = self._check
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
            if log.repair.has_segment(check.segment):
                self._note_damages(log, check)
            else:  # it was sealed, compacted or deleted meanwhile: read what is there now
                self._queue.appendleft((log, check.segment.base_offset))

    def _note_failure(self, log: Log, problem: Exception) -> None:
        """A segment cannot be checked: the others are, unless an assertion of ours is broken."""
        if isinstance(problem, AssertionError):
            raise problem
        if isinstance(problem, FileNotFoundError):
            return  # retention was faster
        self.failure_count += 1
        _log.error("scrub failed", extra={"tp": str(log.tp)}, exc_info=problem)

    def _end_round(self, now_ms: TimestampMs) -> None:
        self._is_round_open = False
        self.round_count += 1
        self._finished_ms = now_ms
        self._is_busy = True
        self._worker.run(
            lambda _: write_checkpoint(self._files, self._checkpoint, [str(now_ms)]),
            self._note_written,
        )

    def _note_written(self, outcome: Exception | None) -> None:
        """The end of a round is on disk, or not: then the next start reads everything again."""
        self._is_busy = False
        if isinstance(outcome, OSError):
            _log.warning("scrub checkpoint failed", extra={"reason": outcome})
        elif outcome is not None:
            raise outcome

    def _last_finished_ms(self) -> TimestampMs:
        """Also before the broker was last started: a restart is no reason to read everything."""
        if self._finished_ms is None and self._has_peers:
            return TimestampMs(0)
        if self._finished_ms is None:
            try:
                lines = read_checkpoint(self._files, self._checkpoint)
            except CheckpointDamaged:
                lines = None
            self._finished_ms = TimestampMs(int(lines[0]) if lines else 0)
        return self._finished_ms


def _checked_bases(log: Log) -> Iterator[Offset]:
    """The segments to read: all sealed ones, and the active one if a start has found it."""
    for segment in log.sealed_segments:
        yield segment.base_offset
    if log.active_segment.unchecked.end:
        yield log.active_segment.base_offset
