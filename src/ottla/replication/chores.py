"""Periodic work on the partitions of this broker: checkpoints, retention, compaction, scrubbing."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.clock import Clock
from ottla.errors import StorageFailed
from ottla.model import Offset, TopicPartition
from ottla.replication.partition import Flushes
from ottla.replication.waiting import wait_called
from ottla.storage.checkpoint_commits import CheckpointCommits
from ottla.storage.cleaner import Cleaner
from ottla.storage.files import CROWDED_ERRNOS
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.scrub import Scrubber

if TYPE_CHECKING:
    from ottla.replication.waiting_records import WaitingRecords

log = logging.getLogger("ottla.replication")

_LOGS_PER_STEP: Final = 64  # of a checkpoint, before the loop goes on with other work


class Chores:
    """The chores of all logs that are here, led or not. The broker says when each is due."""

    def __init__(
        self,
        log_dir: LogDir,
        clock: Clock,
        *,
        committed_end: Callable[[TopicPartition], Offset],
        flusher: Flushes,
        cleaner: Cleaner,
        scrubber: Scrubber,
        checkpoints: CheckpointCommits,
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.cleaner = cleaner
        self.scrubber = scrubber
        self._log_dir = log_dir
        self._committed_end = committed_end
        self._clock = clock
        self._flusher = flusher
        self._checkpoints = checkpoints
        self._soon = soon
        self.waiting_of: Callable[[TopicPartition], WaitingRecords | None] = lambda _: None

    @property
    def _is_offline(self) -> bool:
        return self._log_dir.offline_reason is not None

    async def checkpoint(self) -> None:
        """Write the recovery point of every log: where recovery would begin.

        Logs that no producer waits for are brought to disk on the way, for the next time: otherwise
        they would keep every segment open, and be read from their beginning after a crash. The
        worker waits for the disk.
        """
        if self._is_offline:
            return
        logs = self._log_dir.logs
        names = list(logs)  # not the logs: one that is deleted meanwhile would stay open
        for first in range(0, len(names), _LOGS_PER_STEP):
            some = (logs[tp] for tp in names[first : first + _LOGS_PER_STEP] if tp in logs)
            self._log_dir.save_logs(some, self._flusher.request)
            await asyncio.sleep(0)
            if self._is_offline:
                return
        try:
            await wait_called(self._checkpoints.commit)
        except OSError as error:
            self._log_dir.note_failure(error)

    async def checkpoint_watermarks(self) -> None:
        """Write the high watermarks of replicated partitions, with which a new leader begins."""
        if self._is_offline:
            return
        try:
            await wait_called(self._checkpoints.commit_watermarks)
        except OSError as error:
            self._log_dir.note_failure(error)

    async def delete_old_segments(self) -> None:
        """Delete the segments that retention no longer keeps."""
        async for one in self._each_log():
            try:
                delete = self._deletion(one)
                if delete is None:
                    continue
                count = self._log_dir.reserve.lend(delete)
            except StorageFailed as problem:  # for example a full disk: others may still make room
                log.error("retention failed", extra={"tp": one.tp, "reason": problem})
                continue
            except OSError as error:
                if error.errno in CROWDED_ERRNOS:
                    log.error("retention failed", extra={"tp": one.tp, "reason": error})
                    continue
                self._log_dir.take_offline(error)
                return
            if count:
                log.info(
                    "old segments deleted",
                    extra={"tp": one.tp, "count": count, "start": one.start_offset},
                )

    def _deletion(self, one: Log) -> Callable[[], int] | None:
        """The deletion of old segments; None of a log in which records may wait elsewhere.

        Their leader alone lets them go, once nothing waits in them: followers begin where it does.
        """
        now_ms, below = self._clock.now_ms(), self._committed_end(one.tp)
        if not one.may_hide:
            return partial(one.retention.delete_old_segments, now_ms, below)
        waiting = self.waiting_of(one.tp)
        if waiting is None:
            return None
        exempt_bytes = waiting.waiting_bytes
        expired_end = one.retention.expired_end(now_ms, below, exempt_bytes)
        if expired_end <= one.start_offset:
            return None
        cleared_to = waiting.clear(expired_end)
        below = min(below, cleared_to)
        return partial(one.retention.delete_old_segments, now_ms, below, exempt_bytes)

    async def expire_producers(self, after_ms: int) -> None:
        """Forget idempotent producers that went silent."""
        async for one in self._each_log():
            one.producers.expire(self._clock.now_ms(), after_ms)

    def compact(self, memory_bytes_max: int) -> None:
        """Begin to compact the log that needs it most; the others follow until none does."""
        go_on = partial(self._soon, partial(self.compact, memory_bytes_max))
        try:
            self.cleaner.begin(self.compacted(), self._clock.now_ms(), memory_bytes_max, go_on)
        except StorageFailed as problem:  # for example a full disk: try again with the next chore
            log.error("compaction failed", extra={"reason": problem})
        except OSError as error:
            self._log_dir.take_offline(error)

    def compacted(self) -> Iterator[tuple[Log, Offset]]:
        """The logs of compacted topics, each with the offset below which nothing will change."""
        for one in self._log_dir.logs.values():
            if "compact" in one.config.cleanup_policy and not one.may_hide:
                yield one, one.last_stable_offset(self._committed_end(one.tp))

    def scrub(self, interval_ms: int) -> None:
        """Read a little more of the sealed segments, and check that they are intact."""
        if self._is_offline:
            return
        try:
            logs = list(self._log_dir.logs.values())
            self.scrubber.advance(logs, self._clock.now_ms(), interval_ms)
        except OSError as error:
            self._log_dir.take_offline(error)

    @property
    def damaged_range_count(self) -> int:
        """Ranges of offsets that are known to be corrupt, and not served."""
        return sum(len(one.corrupt) for one in self._log_dir.logs.values())

    async def _each_log(self) -> AsyncIterator[Log]:
        """Every log, with other work of the loop in between."""
        logs = self._log_dir.logs
        for tp in list(logs):  # not the logs: one that is deleted meanwhile would stay open
            if tp in logs:
                yield logs[tp]
                await asyncio.sleep(0)
