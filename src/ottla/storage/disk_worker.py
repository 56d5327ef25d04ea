"""Disk work that would keep the owner from everything else, on a thread of its own.

Like the flusher: the owner hands work over and gets it back, and only the owner touches logs. A
worker pauses often, because in one interpreter its every step is one that the owner cannot take.
"""

import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")

Pause = Callable[[], None]
Step = Callable[[Pause], Result]  # is given a way to pause
Post = Callable[[Callable[[], None]], object]


class Worker(Protocol):
    """A thread, or none, that runs steps one after the other."""

    def run(self, step: Step[Result], done: Callable[[Result | Exception], None]) -> None:
        """Take one step and hand its outcome to `done`, on the owner's thread."""
        ...

    def close(self) -> None:
        """Stop soon; a step that is under way is given up, and `done` not called."""
        ...

    def abandon(self, timeout_s: float) -> bool:
        """Stop without waiting longer than `timeout_s`; True when the step has stopped."""
        ...


class Errand:
    """Work for another thread that the owner may need done, or never done, at once."""

    __slots__ = ("_is_over", "_lock", "_work")

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._is_over = False

    def run(self) -> None:
        """Do the work, once: a second caller waits for the first."""
        with self._lock:
            if not self._is_over:
                self._work()
                self._is_over = True

    def give_up(self) -> None:
        """Return when nothing is being done, and let nothing be done from now on."""
        with self._lock:
            self._is_over = True


class InlineWorker:
    """Works at once, on the caller's thread: for simulation and tests."""

    def run(self, step: Step[Result], done: Callable[[Result | Exception], None]) -> None:
        done(_outcome(step, _do_nothing))

    def close(self) -> None:
        return

    def abandon(self, timeout_s: float) -> bool:
        return True


class ThreadWorker:
    """Works on a thread of its own. `post` runs a callback on the owner's thread soon.

    `pause` lets other threads run (production: a short sleep).
    """

    def __init__(self, name: str, *, post: Post, pause: Pause) -> None:
        self._post = post
        self._pause = pause
        self.is_closing = False
        self._is_abandoned = False  # the owner is gone: post nothing
        self._steps: queue.SimpleQueue[tuple[Step[Any], Callable[[Any], None]] | None]
        self._steps = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, step: Step[Result], done: Callable[[Result | Exception], None]) -> None:
        self._steps.put((step, done))

    def close(self) -> None:
        self.is_closing = True
        self._steps.put(None)
        self._thread.join()

    def abandon(self, timeout_s: float) -> bool:
        self.is_closing = self._is_abandoned = True
        self._steps.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._steps.get()) is not None and not self.is_closing:
            step, done = work
            try:
                outcome = _outcome(step, self._pause_or_stop)
            except _Closing:
                return
            if self._is_abandoned:
                return
            self._post(partial(done, outcome))

    def _pause_or_stop(self) -> None:
        if self.is_closing:
            raise _Closing
        self._pause()


class _Closing(BaseException):
    """The worker is to stop; what it was writing is removed when the log is opened again."""


def _outcome(step: Step[Result], pause: Pause) -> Result | Exception:
    try:
        return step(pause)
    except Exception as problem:  # noqa: BLE001  # it belongs to the owner, whatever it is
        return problem


def _do_nothing() -> None:
    return
