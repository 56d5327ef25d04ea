"""Defects: exceptions that no code expects, and that end the broker.

Code that raises one leaves its work half done: a flusher that never acknowledges again, partitions
that no longer follow the cluster. So the broker does not go on; the next start recovers from the
disk. Defects arrive here in three ways:

- A callback that raises: the event loop calls its exception handler, which is set here. Threads
  post a callback that raises their exception.
- A task that is not awaited: its owner has it watched, or reports its exception.
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

_EXPECTED: Final = (ApiError, LeaseLost, OSError, UsageRefused)  # each is handled by its owner
_PACKAGE: Final = Path(ottla.__file__).parent.parent


def is_defect(problem: BaseException) -> bool:
    """True if an exception that reached its owner is a mistake in this program."""
    return isinstance(problem, Exception) and not isinstance(problem, _EXPECTED)


class Defects:
    """Owner of the first defect. Every method is called on the loop's thread."""

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
        log.critical("broker ended by a defect", exc_info=problem)
        if self.first is None:
            self.first = problem
            self._ended.set_result(None)
            self.attempt(self.on_first)

    def watch(self, task: "asyncio.Task[Any]") -> None:
        """End the broker when this task, which is not awaited, ends with an exception."""
        task.add_done_callback(self._note_over)

    def attempt(self, step: Callable[[], object]) -> None:
        """Take one step of the release after a defect: if it fails, the others are still taken."""
        try:
            step()
        except Exception:
            log.exception("broker release step failed")

    async def attempt_within(self, timeout_s: float, work: Awaitable[None]) -> None:
        """The same for a step that waits, up to a timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await work
        except Exception:
            log.exception("broker release step failed")

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
        """The loop's exception handler. An exception of a callback is always a defect.

        An exception of a future that was not retrieved may be expected: its client may be gone.
        """
        problem = context.get("exception")
        if problem is not None and ("handle" in context or is_defect(problem)):
            self.end(problem)
        else:
            log.error(
                "event loop exception", extra={"reason": context.get("message")}, exc_info=problem
            )
        if self._handle_before is not None:
            self._handle_before(loop, context)  # for instance of another broker on this loop


def summary(problem: BaseException) -> dict[str, str]:
    """Type, text and source line of an exception, for one line of a log."""
    text = " ".join(str(problem).split())
    frames = traceback.extract_tb(problem.__traceback__)
    place = f"{_short(frames[-1].filename)}:{frames[-1].lineno}" if frames else "unknown"
    return {"exception": type(problem).__name__, "text": text or "none", "place": place}


def _short(file_name: str) -> str:
    path = Path(file_name)
    return str(path.relative_to(_PACKAGE) if path.is_relative_to(_PACKAGE) else path)


def _without_group(problem: BaseException) -> BaseException:
    """The first exception of a task group: the task that failed has cancelled the others."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


def _do_nothing() -> None:
    return
