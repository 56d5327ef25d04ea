"""Cutting logs that differ from those of their leaders: the worker waits for the disk.

A broker that comes back after a fail-over may have a thousand such logs. The recovery points on
disk are lowered first, once for all that are cut together. Then the worker cuts some logs at a
time, and does what else it has to do in between.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from ottla.storage.checkpoint_commits import CheckpointCommits
from ottla.storage.disk_worker import Pause, Worker
from ottla.storage.files import FULL_DISK_ERRNOS, File
from ottla.storage.log import Log
from ottla.storage.log_cut import Cut
from ottla.storage.log_dir import LogDir

_LOGS_PER_STEP: Final = 32


class BegunCut(NamedTuple):
    """A cut that was begun; `ended` is called once it is over, whatever became of it."""

    log: Log
    cut: Cut
    ended: Callable[[], None]


class Cutting:
    """Carries out the cuts of one data directory."""

    def __init__(self, log_dir: LogDir, worker: Worker) -> None:
        self.checkpoints = CheckpointCommits(log_dir, worker)
        self._log_dir = log_dir
        self._worker = worker
        self._waiters: dict[Log, list[asyncio.Future[None]]] = {}

    def run(self, begun: Sequence[BegunCut]) -> None:
        """Cut these logs, soon."""
        if any(one.cut.needs_checkpoint for one in begun):
            self.checkpoints.commit(partial(self._note_checkpoint, begun))
        else:
            self._begin_step(begun)

    async def wait(self, log: Log) -> None:
        """Return once no cut of this log is under way."""
        while log.truncation.is_under_way:
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(log, []).append(over)
            await over

    def _note_checkpoint(self, begun: Sequence[BegunCut], problem: Exception | None) -> None:
        if self._is_lowered(problem):
            self._begin_step(begun)
            return
        for one in begun:  # as long as nothing has been cut, a full disk is no harm
            one.log.truncation.give_up(one.cut)
            self._settle(one)

    def _is_lowered(self, problem: Exception | None) -> bool:
        """True if the checkpoint is on disk, or not needed any more; the directory is offline then.

        On a full disk the reserve has room for it.
        """
        if problem is None:
            return True
        if not isinstance(problem, OSError):
            raise problem
        try:
            if problem.errno not in FULL_DISK_ERRNOS:
                raise problem
            self._log_dir.reserve.lend(self._log_dir.write_checkpoint)
        except OSError as error:
            self._log_dir.note_failure(error)
            return False
        return True

    def _begin_step(self, begun: Sequence[BegunCut]) -> None:
        """Have the worker cut the first of these logs, but not one that was deleted meanwhile."""
        some, rest = begun[:_LOGS_PER_STEP], begun[_LOGS_PER_STEP:]
        cuts = [one.cut for one in some if one.log.truncation.is_wanted]
        self._worker.run(partial(_run_all, cuts), partial(self._end_step, some, rest))

    def _end_step(
        self, some: Sequence[BegunCut], rest: Sequence[BegunCut], problem: Exception | None
    ) -> None:
        if isinstance(problem, OSError):
            self._log_dir.take_offline(problem)
        elif problem is not None:
            raise problem
        leftover: list[File] = []
        for one in some:
            one.log.truncation.end(one.cut)
            leftover += one.cut.leftover
            one.cut.leftover.clear()
        if leftover:
            self._worker.run(partial(_close, leftover), _raise)
        if rest:
            self._begin_step(rest)
        for one in some:
            self._settle(one)

    def _settle(self, one: BegunCut) -> None:
        one.ended()
        for over in self._waiters.pop(one.log, ()):
            if not over.done():
                over.set_result(None)


def _run_all(cuts: Sequence[Cut], pause: Pause) -> None:
    for cut in cuts:
        cut.run()
        pause()


def _close(files: list[File], _: Pause) -> None:
    """Close files by their last references, on this thread: of a large one that takes long."""
    files.clear()


def _raise(problem: Exception | None) -> None:
    if problem is not None:
        raise problem
