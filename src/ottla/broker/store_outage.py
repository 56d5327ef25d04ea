"""A coordination store that is away: said when it begins, now and then, and when it is back."""

import logging
from collections.abc import Callable
from typing import Final

from ottla.cluster.store import LeaseLost
from ottla.errors import ApiError

log = logging.getLogger("ottla.broker")

_SAID_AGAIN_S: Final = 60.0
_CALM_S: Final = 2.0  # without a failure, before a response means that the store is back


class StoreOutage:
    """The times at which a broker could and could not use its store, for its log lines.

    Every call fails while the store is away, several in a second. `end` ends the broker because
    of a defect.
    """

    def __init__(
        self, monotonic_s: Callable[[], float], end: Callable[[BaseException], None]
    ) -> None:
        self._monotonic_s = monotonic_s
        self._end = end
        self._begun_s: float | None = None  # of the outage that has not ended
        self._failed_s = 0.0
        self._said_s = 0.0
        self._count = 0  # failures since it was said last

    def note_lost(self, problem: BaseException) -> None:
        """Go on if the broker can register again; any other end of the state's task is a defect."""
        if isinstance(problem, LeaseLost):
            log.warning("registration lost", extra={"reason": problem})
        elif isinstance(problem, ApiError):
            self._note_away(problem)
        else:
            self._end(problem)

    def note_up(self) -> None:
        """The store has responded."""
        now_s = self._monotonic_s()
        if self._begun_s is None or now_s - self._failed_s < _CALM_S:
            return
        extra = {"away_ms": int(1000 * (now_s - self._begun_s))}
        self._begun_s = None
        log.warning("coordination store reachable again", extra=extra)

    def _note_away(self, problem: ApiError) -> None:
        now_s = self._failed_s = self._monotonic_s()
        self._count += 1
        if self._begun_s is None:
            self._begun_s = now_s
        elif now_s - self._said_s < _SAID_AGAIN_S:
            return
        extra = {"reason": problem, "failures": self._count}
        self._said_s, self._count = now_s, 0
        log.warning("coordination store not reachable", extra=extra)
