"""Deadlines of a classic group's rebalance.

The first rebalance of an empty group waits a little for more members, again and again as long as
new ones come: one rebalance for all is better than one for each. Every other one ends when all
members have joined, or when the longest rebalance timeout among them is over.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class RebalanceDeadlines:
    """Owned by a group. Used only while the group rebalances, or while members have to sync."""

    end_ms: int = 0  # of joining: who has not joined until then is removed
    sync_end_ms: int = 0  # of syncing
    _delay_end_ms: int | None = None  # of waiting for more members, never behind `end_ms`
    _has_newcomer: bool = False  # a member came during the present delay

    def begin(self, now_ms: int, *, timeout_ms: int, delay_ms: int) -> None:
        """Begin a rebalance; `delay_ms` is 0 unless the group was empty."""
        self.end_ms = now_ms + timeout_ms
        self._delay_end_ms = None
        if delay_ms:
            self._delay(now_ms, delay_ms)

    def note_newcomer(self) -> None:
        self._has_newcomer = True

    def is_over(self, now_ms: int, *, delay_ms: int, is_complete: Callable[[], bool]) -> bool:
        """True when joining ends now; `is_complete` says whether all members have joined."""
        if self._delay_end_ms is None:
            return is_complete() or now_ms >= self.end_ms
        if now_ms < self._delay_end_ms:
            return False
        if self._has_newcomer and self._delay_end_ms < self.end_ms:
            self._delay(now_ms, delay_ms)
            return False
        self._delay_end_ms = None
        return True

    def next_ms(self) -> int:
        """The first time at which `is_over` may change without a request."""
        return self.end_ms if self._delay_end_ms is None else self._delay_end_ms

    def _delay(self, now_ms: int, delay_ms: int) -> None:
        self._has_newcomer = False
        self._delay_end_ms = min(now_ms + delay_ms, self.end_ms)
