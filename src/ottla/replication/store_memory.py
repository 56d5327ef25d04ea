"""The newest revision of the store that a data directory knows: a store that went back is seen."""

import contextlib
from collections.abc import Callable
from functools import partial

from ottla.cluster.store import Revision
from ottla.replication.waiting import do_work
from ottla.storage.disk_worker import Worker
from ottla.storage.files import FULL_DISK_ERRNOS, REFUSAL_ERRNOS
from ottla.storage.log_dir import LogDir


class StoreMemory:
    """Notes revisions of the store in one data directory; the worker waits for the disk."""

    def __init__(
        self, log_dir: LogDir, worker: Worker, remember: Callable[[Revision], None]
    ) -> None:
        """`remember` writes a revision to the disk."""
        self._log_dir = log_dir
        self._worker = worker
        self._remember = remember

    async def note(self, revision: Revision) -> None:
        """Return once the directory knows that the store has been at `revision`.

        It is a guard against a store that went back, not a promise: a directory that takes no
        writes must not keep topics from being deleted, so it is tried again with the next change.
        """
        if self._log_dir.offline_reason is not None:
            return
        try:
            await do_work(self._worker, partial(self._remember, revision))
        except OSError as error:
            if error.errno in FULL_DISK_ERRNOS:
                with contextlib.suppress(OSError):
                    self._log_dir.reserve.lend(partial(self._remember, revision))
            elif error.errno not in REFUSAL_ERRNOS:
                self._log_dir.take_offline(error)
