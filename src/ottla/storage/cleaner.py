"""Compaction as a chore: one log at a time, the dirtiest first, on a thread of its own.

Like the flusher: the owner hands work over and gets it back, and only the owner touches logs. The
worker pauses often, because in one interpreter its every step is one that the owner cannot take.
"""

import errno
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from ottla.errors import ApiError, StorageFailed
from ottla.model import Offset, TimestampMs
from ottla.storage.compaction import (
    Cleanable,
    CleanedSegment,
    Counts,
    Pass,
    dirtiest,
    is_worth_it,
)
from ottla.storage.files import FULL_DISK_ERRNOS, Files
from ottla.storage.log import Log
from ottla.storage.segment import remove_cleaned

Step = Callable[[Callable[[], None]], CleanedSegment | None]  # is given a way to pause
Outcome = CleanedSegment | None | Exception
Post = Callable[[Callable[[], None]], object]

_log = logging.getLogger("ottla.storage")

_GONE_ERRNOS: Final = frozenset({errno.ENOENT})  # a segment, or the whole log, was deleted


class Worker(Protocol):
    """Who carries out the steps of a pass."""

    def run(self, step: Step, done: Callable[[Outcome], None]) -> None:
        """Take one step and hand its outcome to `done`, on the owner's thread."""
        ...

    def close(self) -> None:
        """Stop soon; a step that is under way is given up, and nobody hears of it."""
        ...


class InlineWorker:
    """Works at once, on the caller's thread: for simulation and tests."""

    def run(self, step: Step, done: Callable[[Outcome], None]) -> None:
        done(_outcome(step, _do_nothing))

    def close(self) -> None:
        return


class ThreadWorker:
    """Works on a thread of its own. `post` runs a callback on the owner's thread soon.

    `pause` lets other threads run for a moment (production: a short sleep).
    """

    def __init__(self, *, post: Post, pause: Callable[[], None]) -> None:
        self._post = post
        self._pause = pause
        self._is_closing = False
        self._steps: queue.SimpleQueue[tuple[Step, Callable[[Outcome], None]] | None]
        self._steps = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ottla-cleaner", daemon=True)
        self._thread.start()

    def run(self, step: Step, done: Callable[[Outcome], None]) -> None:
        self._steps.put((step, done))

    def close(self) -> None:
        self._is_closing = True
        self._steps.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._steps.get()) is not None and not self._is_closing:
            step, done = work
            try:
                outcome = _outcome(step, self._take_breath)
            except _Closing:
                return
            self._post(partial(done, outcome))

    def _take_breath(self) -> None:
        if self._is_closing:
            raise _Closing
        self._pause()


class _Closing(BaseException):
    """The worker is to stop; what it was writing is removed when the log is opened again."""


class Cleaner:
    """Owner of the one pass that is under way. Every method belongs to the owner's thread."""

    def __init__(self, files: Files, worker: Worker) -> None:
        self.on_finished: Callable[[], object] = _do_nothing  # the next log may have its turn
        self.totals = Counts()
        self.pass_count = 0
        self.failure_count = 0
        self._files = files
        self._worker = worker
        self._is_busy = False
        self._shunned: set[Log] = set()  # damaged: until an operator has looked after them

    def begin(
        self, logs: Iterable[tuple[Log, Offset]], now_ms: TimestampMs, memory_bytes_max: int
    ) -> None:
        """Begin to compact the dirtiest of these logs, each below its offset.

        Nothing happens when it would not be worth it, or when a pass is under way.
        """
        if self._is_busy:
            return
        worth: list[tuple[Log, Cleanable]] = []
        for log, limit in logs:
            part = self._cleanable(log, limit, now_ms)
            if part is not None and is_worth_it(part, log.config):
                worth.append((log, part))
        if not worth:
            return
        log, part = worth[dirtiest([part for _, part in worth])]
        self._is_busy = True
        self._step(log, log.begin_cleaning(part, now_ms, memory_bytes_max))

    def close(self) -> None:
        self._worker.close()

    def _cleanable(self, log: Log, limit: Offset, now_ms: TimestampMs) -> Cleanable | None:
        if log in self._shunned:
            return None
        try:
            return log.cleanable(limit, now_ms)
        except StorageFailed:
            return None  # the disk is full, or gone: others may still be compacted
        except ApiError as problem:
            self._shun(log, problem)
            return None

    def _shun(self, log: Log, problem: Exception) -> None:
        self.failure_count += 1
        self._shunned.add(log)
        _log.error("cannot compact", extra={"tp": str(log.tp)}, exc_info=problem)

    def _step(self, log: Log, work: Pass) -> None:
        self._worker.run(partial(work.run_next, self._files), partial(self._note, log, work))

    def _note(self, log: Log, work: Pass, outcome: Outcome) -> None:
        try:
            if isinstance(outcome, Exception):
                self._note_failure(log, outcome)
            elif outcome is None:
                log.end_cleaning(work)
                self._note_finished(log, work)
            elif log.swap_in(work, outcome):
                self._step(log, work)
            else:
                self._is_busy = False  # the log has changed: begin anew with what it is now
        except OSError as error:  # half done on disk: nothing here may be trusted any more
            self._is_busy = False
            log.on_failed(error)

    def _note_finished(self, log: Log, work: Pass) -> None:
        self._is_busy = False
        self.pass_count += 1
        self.totals.add(work.counts)
        _log.info(
            "compacted",
            extra={
                "tp": str(log.tp),
                "end": work.end,
                "read_bytes": work.counts.read_bytes,
                "written_bytes": work.counts.written_bytes,
                "dropped_records": work.counts.dropped_records,
            },
        )
        self.on_finished()

    def _note_failure(self, log: Log, problem: Exception) -> None:
        self._is_busy = False
        if log.offline_reason is not None:
            return  # the log has been deleted, or its disk is known to have failed
        if not isinstance(problem, OSError):
            self._shun(log, problem)  # a segment is damaged, or our understanding of it
        elif problem.errno in FULL_DISK_ERRNOS:
            self.failure_count += 1
            _log.error("no room to compact", extra={"tp": str(log.tp)})
        elif problem.errno not in _GONE_ERRNOS:
            log.on_failed(problem)
            return
        remove_cleaned(self._files, log.directory)


def _outcome(step: Step, pause: Callable[[], None]) -> Outcome:
    try:
        return step(pause)
    except Exception as problem:  # noqa: BLE001  # it belongs to the owner, whatever it is
        return problem


def _do_nothing() -> None:
    return
