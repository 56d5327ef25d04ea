"""A worker that a test lets work."""

from collections.abc import Callable
from typing import Any


class LaterWorker:
    """A `Worker` without a thread: steps wait until `work` is called."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []

    def run(self, step: Callable[..., Any], done: Callable[[Any], None]) -> None:
        self.steps.append(lambda: done(_outcome(step)))

    def work(self) -> None:
        """Do what there is to do now."""
        steps, self.steps = self.steps, []
        for step in steps:
            step()

    def close(self) -> None:
        return

    def abandon(self, timeout_s: float) -> bool:
        return True


def _outcome(step: Callable[..., Any]) -> Any:
    try:
        return step(lambda: None)
    except Exception as problem:  # noqa: BLE001  # it belongs to the owner, whatever it is
        return problem
