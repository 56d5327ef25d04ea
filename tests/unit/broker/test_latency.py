"""Latency: the time since a request was taken, in its bucket."""

import pytest

from ottla.broker.latency import Latency
from ottla.broker.pending import Pending
from ottla.telemetry import BOUNDS_S, Histogram


@pytest.mark.parametrize("duration_s", [0.0, *BOUNDS_S, 0.0003, 11.0])
def test_a_duration_is_counted_as_the_plain_histogram_does(duration_s: float) -> None:
    latency, plain = Latency(lambda: 100.0 + duration_s), Histogram()
    latency.end(100.0)
    plain.observe(100.0 + duration_s - 100.0)
    assert (latency.bucket_counts, latency.sum_s) == (plain.bucket_counts, plain.sum_s)
    assert latency.count == 1


def test_a_pending_response_is_timed_when_it_is_complete() -> None:
    times = iter([107.0])
    latency = Latency(lambda: next(times))
    pending = Pending(is_barrier=False)
    pending.time(latency, 100.0)
    assert latency.count == 0
    pending.complete(b"")
    assert (latency.count, latency.sum_s) == (1, 7.0)
