"""Epochs of logs that contradict the batches: the worker reads the batches."""

import logging
from functools import partial

from ottla.errors import CorruptBatch
from ottla.model import TopicPartition
from ottla.storage.disk_worker import Worker
from ottla.storage.epoch_scan import EpochScan
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir

log = logging.getLogger("ottla.replication")


class EpochReads:
    """Reads of one data directory's logs, at most one of each at a time."""

    def __init__(self, log_dir: LogDir, worker: Worker) -> None:
        self._log_dir = log_dir
        self._worker = worker
        self._under_way: set[TopicPartition] = set()

    def begin(self, tp: TopicPartition) -> bool:
        """Have the epochs of a log read soon; True, for until then they are not known."""
        if tp not in self._under_way:
            self._under_way.add(tp)
            replica = self._log_dir.logs[tp]
            log.warning("epochs contradict the log: read again", extra={"tp": tp})
            self._step(replica, replica.repair.begin_epoch_scan())
        return True

    def _step(self, replica: Log, scan: EpochScan) -> None:
        step = partial(scan.run_next, replica.files)
        self._worker.run(step, partial(self._note, replica, scan))

    def _note(self, replica: Log, scan: EpochScan, outcome: bool | Exception) -> None:
        if outcome is False and replica.offline_reason is None:
            self._step(replica, scan)
            return
        self._under_way.discard(replica.tp)
        if isinstance(outcome, bool):
            if outcome:
                replica.repair.end_epoch_scan(scan)
        elif isinstance(outcome, FileNotFoundError | CorruptBatch):  # asked again, it is read again
            log.warning("epochs not read", extra={"tp": replica.tp, "reason": outcome})
        elif isinstance(outcome, OSError):
            replica.fail(outcome)
        else:
            raise outcome
