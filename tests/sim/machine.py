"""The machine that a simulated broker runs on: its clock, its disk, and its threads."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from fakes.memory_files import MemoryFiles, SyncRound
from ottla.clock import Clock
from ottla.model import TimestampMs
from ottla.storage.disk_worker import Step
from ottla.storage.files import Files
from ottla.storage.log import Log
from ottla.storage.log_flush import FlushWork
from ottla.telemetry import Histogram
from sim.loop import SimLoop

Result = TypeVar("Result")

_SYNC_S: Final = (0.0005, 0.008)
_WORK_S: Final = (0.0002, 0.002)


class SimClock:
    """The clock of one machine: the time of day can be set, the rest of it cannot."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.step_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self._loop.now_ms() + self.step_ms)

    def monotonic_s(self) -> float:
        return self._loop.time()


class Disk:
    """Files that survive the process, and how long the disk takes."""

    def __init__(self, loop: SimLoop, rng: Random) -> None:
        self.files = MemoryFiles()
        self.sync_s = _SYNC_S
        self.work_s = _WORK_S
        self._loop = loop
        self._rng = rng
        self._flusher: SimFlusher | None = None

    def start_flusher(
        self, files: Files, on_failed: Callable[[OSError], None], clock: Clock
    ) -> "SimFlusher":
        assert files is self.files, "a broker has the disk of its machine"
        self._flusher = SimFlusher(self, self.files, on_failed)
        return self._flusher

    def start_worker(self, name: str) -> "SimWorker":
        return SimWorker(self)

    def kill(self) -> None:
        """The process is gone; everything that it wrote is there, and a sync under way goes on."""
        self.files = self.files.kill()

    def cut_power(self) -> None:
        """What was not synced may be gone; the round under way was done, or was not."""
        under_way = None if self._flusher is None else self._flusher.under_way
        if under_way is not None and self._rng.random() < 0.5:
            self.files.undo(under_way)
        self._flusher = None
        self.files = self.files.cut_power(self._rng)

    def wipe(self) -> None:
        """Everything is gone: it is another disk."""
        self.files = MemoryFiles()

    def slow_down(self, times: float) -> None:
        self.sync_s = (_SYNC_S[0] * times, _SYNC_S[1] * times)
        self.work_s = (_WORK_S[0] * times, _WORK_S[1] * times)

    def heal(self) -> None:
        self.slow_down(1)
        self.files.forget_faults()

    def after_sync(self, callback: Callable[[], object]) -> None:
        self._loop.call_later(self._rng.uniform(*self.sync_s), callback)

    def after_work(self, callback: Callable[[], object]) -> None:
        self._loop.call_later(self._rng.uniform(*self.work_s), callback)

    @property
    def now_s(self) -> float:
        return self._loop.time()


class SimFlusher:
    """Group commit as the thread does it: one round at a time, which takes a while.

    A round covers what was written when it began, and is reported when it ends.
    """

    def __init__(
        self, disk: Disk, files: MemoryFiles, on_failed: Callable[[OSError], None]
    ) -> None:
        self._disk = disk
        self._files = files
        self._on_failed = on_failed
        self._dirty: dict[Log, None] = {}
        self.under_way: SyncRound | None = None
        self._begun_s: float | None = None
        self._is_closed = False
        self.durations = Histogram()

    def request(self, log: Log) -> None:
        self._dirty[log] = None
        if self._begun_s is None:
            self._begin()

    @property
    def unfinished_s(self) -> float:
        return 0.0 if self._begun_s is None else self._disk.now_s - self._begun_s

    def close(self) -> None:
        self._is_closed = True
        self._dirty.clear()

    def abandon(self, timeout_s: float) -> bool:
        self.close()
        return True

    def _begin(self) -> None:
        dirty, self._dirty = self._dirty, {}
        works = [work for log in dirty if (work := log.flushing.begin()) is not None]
        if not works:
            return
        self._begun_s = self._disk.now_s
        problem: OSError | None = None
        with self._files.sync_round() as self.under_way:
            try:
                for work in works:
                    work.run(self._files)
            except OSError as error:
                problem = error
        self._disk.after_sync(partial(self._end, works, problem))

    def _end(self, works: list[FlushWork], problem: OSError | None) -> None:
        duration_s = self.unfinished_s
        self._begun_s = self.under_way = None
        if self._is_closed:
            return
        if problem is not None:
            self._on_failed(problem)
            return
        self.durations.observe(duration_s)
        for work in works:
            work.flushing.end(work)
        if self._dirty:
            self._begin()


class SimWorker:
    """Works one step after the other, each after a while."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._steps: list[tuple[Step[Any], Callable[[Any], None]]] = []
        self._is_closed = False

    def run(self, step: Step[Result], done: Callable[[Result | Exception], None]) -> None:
        self._steps.append((step, done))
        if len(self._steps) == 1:
            self._disk.after_work(self._do_next)

    def close(self) -> None:
        self._is_closed = True
        self._steps.clear()

    def abandon(self, timeout_s: float) -> bool:
        self.close()
        return True

    def _do_next(self) -> None:
        if self._is_closed or not self._steps:
            return
        step, done = self._steps.pop(0)
        outcome: Any
        try:
            outcome = step(_do_nothing)
        except Exception as problem:  # noqa: BLE001  # it belongs to the owner, whatever it is
            outcome = problem
        if self._steps:
            self._disk.after_work(self._do_next)
        partial(done, outcome)()


def _do_nothing() -> None:
    return
