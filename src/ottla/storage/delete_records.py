"""Group commit of DeleteRecords: one write for all requests that wait."""

from collections.abc import Callable
from functools import partial

from ottla.errors import ApiError
from ottla.storage.disk_worker import Pause, Worker
from ottla.storage.files import FULL_DISK_ERRNOS
from ottla.storage.log_dir import LogDir

Settled = Callable[[ApiError | None], None]


class Deletions:
    """Group commit, like the flusher's: while one write is under way, the next one collects."""

    def __init__(self, log_dir: LogDir, worker: Worker) -> None:
        self._log_dir = log_dir
        self._worker = worker
        self._waiting: list[Settled] = []
        self._is_busy = False

    def commit(self, settled: Settled) -> None:
        """Call `settled` once where every log begins now is on disk, or why it is not."""
        self._waiting.append(settled)
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        self._is_busy = True
        waiting, self._waiting = self._waiting, []
        lines = self._log_dir.deletions()
        self._worker.run(partial(self._write, lines), partial(self._end, lines, waiting))

    def _write(self, lines: list[str], _: Pause) -> None:
        self._log_dir.write_deletions(lines)

    def _end(self, lines: list[str], waiting: list[Settled], outcome: Exception | None) -> None:
        self._is_busy = False
        problem = None if outcome is None else self._retry(lines, outcome)
        for settled in waiting:
            settled(problem)
        if self._waiting and not self._is_busy:
            self._begin()

    def _retry(self, lines: list[str], problem: Exception) -> ApiError | None:
        """On a full disk the reserve has room for this; nothing else is tried again."""
        if not isinstance(problem, OSError):
            raise problem
        if problem.errno not in FULL_DISK_ERRNOS:
            return self._log_dir.note_failure(problem)
        try:
            self._log_dir.reserve.lend(partial(self._log_dir.write_deletions, lines))
        except OSError as error:
            return self._log_dir.note_failure(error)
        return None
