"""Logs to serve: made, or cut, while the worker waits for the disk, then the loop adopts them."""

from collections.abc import Sequence
from functools import partial

from ottla.clock import Clock
from ottla.config import TopicConfig
from ottla.errors import StorageFailed
from ottla.model import TopicPartition, Uuid
from ottla.replication.cutting import Cutting
from ottla.replication.waiting import do_work
from ottla.storage.disk_worker import Worker
from ottla.storage.files import FULL_DISK_ERRNOS, REFUSAL_ERRNOS
from ottla.storage.log import Log
from ottla.storage.log_dir import MANY, LogDir


class LogMaker:
    """Provides the logs of one data directory, one after the other."""

    def __init__(self, log_dir: LogDir, worker: Worker, clock: Clock, cutting: Cutting) -> None:
        self._log_dir = log_dir
        self._worker = worker
        self._clock = clock
        self._cutting = cutting
        self._prepared: set[TopicPartition] = set()  # on disk, and not yet adopted

    async def prepare(self, missing: Sequence[tuple[TopicPartition, Uuid]]) -> None:
        """Prepare these logs together, if they are many: it takes one wait.

        If there is no room for all, each is tried by itself, and its topic gets the reason.
        """
        if len(missing) < MANY or self._log_dir.offline_reason is not None:
            return
        try:
            await do_work(self._worker, partial(self._log_dir.prepare_logs, missing))
        except OSError as error:
            if error.errno not in FULL_DISK_ERRNOS | REFUSAL_ERRNOS:
                self._log_dir.take_offline(error)
        else:
            self._prepared.update(tp for tp, _ in missing)

    def forget_prepared(self) -> None:
        """Prepare again what was prepared and has not been made."""
        self._prepared.clear()

    async def provide(self, tp: TopicPartition, topic_id: Uuid, config: TopicConfig) -> Log:
        """The log, once it has been made, or is not cut any more; StorageFailed if that fails."""
        opened = self._log_dir.logs.get(tp)
        if opened is None:
            return await self.make(tp, topic_id, config)
        await self._cutting.wait(opened)
        if opened.offline_reason is not None:
            raise StorageFailed(opened.offline_reason)
        return opened

    async def make(self, tp: TopicPartition, topic_id: Uuid, config: TopicConfig) -> Log:
        """A new log. On a full disk the reserve has room for it."""
        try:
            if tp in self._prepared:
                self._prepared.remove(tp)
            else:
                await do_work(self._worker, partial(self._log_dir.prepare_log, tp, topic_id))
            return self._log_dir.adopt_log(tp, topic_id, config, self._clock.now_ms())
        except OSError as error:
            if error.errno not in FULL_DISK_ERRNOS:
                raise self._log_dir.refusal(error) from error
        return self._log_dir.create_log(tp, topic_id, config, self._clock.now_ms())
