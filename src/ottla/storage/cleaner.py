"""Compaction as a chore: one log at a time, the dirtiest first, by a worker."""

import errno
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from ottla.errors import ApiError, StorageFailed
from ottla.model import Offset, TimestampMs
from ottla.storage.compaction import Cleanable, CleanedSegment, Counts, dirtiest, is_worth_it
from ottla.storage.compaction_pass import Pass
from ottla.storage.disk_worker import Worker
from ottla.storage.files import FULL_DISK_ERRNOS, Files
from ottla.storage.log import Log
from ottla.storage.small_file import Replacement
from ottla.storage.swap import Swap, remove_cleaned

Outcome = CleanedSegment | None | Exception

_log = logging.getLogger("ottla.storage")

_GONE_ERRNOS: Final = frozenset({errno.ENOENT})  # a segment, or the whole log, was deleted


def _do_nothing() -> None:
    return


class Cleaner:
    """Owner of the one pass that is under way. Every method belongs to the owner's thread."""

    def __init__(self, files: Files, worker: Worker) -> None:
        self.totals = Counts()
        self.pass_count = 0
        self.failure_count = 0
        self._files = files
        self._worker = worker
        self._is_busy = False
        self._on_finished: Callable[[], object] = _do_nothing
        self._shunned: set[Log] = set()  # damaged: until an operator has looked after them

    def begin(
        self,
        logs: Iterable[tuple[Log, Offset]],
        now_ms: TimestampMs,
        memory_bytes_max: int,
        on_finished: Callable[[], object] = _do_nothing,
    ) -> None:
        """Begin to compact the dirtiest of these logs, each below its offset.

        Nothing happens when it would not be worth it, or when a pass is under way. `on_finished`
        is called when the pass is over, and the next log may have its turn.
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
        self._on_finished = on_finished
        self._step(log, log.cleaning.begin(part, now_ms, memory_bytes_max))

    def close(self) -> None:
        self._worker.close()

    def abandon(self, timeout_s: float) -> bool:
        """Stop without waiting longer than `timeout_s`; whether the pass has stopped."""
        return self._worker.abandon(timeout_s)

    def _cleanable(self, log: Log, limit: Offset, now_ms: TimestampMs) -> Cleanable | None:
        if log in self._shunned:
            return None
        try:
            return log.cleaning.cleanable(limit, now_ms)
        except StorageFailed:
            return None  # the disk is full, or gone: others may still be compacted
        except ApiError as problem:
            self._shun(log, problem)
            return None

    def _shun(self, log: Log, problem: Exception) -> None:
        self.failure_count += 1
        self._shunned.add(log)
        _log.error("compaction failed", extra={"tp": str(log.tp)}, exc_info=problem)

    def _step(self, log: Log, work: Pass) -> None:
        assert self._is_busy, "one pass at a time"
        self._worker.run(partial(work.run_next, self._files), partial(self._note, log, work))

    def _note(self, log: Log, work: Pass, outcome: Outcome) -> None:
        try:
            if isinstance(outcome, Exception):
                self._note_failure(log, outcome, work)
            elif outcome is None:
                self._finish(log, work)
            else:
                self._swap_in(log, work, outcome)
        except OSError as error:
            self._is_busy = False
            log.fail(error)

    def _finish(self, log: Log, work: Pass) -> None:
        """The pass has come to its end: have the worker write down how far it came."""
        written = log.cleaning.end(work)
        if written is None:
            self._note_finished(log, work)
        else:
            done = partial(self._note_written, log, work, written)
            self._worker.run(lambda _: written.run(), done)

    def _note_written(
        self, log: Log, work: Pass, written: Replacement[bytes], outcome: Exception | None
    ) -> None:
        """Without it the next start compacts the same again: no reason to stop on a full disk."""
        if outcome is not None:
            self._note_failure(log, outcome, work)
            return
        written.end()
        self._note_finished(log, work)

    def _swap_in(self, log: Log, work: Pass, cleaned: CleanedSegment) -> None:
        swap = log.cleaning.begin_swap(work, cleaned)
        if swap is None:
            self._is_busy = False  # the log has changed: begin anew with what it is now
            return
        self._worker.run(lambda _: swap.errand.run(), partial(self._note_swap, log, work, swap))

    def _note_swap(self, log: Log, work: Pass, swap: Swap, outcome: Exception | None) -> None:
        if log.offline_reason is not None:
            self._is_busy = False  # deleted, or its disk is known to have failed
        elif isinstance(outcome, OSError):  # half done: nothing here may be trusted any more
            self._is_busy = False
            log.fail(outcome)
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            log.cleaning.end_swap(swap)
            self._step(log, work)

    def _note_finished(self, log: Log, work: Pass) -> None:
        self._is_busy = False
        self.pass_count += 1
        self.totals.add(work.counts)
        _log.info(
            "log compacted",
            extra={
                "tp": str(log.tp),
                "end": work.end,
                "read_bytes": work.counts.read_bytes,
                "written_bytes": work.counts.written_bytes,
                "dropped_records": work.counts.dropped_records,
            },
        )
        self._on_finished()

    def _note_failure(self, log: Log, problem: Exception, work: Pass) -> None:
        if isinstance(problem, AssertionError):
            raise problem
        self._is_busy = False
        if log.offline_reason is not None:
            return  # the log was deleted, its disk is known to have failed, or it is being cut
        if not isinstance(problem, OSError):
            if not log.cleaning.has_changed(work):
                self._shun(log, problem)  # a segment is damaged, or our understanding of it
        elif problem.errno in FULL_DISK_ERRNOS:
            self.failure_count += 1
            _log.error("compaction failed: disk full", extra={"tp": str(log.tp)})
        elif problem.errno not in _GONE_ERRNOS:
            log.fail(problem)
            return
        remove_cleaned(self._files, log.directory)
