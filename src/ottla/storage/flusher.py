"""Group commit: one thread per data directory syncs for all producers that wait.

The owner's thread collects the logs that have something to sync and hands all of them over at
once; while the disk works, what arrives collects for the next round. So there are no timers and
no locks: two queues, and the state of rounds is touched by the owner only.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Final, Protocol

from ottla.storage.files import Files
from ottla.storage.log import Log
from ottla.storage.log_flush import FlushWork
from ottla.telemetry import Histogram

_THREADS: Final = 4  # files that are synced at the same time
_ROUND_LOGS_MAX: Final = 256  # a round of more would keep the owner from everything else

Post = Callable[[Callable[[], None]], object]


class Flusher(Protocol):
    """A thread, or none, that makes logs durable."""

    @property
    def durations(self) -> Histogram:
        """How long rounds took: syncs of all logs that waited together."""
        ...

    def request(self, log: Log) -> None:
        """`log` has appended something: make it durable soon and call `LogFlush.end`."""
        ...

    @property
    def unfinished_s(self) -> float:
        """Seconds since the sync that is under way began; 0 when there is none."""
        ...

    def close(self) -> None:
        """Stop; what was requested but not begun is left to `Log.flush`."""
        ...

    def abandon(self, timeout_s: float) -> bool:
        """Stop after the sync that is under way; False when that takes longer than `timeout_s`."""
        ...


class InlineFlusher:
    """Syncs at once, on the caller's thread: for simulation and tests."""

    def __init__(self, files: Files, on_failed: Callable[[OSError], None]) -> None:
        self._files = files
        self._on_failed = on_failed
        self.durations = Histogram()

    def request(self, log: Log) -> None:
        work = log.flushing.begin()
        if work is None:
            return
        try:
            work.run(self._files)
        except OSError as error:
            self._on_failed(error)
            return
        log.flushing.end(work)

    @property
    def unfinished_s(self) -> float:
        return 0.0

    def close(self) -> None:
        return

    def abandon(self, timeout_s: float) -> bool:
        return True


class ThreadFlusher:
    """Syncs on a thread of its own. Every method belongs to the owner's thread.

    `post` runs a callback on the owner's thread soon, and may be called from any thread
    (production: `loop.call_soon_threadsafe`). `soon` runs one when the owner has finished what
    it is doing (production: `loop.call_soon`), so that one round takes all of it.
    A failed sync is reported and ends the work: nothing is retried, nothing is acknowledged.
    Any other exception of the thread is a defect, and raised on the owner's thread.
    """

    def __init__(
        self,
        files: Files,
        on_failed: Callable[[OSError], None],
        *,
        post: Post,
        soon: Post,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._files = files
        self._on_failed = on_failed
        self._post = post
        self._soon = soon
        self._monotonic_s = monotonic_s
        self._begun_s: float | None = None  # when the round that is under way began
        self.durations = Histogram()
        self._dirty: dict[Log, None] = {}
        self._is_busy = False
        self._is_abandoned = False  # the owner is gone: post nothing
        self._rounds: queue.SimpleQueue[list[FlushWork] | None] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="ottla-sync")
        self._thread = threading.Thread(target=self._run, name="ottla-flusher", daemon=True)
        self._thread.start()

    def request(self, log: Log) -> None:
        self._dirty[log] = None
        if not self._is_busy:
            self._is_busy = True
            self._soon(self._begin_round)

    def close(self) -> None:
        self._dirty.clear()
        self._rounds.put(None)
        self._thread.join()
        self._pool.shutdown()

    def abandon(self, timeout_s: float) -> bool:
        self._is_abandoned = True
        self._dirty.clear()
        self._rounds.put(None)
        self._thread.join(timeout_s)
        self._pool.shutdown(wait=False, cancel_futures=True)
        return not self._thread.is_alive()

    @property
    def unfinished_s(self) -> float:
        return 0.0 if self._begun_s is None else self._monotonic_s() - self._begun_s

    def _begin_round(self) -> None:
        assert self._begun_s is None, "one round at a time"
        round_ = list[FlushWork]()
        while self._dirty and not round_:
            for log in list(islice(self._dirty, _ROUND_LOGS_MAX)):
                del self._dirty[log]
                if (work := log.flushing.begin()) is not None:
                    round_.append(work)
        if round_:
            self._begun_s = self._monotonic_s()
            self._rounds.put(round_)
        else:
            self._is_busy = False

    def _end_round(
        self, round_: list[FlushWork], problem: Exception | None, duration_s: float
    ) -> None:
        if isinstance(problem, OSError):
            self._begun_s = None
            self._on_failed(problem)
            return
        if problem is not None:
            raise problem
        self.durations.observe(duration_s)
        for work in round_:
            work.flushing.end(work)
        assert self._begun_s is not None, "a round ends that was begun"
        self._begun_s = None
        if self._dirty:
            self._begin_round()
        else:
            self._is_busy = False

    def _run(self) -> None:
        while (round_ := self._rounds.get()) is not None:
            problem: Exception | None = None
            begun_s = self._monotonic_s()
            try:
                self._sync(round_)
            except Exception as met:  # noqa: BLE001  # it belongs to the owner, whatever it is
                problem = met
            if self._is_abandoned:
                return
            duration_s = self._monotonic_s() - begun_s
            self._post(partial(self._end_round, round_, problem, duration_s))

    def _sync(self, round_: list[FlushWork]) -> None:
        if len(round_) == 1:
            round_[0].run(self._files)
        else:
            list(self._pool.map(self._run_one, round_))

    def _run_one(self, work: FlushWork) -> None:
        work.run(self._files)
