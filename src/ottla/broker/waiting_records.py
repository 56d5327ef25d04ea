"""Releases records that wait in the partitions led here: one timer, and small portions of work.

Each partition is looked at when something in it may be due, when its log is still to be read, and
after a failure. A turn of the loop does one portion of one partition.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Final

from ottla.broker.waiting_metrics import WaitingCounts
from ottla.broker.waiting_partition import STUCK_RETRY_MS, WaitingPartition
from ottla.clock import Clock, steady_clock
from ottla.errors import ApiError
from ottla.model import TimestampMs
from ottla.queues.due_clock import DueClock
from ottla.replication.partition import LeaderPartition

log = logging.getLogger("ottla.broker")

_PORTION: Final = 256  # records that are released in one turn of the loop: a millisecond or two
_DIVIDED: Final = 500  # tickets of a calendar that are sorted in one turn
_AHEAD_MS: Final = 120_000  # how far ahead due times are sorted
_LOOK_MAX_MS: Final = 60_000  # a clock may have been set meanwhile
_RETRY_MS: Final = 1000


class WaitingRecords:
    """Owner of what waits in all partitions that this broker leads, and of their timer."""

    def __init__(self, clock: Clock, note_defect: Callable[[BaseException], None]) -> None:
        self._clock = clock
        self._steady_s = steady_clock(clock)
        self._due_clock = DueClock(clock.now_ms(), int(self._steady_s() * 1000))
        self._note_defect = note_defect
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[WaitingPartition, int] = {}  # when each is looked at next
        self._busy: dict[WaitingPartition, None] = {}
        self._looks: list[tuple[int, int, WaitingPartition]] = []  # a heap
        self._numbers = count()
        self._is_turning = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._failures: dict[WaitingPartition, str] = {}
        self._released = 0  # in partitions that are not led here any more
        self._cancelled = 0

    def due_now_ms(self) -> TimestampMs:
        """The time that is compared with due times."""
        clock = self._due_clock
        now_ms = clock.now_ms(self._clock.now_ms(), int(self._steady_s() * 1000))
        if clock.moved_ms:
            log.warning("wall clock ahead, now followed", extra={"ahead_ms": clock.moved_ms})
            clock.moved_ms = 0
        return now_ms

    def lead(self, partition: LeaderPartition) -> WaitingPartition:
        """The records that wait in a partition led here from now on; its log is read soon."""
        waiting = WaitingPartition(partition, self.due_now_ms, self._want_look)
        self._partitions[waiting] = 0
        self._want_look(waiting)
        return waiting

    def close(self) -> None:
        """Release nothing any more."""
        self._is_closed = True
        self._busy.clear()
        if self._timer is not None:
            self._timer.cancel()

    def counts(self) -> WaitingCounts:
        """Sums over all partitions."""
        pending = [(one, one.pending) for one in self._partitions if not one.is_closed]
        return WaitingCounts(
            partitions=len(pending),
            waiting=sum(table.count for _, table in pending),
            undecided=sum(table.undecided_count for _, table in pending),
            schedules=sum(table.schedule_count for _, table in pending),
            waiting_bytes=sum(table.waiting_bytes for _, table in pending),
            unreadable=sum(len(one.stuck) for one, _ in pending),
            loading=sum(not one.is_loaded for one, _ in pending),
            released=self._released + sum(one.released_count for one in self._partitions),
            cancelled=self._cancelled + sum(one.cancelled_count for one in self._partitions),
        )

    @property
    def partitions(self) -> Iterable[WaitingPartition]:
        """The partitions led here in which records may wait."""
        return [one for one in self._partitions if not one.is_closed]

    def _want_look(self, waiting: WaitingPartition) -> None:
        if not self._is_closed:
            self._busy[waiting] = None
            self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._is_turning:
            self._is_turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Do one portion of work on the partition whose turn it is."""
        self._is_turning = False
        if self._is_closed or not self._busy:
            return
        waiting = next(iter(self._busy))
        del self._busy[waiting]
        if waiting.is_closed:
            self._forget(waiting)
        else:
            try:
                self._work(waiting)
            except ApiError as problem:
                self._note_failure(waiting, problem)
            except BaseException as defect:
                self._note_defect(defect)
                raise
        if self._busy:
            self._turn_soon()

    def _forget(self, waiting: WaitingPartition) -> None:
        if self._partitions.pop(waiting, None) is not None:
            self._released += waiting.released_count
            self._cancelled += waiting.cancelled_count
        self._failures.pop(waiting, None)

    def _work(self, waiting: WaitingPartition) -> None:
        now_ms = self.due_now_ms()
        if not waiting.is_loaded:
            waiting.load()
            has_more = True
        elif waiting.partition.is_waited_for:
            self._look_at(waiting, now_ms + _RETRY_MS // 10)
            return
        else:
            waiting.retry_stuck(now_ms)
            has_more = waiting.release(_PORTION, self._clock.now_ms())
            if not has_more and waiting.wants_rearm:
                has_more = waiting.rearm(_PORTION, self._clock.now_ms()) or waiting.wants_rearm
        self._note_success(waiting)
        if has_more:
            self._busy[waiting] = None
            return
        due_ms, is_known = waiting.pending.first_due_ms(now_ms + _AHEAD_MS, _DIVIDED)
        if not is_known:
            self._busy[waiting] = None
        elif due_ms is not None:
            self._look_at(waiting, due_ms)
        if waiting.stuck:
            self._look_at(waiting, now_ms + STUCK_RETRY_MS)

    def _look_at(self, waiting: WaitingPartition, at_ms: int) -> None:
        """Look at a partition at this time, unless it is looked at earlier."""
        if waiting not in self._partitions or 0 < self._partitions[waiting] <= at_ms:
            return
        self._partitions[waiting] = at_ms
        heappush(self._looks, (at_ms, next(self._numbers), waiting))
        if self._looks[0][2] is waiting:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = self._looks[0][0] - self.due_now_ms()
        self._timer = self._loop.call_later(min(max(wait_ms, 0), _LOOK_MAX_MS) / 1000, self._wake)

    def _wake(self) -> None:
        self._timer = None
        if self._is_closed:
            return
        now_ms = self.due_now_ms()
        while self._looks and self._looks[0][0] <= now_ms:
            at_ms, _, waiting = heappop(self._looks)
            if self._partitions.get(waiting) == at_ms:  # else there is an earlier look
                self._partitions[waiting] = 0
                self._want_look(waiting)
        if self._looks:
            self._set_timer()

    def _note_failure(self, waiting: WaitingPartition, problem: ApiError) -> None:
        self._look_at(waiting, self.due_now_ms() + _RETRY_MS)
        text = f"{type(problem).__name__}: {problem}"
        if self._failures.get(waiting) != text:
            self._failures[waiting] = text
            log.warning(
                "records that wait are held up",
                extra={"tp": waiting.partition.tp, "reason": text, "retry_ms": _RETRY_MS},
            )

    def _note_success(self, waiting: WaitingPartition) -> None:
        if self._failures.pop(waiting, None) is not None:
            log.info("records that wait go on", extra={"tp": waiting.partition.tp})
