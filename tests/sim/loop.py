"""An event loop for many machines: virtual time, and processes that die or freeze.

Every callback belongs to the process in whose context it was scheduled. The callbacks of a process
that was killed never run again, so none of its tasks takes another step, not even to clean up.
Those of a frozen process wait until it goes on.
"""

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeVar, TypeVarTuple

from ottla.model import TimestampMs

T = TypeVar("T")
Args = TypeVarTuple("Args")
ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]

EPOCH_MS: Final = 1_700_000_000_000  # the time of day when a simulation begins
_CURRENT: ContextVar["Process | None"] = ContextVar("process", default=None)


class Process:
    """One run of a program on a machine: a broker, or a client."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.is_alive = True
        self.is_frozen = False
        self.has_run = False  # since whoever looks at it has set it to False
        self.held: list[asyncio.Handle] = []  # while it is frozen
        self.exception_handler: ExceptionHandler | None = None
        self.on_killed: list[Callable[[], None]] = []
        self.context = copy_context()
        self.context.run(_CURRENT.set, self)
        self._tasks: list[asyncio.Task[Any]] = []  # kept: a task that is freed runs its `finally`

    def start(self, loop: "SimLoop", work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Run a coroutine in this process."""
        return loop.create_task(work, name=name, context=self.context)

    def keep(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.append(task)
        if len(self._tasks) > 10_000:
            self._tasks = [one for one in self._tasks if not one.done()]

    def kill(self) -> None:
        """End the process where it is: nothing of it runs any more."""
        self.is_alive = False
        self.held.clear()
        for callback in self.on_killed:
            callback()


def current_process() -> Process | None:
    """The process that is running, if it is one of the simulation."""
    return _CURRENT.get()


class SimLoop(asyncio.BaseEventLoop):
    """Time jumps to the next timer as soon as there is nothing to do."""

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []  # a heap
        self._timer_count = 0
        self.end_s = math.inf  # a simulation that takes longer has failed
        self.step_count = 0
        self.on_step: Callable[[], None] | None = None  # called after every turn
        self.problems: list[BaseException | str] = []  # that no process handles

    # Time

    def time(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s

    def now_ms(self) -> TimestampMs:
        return TimestampMs(EPOCH_MS + int(self.now_s * 1000))

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1  # timers of one time run in the order in which they were set
        heapq.heappush(self._timers, (when, self._timer_count, timer))
        return timer

    # Turns

    def _run_once(self) -> None:
        timers, ready = self._timers, self._ready
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not ready:
            assert timers or self._stopping, "deadlock: every task waits and no timer is set"
            if timers:
                self.now_s = max(self.now_s, timers[0][0])
                assert self.now_s < self.end_s, "the simulation does not end"
        while timers and timers[0][0] <= self.now_s:
            timer = heapq.heappop(timers)[2]
            if not timer.cancelled():
                ready.append(timer)
        for _ in range(len(ready)):
            self._run(ready.popleft())
        self.step_count += 1
        if self.on_step is not None:
            self.on_step()

    def _run(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        process = _context(handle).get(_CURRENT)
        if process is not None and not process.is_alive:
            return
        if process is not None and process.is_frozen:
            process.held.append(handle)
            return
        if process is not None:
            process.has_run = True
        handle._run()

    def thaw(self, process: Process) -> None:
        """Let a frozen process go on."""
        process.is_frozen = False
        held, process.held = process.held, []
        self._ready.extend(held)

    # What the base class leaves open

    def _write_to_self(self) -> None:
        """A real loop wakes from its selector here."""

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their time has come."""

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Args], T], *args: *Args
    ) -> "asyncio.Future[T]":
        raise AssertionError("a simulation has no threads")

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> "asyncio.Task[T]":
        task = super().create_task(coro, name=name, context=context)
        process = _CURRENT.get() if context is None else context.get(_CURRENT)
        if process is not None:
            process.keep(task)
        return task

    # Exceptions: each process has a handler of its own, as it would have a loop of its own

    def get_exception_handler(self) -> ExceptionHandler | None:
        process = _CURRENT.get()
        return None if process is None else process.exception_handler

    def set_exception_handler(self, handler: ExceptionHandler | None) -> None:
        process = _CURRENT.get()
        assert process is not None, "an exception handler belongs to a process"
        process.exception_handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        handler = self.get_exception_handler()
        if handler is not None:
            handler(self, context)
        else:
            self.problems.append(context.get("exception") or context["message"])


def _context(handle: asyncio.Handle) -> Context:
    found = getattr(handle, "_context")  # noqa: B009  # it has no public name
    assert isinstance(found, Context)
    return found
