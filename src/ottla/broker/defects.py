"""The one place in which a defect ends the broker.

A defect is an exception that nobody provided for. Whoever raised it left its work half done: a
flusher that never acknowledges again, partitions that no longer follow the cluster. So the broker
does not go on; the next start recovers from what is on disk. Defects arrive here in three ways:

- A callback that raises: the event loop calls its exception handler, which is set here. Threads
  post a callback that raises what they met.
- A task that nobody awaits: its owner has it watched, or reports what it ended with.
- A request: its handler's AssertionError. Other exceptions cost one connection (`dispatch`).
"""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import ottla
from ottla.cluster.store import LeaseLost
from ottla.errors import ApiError, UsageRefused

log = logging.getLogger("ottla.broker")

Result = TypeVar("Result")
Context = dict[str, Any]

_EXPECTED: Final = (ApiError, LeaseLost, OSError, UsageRefused)  # each has its own way to end
_PACKAGE: Final = Path(ottla.__file__).parent.parent


def is_defect(problem: BaseException) -> bool:
    """Whether an exception that reached its owner is a mistake of ours."""
    return isinstance(problem, Exception) and not isinstance(problem, _EXPECTED)


class Defects:
    """What has ended the broker, if anything has. Every method belongs to the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.first: BaseException | None = None
        self.on_first: Callable[[], None] = _do_nothing  # stop serving, before anything else runs
        self._loop = loop
        self._ended: asyncio.Future[None] = loop.create_future()
        self._handle_before = loop.get_exception_handler()
        loop.set_exception_handler(self._note_loop)

    def close(self) -> None:
        """Give the loop's exception handler back."""
        if self._loop.get_exception_handler() == self._note_loop:
            self._loop.set_exception_handler(self._handle_before)

    def end(self, problem: BaseException) -> None:
        """End the broker by this defect; one that follows another is only logged."""
        problem = _without_group(problem)
        if problem is self.first:
            return
        log.critical("the broker cannot go on", exc_info=problem)
        if self.first is None:
            self.first = problem
            self._ended.set_result(None)
            self.attempt(self.on_first)

    def watch(self, task: "asyncio.Task[Any]") -> None:
        """End the broker when this task, which nobody awaits, ends with an exception."""
        task.add_done_callback(self._note_over)

    def attempt(self, step: Callable[[], object]) -> None:
        """One step of letting go. After a defect any may fail, and none may keep us from ending."""
        try:
            step()
        except Exception:
            log.exception("cannot let go")

    async def attempt_within(self, patience_s: float, work: Awaitable[None]) -> None:
        """The same for a step that waits for something, but not for long."""
        try:
            async with asyncio.timeout(patience_s):
                await work
        except Exception:
            log.exception("cannot let go")

    async def wait(self) -> None:
        """Return when a defect has ended the broker."""
        await asyncio.shield(self._ended)

    async def unless_ended(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`. A defect, in it or elsewhere meanwhile, stops it and is raised."""
        task = self._loop.create_task(work)
        try:
            waits: set[asyncio.Future[Any]] = {task, self._ended}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        problem = None if task.cancelled() else task.exception()
        if problem is not None and is_defect(problem):
            self.end(problem)
        if self.first is not None and (task.cancelled() or problem is not None):
            raise self.first
        return task.result()

    def _note_over(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and (problem := task.exception()) is not None:
            self.end(problem)

    def _note_loop(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        """The loop's exception handler. Whatever a callback raised, it was provided for nowhere.

        A future whose exception nobody asked for is another matter: who waited may have gone.
        """
        problem = context.get("exception")
        if problem is not None and ("handle" in context or is_defect(problem)):
            self.end(problem)
        else:
            log.error("event loop", extra={"reason": context.get("message")}, exc_info=problem)
        if self._handle_before is not None:
            self._handle_before(loop, context)  # of another broker on this loop, say


def summary(problem: BaseException) -> dict[str, str]:
    """Kind, text and place of an exception, for one line of a log."""
    text = " ".join(str(problem).split())
    frames = traceback.extract_tb(problem.__traceback__)
    place = f"{_short(frames[-1].filename)}:{frames[-1].lineno}" if frames else "unknown"
    return {"exception": type(problem).__name__, "text": text or "none", "place": place}


def _short(file_name: str) -> str:
    path = Path(file_name)
    return str(path.relative_to(_PACKAGE) if path.is_relative_to(_PACKAGE) else path)


def _without_group(problem: BaseException) -> BaseException:
    """What a task group wraps: the first task that failed has cancelled the others."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


def _do_nothing() -> None:
    return
