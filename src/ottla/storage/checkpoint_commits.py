"""Group commit of checkpoints: one write for all that wait.

Two are never written at the same time: the one that was decided later would cancel what is left of
the other, and be written behind work that waited for that.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ottla.storage.disk_worker import Pause, Worker
from ottla.storage.log_dir import LogDir
from ottla.storage.small_file import Replacement

Settled = Callable[[Exception | None], None]


class CheckpointCommits:
    """Group commit, like the flusher's: while one write is under way, the next one collects."""

    def __init__(self, log_dir: LogDir, worker: Worker) -> None:
        self._log_dir = log_dir
        self._worker = worker
        self._waiting: list[Settled] = []
        self._is_whole = False  # whether any of those waits for more than watermarks
        self._is_busy = False

    def commit(self, settled: Settled) -> None:
        """Call `settled` once the disk knows how far every log is durable, or why it does not.

        Nothing is written any more in a directory that is offline.
        """
        self._is_whole = True
        self.commit_watermarks(settled)

    def commit_watermarks(self, settled: Settled) -> None:
        """The same for the high watermarks alone."""
        self._waiting.append(settled)
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        is_whole, self._is_whole = self._is_whole, False
        replacements: list[Replacement[Any]] = []
        if self._log_dir.offline_reason is None:
            watermarks = self._log_dir.begin_watermarks()
            replacements += self._log_dir.begin_checkpoint() if is_whole else []
            replacements += [] if watermarks is None else [watermarks]
        if not replacements:
            self._settle(waiting, None)
            return
        self._is_busy = True
        self._worker.run(partial(_run_all, replacements), partial(self._end, replacements, waiting))

    def _end(
        self,
        replacements: Sequence[Replacement[Any]],
        waiting: Sequence[Settled],
        problem: Exception | None,
    ) -> None:
        self._is_busy = False
        if problem is None and self._log_dir.offline_reason is None:
            try:
                self._log_dir.end_checkpoint(replacements)
            except OSError as error:
                problem = error
        self._settle(waiting, problem)

    def _settle(self, waiting: Sequence[Settled], problem: Exception | None) -> None:
        for settled in waiting:
            settled(problem)
        if self._waiting and not self._is_busy:
            self._begin()


def _run_all(replacements: Sequence[Replacement[Any]], _: Pause) -> None:
    for one in replacements:
        one.run()
