"""Latency of requests: from when one is taken until its response is complete."""

from bisect import bisect_left
from collections.abc import Callable

from ottla.telemetry import BOUNDS_S, Histogram


class Latency(Histogram):
    """A histogram that reads the clock itself."""

    __slots__ = ("now_s",)

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self.now_s = now_s

    def end(self, begun_s: float) -> None:
        """Observe the time since `begun_s`: `observe` without its call, for this is hot."""
        duration_s = self.now_s() - begun_s
        self.bucket_counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s
